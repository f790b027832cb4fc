"""The equivariance error of trained runs by dtype, as lines for `results.record`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..train import RunConfig, Task, distributed
from ..train.precision import precision
from . import runs, table
from .console import say
from .symmetry import Symmetry

METRIC = "equivariance"
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16 autocast": torch.float32,
}
"""By the names that are recorded, the dtype of weights and inputs."""

Line = tuple[str, str, str, float, str, dict[str, Any]]
"""Arguments of `results.record`."""


def errors(
    symmetry: Symmetry, task: Task, model: nn.Module, device: torch.device
) -> Iterator[tuple[str, float]]:
    """The error in each of `DTYPES`. Where it cannot be measured, a message says why."""
    for name, dtype in DTYPES.items():
        half = torch.autocast(device.type, torch.bfloat16, enabled="bfloat16" in name)
        try:
            own = copy.deepcopy(model).eval().to(dtype)
            with precision("float32"), half:
                error = symmetry(task, own, dtype)
        except Exception as failure:  # the other dtypes may work
            say(f"no equivariance error in {name}: {type(failure).__name__}: {failure}")
            continue
        if error is not None:
            yield name, float(f"{error:.5g}")


def lines(config: RunConfig, settings: dict[str, Any]) -> Iterator[Line]:
    """The errors of a finished run, to be recorded with these settings and the dtype. There are
    none for an experiment without a symmetry; if a run cannot be measured, a message says why.
    """
    experiment = table.find(config.experiment)
    symmetry = experiment.get("symmetry")
    if symmetry is None:
        return
    file, model = f"{experiment.name}-{METRIC}", config.model.name
    try:
        world = distributed.join(config.device)
        task = runs.load_task(config, world)
        found = dict(errors(symmetry, task, task.model, world.device))
    except Exception as failure:  # other runs may be measured
        say(f"the equivariance of {config.folder} is not measured: {failure}")
        return
    finally:
        distributed.leave()
    for dtype, error in found.items():
        yield file, model, METRIC, error, "1", settings | {"dtype": dtype}
