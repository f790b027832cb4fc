"""The robotics experiment: plans for an arm that stacks blocks (section 4.3 of the paper)."""
