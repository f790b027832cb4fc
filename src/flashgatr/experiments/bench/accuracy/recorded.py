"""Recorded results of trained models: which runs there are, and their means over seeds.

which = Which("nbody-accuracy", "gatr", dict(recipe="nbody_readme", train_samples=1000))
runs_of(folder, which)      the runs recorded so; of repeated ones the latest
runs.mean("mse", set="eval")      "5.27e-04 ± 1.0e-05", or "–" without results
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...report.numbers import estimate
from .tables import NOTHING

Key = TypeVar("Key", bound=Hashable)
HARMLESS = {
    "train.cuda_graph",
    "train.validate_every",
    "train.checkpoint_every",
    "train.log_every",
}
"""Changes of a recipe that leave its results what they are."""


@dataclass(frozen=True)
class Which:
    """Runs of one model that differ in their seeds: their recorded settings, by key.

    Runs of a recipe with other changes do not count.
    """

    file: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def has(self, line: Mapping[str, Any]) -> bool:
        told = line["settings"]
        changes = {key for key in told if "." in key} - HARMLESS - self.settings.keys()
        same = all(told.get(key) == value for key, value in self.settings.items())
        return line["model"] == self.model and same and not changes


@dataclass(frozen=True)
class Runs:
    """The recorded lines of some runs."""

    lines: list[dict[str, Any]]

    def values(self, metric: str, **place: Any) -> dict[int, float]:
        """The latest value of every seed."""
        return {
            line["settings"].get("seed", 0): line["value"]
            for line in self.lines
            if line["metric"] == metric
            and place.items() <= {key: line["settings"].get(key) for key in place}.items()
        }

    def mean(self, metric: str, form: str = ".2e", **place: Any) -> str:
        values = list(self.values(metric, **place).values())
        return shown(values, form) if values else NOTHING

    def average(self, metric: str, **place: Any) -> float | None:
        """The mean over seeds, infinite if a run diverged; None if there are no runs."""
        values = list(self.values(metric, **place).values())
        if not values:
            return None
        mean = sum(values) / len(values)
        return mean if math.isfinite(mean) else math.inf

    @property
    def seeds(self) -> list[int]:
        return sorted({line["settings"].get("seed", 0) for line in self.lines})

    def setting(self, key: str) -> str:
        """The values of a setting, which is usually the same for all."""
        found = dict.fromkeys(
            line["settings"][key] for line in self.lines if key in line["settings"]
        )
        return ", ".join(number(value) for value in found) or NOTHING

    @property
    def cost(self) -> str:
        """The mean training time of a run, and on what."""
        values = self.values("training time")
        if not values:
            return NOTHING
        seconds = sum(values.values()) / len(values)
        own = [line for line in self.lines if line["settings"].get("seed", 0) in values]
        return f"{seconds:,.0f} s, {' and '.join(machines(own))}"


def read(folder: Path, file: str) -> list[dict[str, Any]]:
    path = folder / f"{file}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def runs_of(folder: Path, which: Which) -> Runs:
    return Runs([line for line in read(folder, which.file) if which.has(line)])


def least(found: Mapping[Key, Runs], metric: str, **place: Any) -> Key | None:
    """The choice with the smallest mean; None unless all choices are measured."""
    means = {key: runs.average(metric, **place) for key, runs in found.items()}
    known = {key: mean for key, mean in means.items() if mean is not None}
    return min(known, key=known.__getitem__) if len(known) == len(means) else None


def machines(lines: list[dict[str, Any]]) -> list[str]:
    """The machines that measured these lines, in short."""
    names = (line["machine"] for line in lines)
    return [*dict.fromkeys("CPU" if "CPU" in x else x.removeprefix("NVIDIA ") for x in names)]


def shown(values: list[float], form: str = ".2e") -> str:
    """Mean and, of several values, standard error.

    >>> shown([1.0, 3.0], ".1f"), shown([1.0, 1.002], ".1f")
    ('2.0 ± 1.0', '1.0 ± 1e-03')
    """
    found = estimate(values)
    error = found["standard_error"]
    mean = format(found["mean"], form)
    if error is None:
        return mean
    few = format(error, form)
    return f"{mean} ± {few if float(few) or not error else format(error, '.0e')}"


def number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
