"""The world: an iiwa arm and four blocks, with rewards, physics and an environment."""
