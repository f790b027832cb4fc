"""Training steps of the artery networks on batches of 8 meshes with 3,700 to 8,000 vertices.

Every step takes other meshes: random ones and, if the artery data are in data/arteries, also real
ones. A step is forward, backward, clipping and Adam; on a GPU it is one CUDA graph per size of
padded pairs (`train.shape_graphs`). Times are per 1,000 vertices; forward and backward on meshes of
one size (`artery-step`, as a graph) are measured in the same run for comparison. Steps follow each
other without a pause, as in training, and every size runs once before the measurement. The host's
time is that of building the batches and issuing the steps. `slow steps` counts steps that take more
than three times the median, which indicates that something was compiled or captured again.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...train.distributed import World
from ...train.settings import TrainConfig
from ...train.shape_graphs import LANES
from ...train.stepper import Stepper, make_optimizer
from .. import runs
from ..arteries import EXPERIMENT
from ..arteries.batches import ROUND, pack
from ..arteries.data.mesh import Mesh
from ..arteries.task import ArteryTask, Options
from . import timing, workload
from .artery_step import (
    FEWER_MESHES,
    FEWER_VERTICES,
    MESHES,
    VERTICES,
    fixed_size,
    width_setting,
    works,
)
from .timing import CaseReport, Found
from .workload import Make

SMALLEST, LARGEST = 3700, 8000
POOL = 96
"""Number of random meshes that batches are drawn from."""
STEPS = 30
FOLDER = Path("data/arteries")
OUTLIER = 3


class RandomMeshes(ArteryTask):
    """The artery experiment on random meshes."""

    def __init__(
        self, model: str, options: dict[str, Any], device: torch.device, sizes: tuple[int, int]
    ) -> None:
        draw = np.random.default_rng(0)
        self.device, self.options = device, Options()
        self.model = EXPERIMENT.build(model, options).to(device)
        self._train = pack([_mesh(draw, int(draw.integers(*sizes))) for _ in range(POOL)], device)
        self.samples = POOL


def real_meshes(model: str, options: dict[str, Any], device: torch.device) -> ArteryTask:
    """The artery experiment on its training meshes."""
    settings = {"experiment": "arteries", "model": {"name": model, "options": options}}
    data = {"folder": str(FOLDER), "options": {"val_limit": 1}}
    task = ArteryTask(runs.make_settings({**settings, "data": data}), device)
    task.model.to(device)
    return task


def _mesh(draw: np.random.Generator, nodes: int) -> Mesh:
    position, normal, wss = (draw.normal(size=(nodes, 3)).astype(np.float32) for _ in range(3))
    geodesic = draw.normal(size=nodes).astype(np.float32)
    return Mesh("random", 0, position, normal, geodesic, geodesic > -1, 0.3, wss)


def ragged(make: Callable[[], ArteryTask], meshes: int, *, steps: int) -> Found:
    """Median time per 1,000 vertices, and the number of steps that took far longer."""
    task = make()
    device, cuda = task.device, task.device.type == "cuda"
    config = TrainConfig(cuda_graph=cuda, precision="bfloat16" if cuda else "float32")
    optimizer = make_optimizer(task.model, config, device)
    stepper = Stepper(task, task.model, optimizer, config, World(0, 1, device), print)
    timing.reset_peak(device)

    def step(numbers: list[int]) -> None:
        given = torch.tensor(numbers)
        stepper.step(given if stepper.takes_numbers else task.batch(given))

    for number in {math.ceil(task.size(k) / ROUND): k for k in range(task.samples)}.values():
        step([number] * 2 * LANES)
    draw = random.Random(0)
    for _ in range(3):
        step(draw.sample(range(task.samples), meshes))
    drawn = [draw.sample(range(task.samples), meshes) for _ in range(steps)]
    times, host = timing.in_a_row([partial(step, numbers) for numbers in drawn], device)
    vertices = [sum(task.size(k) for k in numbers) for numbers in drawn]
    rates = [1000 * time / count for time, count in zip(times, vertices, strict=True)]
    typical = statistics.median(rates)
    metrics = {
        "time per 1,000 items": typical,
        "host time per 1,000 items": 1000 * host / statistics.mean(vertices),
        "slow steps": float(sum(rate > OUTLIER * typical for rate in rates)),
    }
    if cuda:
        metrics["memory"] = timing.peak(device)
    return Found(metrics)


def regular(make: Make, size: tuple[int, int], *, graph: bool) -> Found:
    """Time per 1,000 vertices on meshes of one size."""
    metrics = fixed_size(make, size, graph=graph).metrics
    per_thousand = 1000 * metrics.pop("time") / (size[0] * size[1])
    return Found({"time per 1,000 items": per_thousand, **metrics})


def run() -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    meshes, vertices = (MESHES, VERTICES) if cuda else (FEWER_MESHES, FEWER_VERTICES)
    sizes = (SMALLEST, LARGEST) if cuda else (100, 250)
    precision = workload.usual_precision(device)
    report = CaseReport(
        "artery-ragged", keep=cuda, batch=meshes, precision=precision, cuda_graph=cuda
    )
    with timing.precision(precision):
        for (model, width), make in works(device).items():
            settings = {**width_setting(width), "ragged": False, "items": vertices}
            report.run(model, settings, partial(regular, make, (meshes, vertices), graph=cuda))
            options = {} if width is None else {"attention_width": width}
            tasks: dict[str, Callable[[], ArteryTask]] = {
                f"{sizes[0]} to {sizes[1]}": partial(RandomMeshes, model, options, device, sizes)
            }
            if cuda and FOLDER.is_dir():
                tasks["real meshes"] = partial(real_meshes, model, options, device)
            for items, task in tasks.items():
                settings = {**width_setting(width), "ragged": True, "items": items}
                todo = partial(ragged, task, meshes, steps=STEPS if cuda else 4)
                report.run(model, settings, todo)
    report.show()
