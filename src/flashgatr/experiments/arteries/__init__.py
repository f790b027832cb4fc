"""Wall shear stress on artery walls (paper, section 4.2). Units: cm, dyn/cm² (0.1 Pa)."""

from __future__ import annotations

from typing import Any

from ..experiment import Experiment, Metric, Results

LABEL_SCALE = 53.836
"""Root mean square of the published training labels. Models predict the stress divided by it."""

_HERE = "flashgatr.experiments.arteries"
_STRESS = "dyn/cm²"


def _about(settings: Any, results: Results) -> dict[str, Any]:
    return {key: results[key] for key in ("train_meshes", "orientation") if key in results}


EXPERIMENT = Experiment(
    "arteries",
    summary="Wall shear stress on the walls of vessels.",
    task=f"{_HERE}.task:ArteryTask",
    models=f"{_HERE}.models:MODELS",
    defaults={"train": {"steps": 200_000, "batch_size": 8, "precision": "bfloat16"}},
    metrics={
        "epsilon_mean": Metric("ε, %", "%", ".2f"),
        "epsilon_median": Metric("median", "%", ".2f"),
        "epsilon_q75": Metric("q75", "%", ".2f"),
        "nmae": Metric("NMAE, %", "%", ".2f"),
        "mean_error": Metric("mean err.", _STRESS, ".2f", recorded=False),
        "max_error": Metric("max err.", _STRESS, ".1f", recorded=False),
        "cosine": Metric("cosine", "1", ".4f"),
        "change_max": Metric("change", "1", ".1e"),
    },
    count="meshes",
    place="split",
    about=_about,
    told=("data.options.orientation",),
    data=f"{_HERE}.command:data",
    predict=f"{_HERE}.command:predict",
    symmetry=f"{_HERE}.symmetry:symmetry",
    report=f"{_HERE}.report.contents:REPORT",
)
