"""A user's vessel: from a mesh file to the inputs of a model and its prediction."""
