"""Forward and backward of the n-body GATr and Transformer on a CPU with two threads.

The batch has 64 systems of 4 bodies. The two models take turns in one process, so that
other load on the machine slows both. The ratio is GATr's time divided by the Transformer's, once of
medians and once of minima.
"""

from __future__ import annotations

import statistics

import torch

from .. import timing
from ..nbody_step import BATCH, BODIES, RandomSystems
from ..timing import CaseReport, Found

THREADS, ROUNDS = 2, 60
PATIENCE = 60_000.0
"""Milliseconds: enough for all rounds, even if the machine is busy."""
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
    report = CaseReport("cpu-step", keep=True, **settings)
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
