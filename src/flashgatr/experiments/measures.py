"""What is measured in which experiment: the columns of its tables, and what a recorded result says about its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .config import RunConfig

Metrics = dict[str, Any]
"""Results on one evaluation set."""
About = Callable[[RunConfig, Metrics], dict[str, Any]]


@dataclass(frozen=True)
class Measures:
    """The metrics of an experiment: title, unit and format of each; `count` is how many samples a set has, `place` what a
    recorded result calls it."""

    columns: dict[str, tuple[str, str, str]]
    count: str
    place: str
    recorded: tuple[str, ...]
    about: About
    """Settings of what is recorded of a run, from its configuration and the metrics of a set."""

    @property
    def titles(self) -> list[str]:
        return [title for title, _, _ in self.columns.values()] + [self.count]

    def row(self, metrics: Metrics) -> list[str]:
        """The cells of a table; empty where a set lacks a metric."""
        cells = [
            format(metrics[key], style) if key in metrics else ""
            for key, (_, _, style) in self.columns.items()
        ]
        return [*cells, str(int(metrics[self.count]))]

    def records(self, metrics: Metrics) -> Iterator[tuple[str, float, str]]:
        """Metric, value and unit of what is kept of a set."""
        for key in self.recorded:
            if key in metrics:
                yield key, metrics[key], self.columns[key][1]


def _about_systems(config: RunConfig, metrics: Metrics) -> dict[str, Any]:
    return {"train_samples": config.data.train_samples}


def _about_meshes(config: RunConfig, metrics: Metrics) -> dict[str, Any]:
    return {"train_meshes": metrics["train_meshes"], "orientation": metrics["orientation"]}


_AREA = "length²"
MEASURES = {
    "nbody": Measures(
        columns={
            "mse": ("mse", _AREA, ".3e"),
            "median": ("median", _AREA, ".3e"),
            "q90": ("90 % quantile", _AREA, ".3e"),
            "trimmed": ("without worst 1 %", _AREA, ".3e"),
        },
        count="systems",
        place="set",
        recorded=("mse", "median", "q90", "trimmed"),
        about=_about_systems,
    ),
    "arteries": Measures(
        columns={
            "epsilon_mean": ("ε, %", "%", ".2f"),
            "epsilon_median": ("median", "%", ".2f"),
            "epsilon_q75": ("q75", "%", ".2f"),
            "nmae": ("NMAE, %", "%", ".2f"),
            "mean_error": ("mean err.", "dyn/cm²", ".2f"),
            "max_error": ("max err.", "dyn/cm²", ".1f"),
            "cosine": ("cosine", "1", ".4f"),
            "change_max": ("change", "1", ".1e"),
        },
        count="meshes",
        place="split",
        recorded=(
            "epsilon_mean",
            "epsilon_median",
            "epsilon_q75",
            "nmae",
            "cosine",
            "change_max",
        ),
        about=_about_meshes,
    ),
}


def of(experiment: str) -> Measures:
    return MEASURES[experiment]
