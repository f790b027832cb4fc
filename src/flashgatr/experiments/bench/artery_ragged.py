"""The artery networks on meshes of 3,700 to 8,000 vertices, 8 to a batch, packed, of other sizes in every step.

Time per 1,000 vertices, eagerly, beside that of meshes of one size (`artery-step`) in the same run. Steps that take more
than three times the median are counted: that is what a kernel compiled again for another size looks like.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from functools import partial

import torch

from . import timing, workload
from .artery_step import FEWER_MESHES, FEWER_VERTICES, MESHES, VERTICES, fixed_size, told, works
from .timing import Found, Report
from .workload import Make, Sample, Work

SMALLEST, LARGEST = 3700, 8000
WARMUP, STEPS = 10, 20
OUTLIER = 3


def batches(
    work: Work, meshes: int, sizes: tuple[int, int], seed: int
) -> Iterator[tuple[int, Sample]]:
    """Number of vertices and packed meshes, without end."""
    draw = random.Random(seed)
    while True:
        lengths = [draw.randint(*sizes) for _ in range(meshes)]
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(work.device)
        total = sum(lengths)
        yield total, work.sample(total, offsets=offsets, max_items=max(lengths))


def ragged(make: Make, meshes: int, sizes: tuple[int, int], *, warmup: int, steps: int) -> Found:
    """Median time per 1,000 vertices, and how many steps were far above it."""
    work = make()
    warm, measured = (batches(work, meshes, sizes, seed) for seed in (0, 1))
    for _ in range(warmup):
        work.step(next(warm)[1])
    timing.reset_peak(work.device)
    rates = []
    for _ in range(steps):
        vertices, sample = next(measured)
        rates.append(1000 * timing.once(partial(work.step, sample), work.device) / vertices)
    typical = statistics.median(rates)
    slow = sum(rate > OUTLIER * typical for rate in rates)
    metrics = {"time per 1,000 items": typical, "slow steps": slow}
    if work.device.type == "cuda":
        metrics["memory"] = timing.peak(work.device)
    return Found(metrics)


def regular(make: Make, size: tuple[int, int]) -> Found:
    """The same of meshes of one size."""
    metrics = fixed_size(make, size).metrics
    per_thousand = 1000 * metrics.pop("time") / (size[0] * size[1])
    return Found({"time per 1,000 items": per_thousand, **metrics})


def run() -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    meshes, vertices = (MESHES, VERTICES) if cuda else (FEWER_MESHES, FEWER_VERTICES)
    sizes = (SMALLEST, LARGEST) if cuda else (100, 250)
    warmup, steps = (WARMUP, STEPS) if cuda else (2, 4)
    precision = workload.usual_precision(device)
    report = Report("artery-ragged", keep=cuda, batch=meshes, precision=precision)
    with timing.precision(precision):
        for (model, width), make in works(device).items():
            settings = {**told(width), "ragged": False, "items": vertices}
            report.run(model, settings, partial(regular, make, (meshes, vertices)))
            settings = {**told(width), "ragged": True, "items": f"{sizes[0]} to {sizes[1]}"}
            todo = partial(ragged, make, meshes, sizes, warmup=warmup, steps=steps)
            report.run(model, settings, todo)
    report.show()
