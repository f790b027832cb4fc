"""The charged five-body benchmark, its variant with gravity, and three horizons."""

from __future__ import annotations

from typing import Any

from ..experiment import Experiment, Results
from ..nbody import METRICS

_HERE = "flashgatr.experiments.charges"


def _about(settings: Any, results: Results) -> dict[str, Any]:
    from .options import Options

    chosen = Options.read(settings.data.options)
    told: dict[str, Any] = {"horizon": chosen.horizon, "force": chosen.force}
    if chosen.force == "charges":
        told["clip"] = chosen.clip
    return {"train_samples": settings.data.train_samples} | told


EXPERIMENT = Experiment(
    "charges",
    summary="Five charged particles, or five masses: where will they be?",
    task=f"{_HERE}.task:ChargesTask",
    models=f"{_HERE}.models:MODELS",
    metrics=METRICS,
    defaults={"data": {"train_samples": 3000}, "train": {"batch_size": 100}},
    count="systems",
    about=_about,
    told=("data.options.horizon", "data.options.force", "data.options.clip"),
    data=f"{_HERE}.command:data",
    symmetry="flashgatr.experiments.nbody.systems:symmetry",
    report=f"{_HERE}.report:REPORT",
)
