"""Benchmarks of data: how fast they are made or prepared, and what n-body labels are worth."""
