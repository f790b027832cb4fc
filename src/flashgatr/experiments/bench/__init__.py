"""Benchmarks: each is a module with `run()`, which measures, prints a table and records results.

`scaling-figure`, `nbody-figure`, `page` and `results` do not measure: from recorded results they
draw docs/images/scaling.png and nbody.png, and write the tables of docs/benchmarks.md and
docs/results.md.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from functools import partial

SPEED = (
    "nbody-step",
    "artery-step",
    "artery-ragged",
    "kuka-step",
    "types-step",
    "scaling",
    "anchored",
    "inference-latency",
    "cpu-step",
    "packed-sets",
    "anchored-cpu",
    "operators",
    "shortcuts",
    "libraries",
)
"""Benchmarks of speed; `nbody-step` comes first, because it times the first call of a process."""
DATA = (
    "simulator",
    "nbody-labels",
    "charges-limits",
    "artery-preprocessing",
    "kuka-harness",
    "kuka-expert",
)
"""Benchmarks of data: how fast they are made, and what they are worth."""
NAMES = (*SPEED, "numerics", "equivariance", *DATA)
"""The benchmarks that `all` runs, in this order."""
_IN_FOLDERS = {
    "cpu-step": ("cpu.step", "run"),
    "anchored-cpu": ("cpu.anchored", "run"),
    "packed-sets": ("cpu.packed_sets", "run"),
    **{name: (f"data.{name.replace('-', '_')}", "run") for name in DATA},
}
_OTHERS = {
    "training-step": ("nbody_step", "run"),  # its former name
    "anchored-accuracy": ("data.anchored_accuracy", "run"),  # needs the published vessels
    "trained-equivariance": ("trained_equivariance", "run"),  # needs the vessels, too
    "scaling-figure": ("scaling", "draw"),
    "nbody-figure": ("nbody_figure", "draw"),
    "page": ("page", "write"),
    "results": ("accuracy.page", "write"),
}


BY_MODEL = ("nbody-step", "artery-step", "scaling")
"""Benchmarks that can measure some of their models only."""


def find(name: str) -> Callable[..., object]:
    """The function that runs this benchmark."""
    if name not in (*NAMES, *_OTHERS):
        known = ", ".join([*NAMES, *list(_OTHERS)[1:]])
        raise ValueError(f"unknown benchmark {name!r}; there are {known}, and all")
    module, function = (_IN_FOLDERS | _OTHERS).get(name, (name.replace("-", "_"), "run"))
    found: Callable[..., object] = getattr(
        importlib.import_module(f".{module}", __name__), function
    )
    return found


def run(names: Sequence[str], models: Sequence[str] = ()) -> list[str]:
    """Run benchmarks by name and return the names of those that failed.

    A benchmark that fails does not stop the others; a single one raises its error.
    models: measure these only; all benchmarks must be among `BY_MODEL`.
    """
    every = [each for name in names for each in (NAMES if name == "all" else (name,))]
    found = {name: _of_models(name, models) if models else find(name) for name in every}
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


def _of_models(name: str, models: Sequence[str]) -> Callable[[], object]:
    """The function that runs this benchmark for these models."""
    call = find(name)
    if name not in BY_MODEL:
        known = f"{', '.join(BY_MODEL[:-1])} and {BY_MODEL[-1]}"
        raise ValueError(f"--model is for {known}; {name} measures all its models")
    known = importlib.import_module(call.__module__).MODELS
    unknown = [model for model in models if model not in known]
    if unknown:
        raise ValueError(f"{name} has no model {unknown[0]!r}; there are {', '.join(known)}")
    return partial(call, models)
