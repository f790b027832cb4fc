"""Benchmarks: each is a module with `run()`, which measures, prints a table and records its results.

`scaling-figure`, `nbody-figure` and `page` measure nothing: they draw docs/images/scaling.png and nbody.png, and fill in the
tables of docs/benchmarks.md from what is recorded.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence

SPEED = (
    "nbody-step",
    "artery-step",
    "artery-ragged",
    "scaling",
    "inference-latency",
    "cpu-step",
    "operators",
    "shortcuts",
    "libraries",
)
"""How fast it is; `nbody-step` comes first, because it times the first call of a process."""
NAMES = (*SPEED, "numerics", "equivariance", "simulator", "nbody-labels", "artery-preprocessing")
"""What `all` runs, in this order."""
_ELSEWHERE = {
    "simulator": ("data.simulator", "run"),
    "nbody-labels": ("data.nbody_labels", "run"),
    "artery-preprocessing": ("data.artery_preprocessing", "run"),
}
_OTHERS = {
    "training-step": ("nbody_step", "run"),  # its former name
    "scaling-figure": ("scaling", "draw"),
    "nbody-figure": ("nbody_figure", "draw"),
    "page": ("page", "write"),
}


def find(name: str) -> Callable[[], object]:
    """What to call for this name."""
    if name not in (*NAMES, *_OTHERS):
        known = ", ".join([*NAMES, "scaling-figure", "nbody-figure", "page"])
        raise ValueError(f"unknown benchmark {name!r}; there are {known}, and all")
    module, function = (_ELSEWHERE | _OTHERS).get(name, (name.replace("-", "_"), "run"))
    found: Callable[[], object] = getattr(importlib.import_module(f".{module}", __name__), function)
    return found


def run(names: Sequence[str]) -> list[str]:
    """Run benchmarks by their names, and return those that failed: of several, one that fails stops no other."""
    every = [each for name in names for each in (NAMES if name == "all" else (name,))]
    found = {name: find(name) for name in every}
    if len(found) == 1:
        next(iter(found.values()))()
        return []
    failed = []
    for name, call in found.items():
        try:
            call()
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return failed
