"""Benchmarks: each is a module with `run()`, which measures, prints a table and records its results."""

from __future__ import annotations

import importlib

NAMES = ("equivariance", "simulator", "training-step", "nbody-labels")


def run(name: str) -> None:
    """Run one benchmark by its name."""
    if name not in NAMES:
        raise ValueError(f"unknown benchmark {name!r}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    module.run()
