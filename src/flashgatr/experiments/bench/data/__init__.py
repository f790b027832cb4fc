"""Benchmarks of data: speed of generation and preparation, and the accuracy of n-body labels."""
