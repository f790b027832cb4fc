"""Time of one training step of the n-body models, as the engine runs it: eagerly and, on a GPU, as one CUDA graph."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..config import TrainConfig
from ..engine.distributed import World
from ..engine.stepper import Stepper, make_optimizer
from ..nbody import models as _models  # noqa: F401  registers the models
from ..results import record

BATCH, BODIES = 64, 4


class _Random:
    """A task on random systems."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.model = registry.build("nbody", name, {}).to(device)
        self.samples = BATCH
        shapes = (BATCH, BODIES), *[(BATCH, BODIES, 3)] * 3
        self._batch = tuple(torch.randn(shape, device=device) for shape in shapes)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        return self._batch

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        *inputs, target = batch
        prediction, regulariser = model(*inputs)
        return (prediction - target).square().mean() + 0.01 * regulariser, {}

    def validate(self, model: nn.Module) -> dict[str, float]:
        return {}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        return {}


def measure(name: str, device: torch.device, *, graph: bool, compiled: bool, repeats: int) -> float:
    """Median seconds of a step after warm-up."""
    task = _Random(name, device)
    config = TrainConfig(cuda_graph=graph, compile=compiled)
    optimizer = make_optimizer(task.model, config, device)
    stepper = Stepper(task, task.model, optimizer, config, World(0, 1, device), print)
    batch = task.batch(torch.arange(BATCH))
    times = []
    for k in range(repeats + 3):
        _wait(device)
        start = time.perf_counter()
        stepper.step(batch)
        _wait(device)
        if k >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def run() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    modes = [(False, False)]  # (CUDA graph, compiled)
    if device.type == "cuda":
        modes += [(True, False), (True, True)]
    repeats = 30 if device.type == "cuda" else 5
    for name in ("gatr", "transformer", "mlp"):
        for graph, compiled in modes:
            seconds = measure(name, device, graph=graph, compiled=compiled, repeats=repeats)
            settings = dict(
                batch=BATCH, items=BODIES, cuda_graph=graph, compile=compiled, precision="float32"
            )
            record("nbody-step", name, "time", round(1000 * seconds, 4), "ms", settings)
            mode = f"cuda graph {graph!s:>5}, compiled {compiled!s:>5}"
            print(f"{name:>12} {mode}: {1000 * seconds:9.3f} ms", flush=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
