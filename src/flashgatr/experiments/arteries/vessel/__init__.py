"""A user's vessel: from a mesh file to the inputs of a model, its prediction, and the files written for it."""
