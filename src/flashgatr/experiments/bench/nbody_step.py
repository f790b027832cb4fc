"""One training step of the n-body models as the engine runs it: forward, backward, clip, Adam.

64 systems of 4 bodies. Models run eagerly (GATr also without clipping and Adam) and, on a GPU, as
one CUDA graph; those of `COMPILED` also with compiled blocks in the graph, GATr also with its plain
layers. `first_call` is the time from building GATr to the end
of its first step, including the compilation of kernels; clear Triton's cache for a fair result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...kernels.paths import plain_kernels
from ...train.distributed import World
from ...train.settings import TrainConfig
from ...train.stepper import Stepper, make_optimizer
from ..nbody import EXPERIMENT
from ..nbody import models as _models  # noqa: F401  not imported within `first_call`
from ..nbody.task import NBodyBatch
from . import timing
from .timing import CaseReport, Found

BATCH, BODIES = 64, 4
MODELS = (
    "gatr", "gatr_e3", "gatr_e3_wide", "segnn", "se3_transformer", "transformer", "gca_gnn",
    "gca_mlp", "mlp",
)  # fmt: skip
COMPILED = ("segnn", "se3_transformer", "transformer", "gca_gnn", "gca_mlp")
"""GATr's kernels leave nothing to compile, and the MLP is two products."""
Precision = Literal["tf32", "float32"]


class RandomSystems:
    """A task of the engine with one fixed batch of random systems."""

    def __init__(self, name: str, device: torch.device, batch: int = BATCH) -> None:
        self.model = EXPERIMENT.build(name, {}).to(device)
        self.parameters = list(self.model.parameters())
        self.samples = batch
        shapes = (batch, BODIES), *[(batch, BODIES, 3)] * 3
        self.systems = NBodyBatch(*(torch.randn(shape, device=device) for shape in shapes))

    def batch(self, indices: Tensor) -> NBodyBatch:
        return self.systems

    def loss(self, model: nn.Module, batch: NBodyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        prediction, regulariser = model(batch.mass, batch.position, batch.velocity)
        return (prediction - batch.target).square().mean() + 0.01 * regulariser, {}

    def validate(self, model: nn.Module) -> dict[str, float]:
        return {}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        return {}

    def gradients(self) -> None:
        """Forward and backward, without the optimiser."""
        for p in self.parameters:
            p.grad = None
        self.loss(self.model, self.systems)[0].backward()


class Case(NamedTuple):
    """How a model is run."""

    model: str
    precision: Precision
    cuda_graph: bool = False
    compile: bool = False
    path: str = "fused"
    optimizer: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        found = self._asdict()
        del found["model"]
        if self.model != "gatr":
            del found["path"]
        if self.optimizer:
            del found["optimizer"]
        return found


def cases(cuda: bool, models: Sequence[str] = MODELS) -> Iterator[Case]:
    """All cases of these models. Of two that differ only in the path, the fused one comes last,
    because the latest result counts.
    """
    precisions: tuple[Precision, ...] = ("tf32", "float32") if cuda else ("float32",)
    for precision in precisions:
        for model in models:
            if model == "gatr" and precision == "float32":
                yield Case(model, precision, path="plain")
            yield Case(model, precision)
            if model == "gatr":
                yield Case(model, precision, optimizer=False)
            if cuda:
                yield Case(model, precision, cuda_graph=True)
            if cuda and model in COMPILED:
                yield Case(model, precision, cuda_graph=True, compile=True)


def measure(case: Case, device: torch.device, *, repeats: int, first_call: bool = False) -> Found:
    """Time and memory of a step and, with `first_call`, the seconds of the first one."""
    plain = plain_kernels() if case.path == "plain" else contextlib.nullcontext()
    if case.compile:
        torch.compiler.reset()  # as in `workload.Work.compile`
    with timing.precision(case.precision), plain:
        memory = None
        if case.cuda_graph:
            step = training_step(case, device)
            step()  # compiles everything, so that the peak of the capture is that of the step
            del step
            timing.release()
            timing.reset_peak(device)
        begin = time.perf_counter()
        step = training_step(case, device)
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if case.cuda_graph:
            memory = timing.peak(device)
        found = timing.measure(step, device, repeats=repeats)
    if memory is not None:
        found.metrics["memory"] = memory
    if first_call:
        found.metrics["first_call"] = seconds
    return found


def training_step(case: Case, device: torch.device) -> timing.Step:
    task = RandomSystems(case.model, device)
    if not case.optimizer:
        return task.gradients
    config = TrainConfig(cuda_graph=case.cuda_graph, compile=case.compile, precision=case.precision)
    optimizer = make_optimizer(task.model, config, device)
    stepper = Stepper(task, task.model, optimizer, config, World(0, 1, device), print)
    return lambda: stepper.step(task.systems)


def run(models: Sequence[str] = MODELS) -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    report = CaseReport("nbody-step", keep=cuda, batch=BATCH, items=BODIES)
    torch.zeros(1, device=device)  # starts the device, which is not part of the first call
    waiting = True
    for case in cases(cuda, models):
        first_call = waiting and case.model == "gatr" and case.path == "fused"
        waiting = waiting and not first_call
        repeats = 20 if cuda else 3
        todo = partial(measure, case, device, repeats=repeats, first_call=first_call)
        report.run(case.model, case.settings, todo)
    report.show()
