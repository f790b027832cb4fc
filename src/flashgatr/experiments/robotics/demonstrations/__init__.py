"""Demonstrations: a scripted expert, the data set it makes, and the published files."""
