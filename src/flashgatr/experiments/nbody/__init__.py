"""The n-body experiment: a star and its planets (section 4.1 and appendix C.1 of the paper)."""

from __future__ import annotations

from typing import Any

from ..experiment import Experiment, Metric, Results

_HERE = "flashgatr.experiments.nbody"
_AREA = "length²"
METRICS = {
    "mse": Metric("mse", _AREA, ".3e"),
    "median": Metric("median", _AREA, ".3e"),
    "q90": Metric("90 % quantile", _AREA, ".3e"),
    "trimmed": Metric("without worst 1 %", _AREA, ".3e"),
}
"""Errors of systems, as `metrics.summarise` gives them."""


def _about(settings: Any, results: Results) -> dict[str, Any]:
    return {"train_samples": settings.data.train_samples}


EXPERIMENT = Experiment(
    "nbody",
    summary="Gravity among a star and its planets: where will they be?",
    task=f"{_HERE}.task:NBodyTask",
    models=f"{_HERE}.models:MODELS",
    metrics=METRICS,
    count="systems",
    about=_about,
    data=f"{_HERE}.command:data",
    symmetry=f"{_HERE}.systems:symmetry",
    report=f"{_HERE}.report.contents:REPORT",
)
