"""GPU time of training: the number of steps times the time of a step, measured alone.

Unlike wall time, it does not depend on validation or on what else ran on the GPU. Times of steps
are those of the benchmark nbody-step, as one CUDA graph, and of the presets' sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....train import RunConfig
from ..page import latest
from .recorded import machines
from .tables import NOTHING


def gpu_time(folder: Path, config: RunConfig) -> str:
    """Seconds for all steps of an n-body run, and on what."""
    found = [line for line in latest(folder / "nbody-step.jsonl") if _is_step(line, config)]
    if not found or config.model.options:
        return NOTHING
    seconds = config.train.steps * found[-1]["value"] / 1000
    return f"{seconds:,.0f} s, {machines(found[-1:])[0]}"


def _is_step(line: dict[str, Any], config: RunConfig) -> bool:
    about = line["settings"]
    same = dict(
        cuda_graph=True,
        compile=config.train.compile,
        precision=config.train.precision,
        batch=config.train.batch_size,
    )
    is_whole = about.get("optimizer", True) and about.get("path", "fused") == "fused"
    its = line["model"] == config.model.name and line["metric"] == "time"
    return its and is_whole and same.items() <= {key: about.get(key) for key in same}.items()
