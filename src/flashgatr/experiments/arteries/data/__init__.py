"""Vessel walls as data: raw files, their preparation for the models, shards, and the sets of a folder."""
