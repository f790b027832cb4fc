"""Flow in vessels at a million points: velocity in the lumen, stress on the wall. Units: cm, s, g.

The data are points of our own finite-element solutions in synthetic vessels.
"""

from __future__ import annotations

from typing import Any

from ..experiment import Experiment, Metric, Results

_HERE = "flashgatr.experiments.flows"


def _about(settings: Any, results: Results) -> dict[str, Any]:
    return {name: results[name] for name in ("train_vessels", "vessels", "points", "anchors")}


EXPERIMENT = Experiment(
    "flows",
    summary="Velocity and wall stress of the flow in vessels, at any number of points.",
    task=f"{_HERE}.task:FlowTask",
    require=f"{_HERE}.task:require",
    models=f"{_HERE}.models:MODELS",
    defaults={
        "train": {"steps": 20_000, "batch_size": 4, "precision": "bfloat16"},
    },
    metrics={
        "epsilon_stress": Metric("stress ε, %", "%", ".2f"),
        "epsilon_velocity": Metric("velocity ε, %", "%", ".2f"),
        "change_max": Metric("change", "1", ".1e"),
    },
    count="vessels",
    about=_about,
    told=("data.options.lumen_anchors", "data.options.wall_anchors"),
    data=f"{_HERE}.command:data",
    predict=f"{_HERE}.command:predict",
)
