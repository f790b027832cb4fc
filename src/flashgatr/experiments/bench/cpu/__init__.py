"""Benchmarks for machines without a GPU."""
