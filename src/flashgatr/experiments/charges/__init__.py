"""The charged five-body benchmark, its variant with gravity, and three horizons."""

from __future__ import annotations

from typing import Any

from ..experiment import Experiment, Metric, Results

_HERE = "flashgatr.experiments.charges"
_AREA = "length²"


def _about(settings: Any, results: Results) -> dict[str, Any]:
    from .task import Options

    chosen = Options.read(settings.data.options)
    told = {"horizon": chosen.horizon, "force": chosen.force}
    if chosen.force == "charges":
        told["clip"] = chosen.clip
    return {"train_samples": settings.data.train_samples} | told


EXPERIMENT = Experiment(
    "charges",
    summary="Five charged particles, or five masses: where will they be?",
    task=f"{_HERE}.task:ChargesTask",
    models=f"{_HERE}.models:MODELS",
    metrics={
        "mse": Metric("mse", _AREA, ".3e"),
        "median": Metric("median", _AREA, ".3e"),
        "q90": Metric("90 % quantile", _AREA, ".3e"),
        "trimmed": Metric("without worst 1 %", _AREA, ".3e"),
    },
    defaults={"data": {"train_samples": 3000}, "train": {"batch_size": 100}},
    count="systems",
    about=_about,
    told=("data.options.horizon", "data.options.force", "data.options.clip"),
    data=f"{_HERE}.command:data",
    report=f"{_HERE}.report:REPORT",
)
