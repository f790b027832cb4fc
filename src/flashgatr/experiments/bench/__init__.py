"""Benchmarks: each is a module with `run()`, which measures, prints a table and records results.

`scaling-figure`, `nbody-figure` and `page` do not measure: they draw docs/images/scaling.png and
nbody.png, and write the tables of docs/benchmarks.md, from recorded results.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence

SPEED = (
    "nbody-step",
    "artery-step",
    "artery-ragged",
    "kuka-step",
    "types-step",
    "scaling",
    "inference-latency",
    "cpu-step",
    "packed-sets",
    "operators",
    "shortcuts",
    "libraries",
)
"""Benchmarks of speed; `nbody-step` comes first, because it times the first call of a process."""
DATA = ("simulator", "nbody-labels", "charges-limits", "artery-preprocessing", "kuka-harness")
"""Benchmarks of data: how fast they are made, and what they are worth."""
NAMES = (*SPEED, "numerics", "equivariance", *DATA)
"""The benchmarks that `all` runs, in this order."""
_IN_FOLDERS = {
    "cpu-step": ("cpu.step", "run"),
    "packed-sets": ("cpu.packed_sets", "run"),
    **{name: (f"data.{name.replace('-', '_')}", "run") for name in DATA},
}
_OTHERS = {
    "training-step": ("nbody_step", "run"),  # its former name
    "anchored-accuracy": ("data.anchored_accuracy", "run"),  # needs the published vessels
    "scaling-figure": ("scaling", "draw"),
    "nbody-figure": ("nbody_figure", "draw"),
    "page": ("page", "write"),
}


def find(name: str) -> Callable[[], object]:
    """The function that runs this benchmark."""
    if name not in (*NAMES, *_OTHERS):
        known = ", ".join([*NAMES, "anchored-accuracy", "scaling-figure", "nbody-figure", "page"])
        raise ValueError(f"unknown benchmark {name!r}; there are {known}, and all")
    module, function = (_IN_FOLDERS | _OTHERS).get(name, (name.replace("-", "_"), "run"))
    found: Callable[[], object] = getattr(importlib.import_module(f".{module}", __name__), function)
    return found


def run(names: Sequence[str]) -> list[str]:
    """Run benchmarks by name and return the names of those that failed.

    A benchmark that fails does not stop the others; a single one raises its error.
    """
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
