"""The robotics experiment: a Kuka arm stacks four blocks (section 4.3, appendix C.3).

Reward and standing tower are percent of a full tower. Results of planning have their own sets, one
per engine; results of denoising are those of `test`.
"""

from __future__ import annotations

from typing import Any

from ..experiment import Experiment, Metric, Results

_HERE = "flashgatr.experiments.robotics"
_PLANNING = ("engine", "scenes", "scene_set", "turned", "mirrored", "sampler", "sampling_steps")


def _about(settings: Any, results: Results) -> dict[str, Any]:
    return {key: results[key] for key in ("demonstrations", *_PLANNING) if key in results}


def _reward(title: str, name: str, kind: str) -> Metric:
    about = {"reward": kind}
    return Metric(title, "%", ".1f", benchmark="reward", name=name, about=about)


EXPERIMENT = Experiment(
    "kuka",
    summary="A robot arm stacks four blocks: plans by diffusion.",
    task=f"{_HERE}.task:TASK",
    require=f"{_HERE}.task:require",
    models=f"{_HERE}.models:MODELS",
    defaults={
        "train": {
            "steps": 200_000,
            "batch_size": 32,
            "ema": 0.999,
            "precision": "bfloat16",
            "cuda_graph": True,
        }
    },
    metrics={
        "reward": _reward("reward", "reward", "original"),
        "reward_error": _reward("±", "standard error", "original"),
        "strict": _reward("tower", "reward", "strict"),
        "strict_error": _reward("±", "standard error", "strict"),
        "drawing_seconds": Metric("s to draw", "s", ".0f", benchmark="reward", name="drawing time"),
        "execution_seconds": Metric(
            "s to execute", "s", ".0f", benchmark="reward", name="execution time"
        ),
        "success": Metric("all four", "%", ".1f", recorded=False),
        "mse": Metric("mse", "1", ".4f"),
        "action_mse": Metric("action mse", "1", ".4f"),
    },
    count="cases",
    about=_about,
    told=tuple(f"data.options.{key}" for key in _PLANNING),
    data=f"{_HERE}.command:data",
    predict=f"{_HERE}.command:predict",
    symmetry=f"{_HERE}.symmetry:symmetry",
    report=f"{_HERE}.report.contents:REPORT",
)
