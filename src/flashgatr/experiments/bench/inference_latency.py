"""Latency of inference: the n-body networks on a single system of four bodies, without gradients.

On a GPU eagerly and as one CUDA graph; on a CPU eagerly, with one thread and with two.
"""

from __future__ import annotations

import contextlib
from functools import partial

import torch

from ..nbody.models import GATrNBody
from . import timing
from .nbody_step import BODIES, RandomSystems
from .timing import CaseReport, Found


def measure(model: str, device: torch.device, *, graph: bool = False) -> Found:
    """Time of the network's forward pass."""
    task = RandomSystems(model, device, batch=1)
    *inputs, _ = task.systems
    network = task.model.eval()

    @torch.no_grad()
    def step() -> None:
        network(*inputs)

    frozen = network.net.frozen() if isinstance(network, GATrNBody) else contextlib.nullcontext()
    with frozen:
        return timing.measure(step, device, graph=graph, repeats=50)


def run() -> None:
    device = timing.pick_device()
    report = CaseReport("inference-latency", keep=True, batch=1, items=BODIES)
    for model in ("gatr", "transformer"):
        if device.type == "cuda":
            for precision, graph in (("float32", False), ("float32", True), ("tf32", True)):
                with timing.precision(precision):
                    todo = partial(measure, model, device, graph=graph)
                    report.run(model, {"precision": precision, "cuda_graph": graph}, todo)
            continue
        for number in (1, 2):
            with timing.threads(number):  # the number of threads is part of the machine's name
                settings = {"precision": "float32", "threads": number}
                report.run(model, settings, partial(measure, model, device))
    report.show()
