"""Forward and backward on a CPU with two threads: the n-body GATr beside the n-body Transformer, 64 systems of 4 bodies.

The two take turns in one process, so that whatever else the machine does slows both. The ratio is GATr's time over the
Transformer's, of medians and of minima.
"""

from __future__ import annotations

import statistics

import torch

from . import timing
from .nbody_step import BATCH, BODIES, RandomSystems
from .timing import Found, Report

THREADS, ROUNDS = 2, 60
PATIENCE = 60_000.0
"""Milliseconds: enough for all rounds, also where the machine has other work."""
MODELS = ("gatr", "transformer")


def measure() -> list[list[float]]:
    """Milliseconds of the steps of each model."""
    device = torch.device("cpu")
    tasks = [RandomSystems(model, device) for model in MODELS]
    steps = [task.gradients for task in tasks]
    return timing.in_turn(steps, device, repeats=ROUNDS, patience=PATIENCE)


def run() -> None:
    if torch.cuda.is_available():
        print("cpu-step is for machines without a GPU; to run it here, set CUDA_VISIBLE_DEVICES=''")
        return
    settings = dict(batch=BATCH, items=BODIES, threads=THREADS, precision="float32")
    report = Report("cpu-step", keep=True, **settings)
    with timing.threads(THREADS):
        found = report.attempt(" and ".join(MODELS), {}, measure)
        for statistic, reduce in (("median", statistics.median), ("minimum", min)):
            if found is None:
                break
            times = [reduce(times) for times in found]
            for model, value in zip(MODELS, times, strict=True):
                report.add(model, {"statistic": statistic}, Found({"time": value}))
            ratio = Found({"ratio": times[0] / times[1]})
            report.add(MODELS[0], {"statistic": statistic, "to": MODELS[1]}, ratio)
        report.show()
