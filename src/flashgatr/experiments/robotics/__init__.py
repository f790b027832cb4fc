"""The robotics experiment: a Kuka arm stacks four blocks (section 4.3, appendix C.3)."""
