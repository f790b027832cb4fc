"""Vessel walls as data: raw files, their preparation, shards, and the sets of a folder."""
