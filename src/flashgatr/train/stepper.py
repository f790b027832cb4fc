"""One optimiser step: forward, backward, clip, update. Steps that are not finite do not update.

A step runs eagerly, with compiled blocks, or as one CUDA graph. For samples of unequal size there
is one graph per shape, which adds gradients, and one for the update (`shape_graphs`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..kernels.cuda.side_stream import beside
from ..shortcuts import scale_all
from .answers import TaskError, checked_loss
from .batch import copy_into, mapped, shapes, tensors
from .compiled import blocks
from .distributed import World
from .flat_adam import FlatAdam
from .settings import TrainConfig
from .shape_graphs import LANES, ShapeGraphs
from .shape_graphs import Outcome as Outcome
from .task import Batch, Divisible, Task


def make_optimizer(
    model: nn.Module,
    config: TrainConfig,
    device: torch.device,
    factors: Mapping[str, float] | None = None,
) -> torch.optim.Adam:
    """Adam with the learning rate in a tensor, so that it can change in a captured graph.

    factors: see `Task`. Each factor has a parameter group of its own.
    """
    fused = device.type in ("cpu", "cuda") and config.strategy != "fsdp"

    def rate(factor: float) -> Tensor | float:
        return torch.tensor(config.lr * factor, device=device) if fused else config.lr * factor

    groups: list[dict[str, Any]] = [
        {"params": some, "lr": rate(factor), "factor": factor}
        for factor, some in _by_factor(model, factors or {}).items()
    ]
    return torch.optim.Adam(
        groups,
        lr=rate(1.0),
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=fused,
        capturable=config.cuda_graph and device.type == "cuda",
    )


def _by_factor(model: nn.Module, factors: Mapping[str, float]) -> dict[float, list[nn.Parameter]]:
    """The parameters by the factor of their learning rate."""
    found: dict[float, list[nn.Parameter]] = {}
    used = set()
    for name, p in model.named_parameters():
        module = next((m for m in factors if name == m or name.startswith(f"{m}.")), None)
        used.add(module)
        found.setdefault(1.0 if module is None else float(factors[module]), []).append(p)
    unknown = [name for name in factors if name not in used]
    if unknown or any(factor <= 0 for factor in found):
        parts = ", ".join(name for name, _ in model.named_children())
        raise TaskError(
            "the task's rate_factors must map modules or parameters of the model to positive "
            f"numbers, got {dict(factors)}; the model's modules are {parts}"
        )
    return found


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate; groups of parameters that have a factor get their multiple of it."""
    for group in optimizer.param_groups:
        own = value * group.get("factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _draws(model: nn.Module) -> bool:
    """Whether the model draws random numbers in training."""
    return any("Dropout" in type(m).__name__ and getattr(m, "p", 0) for m in model.modules())


class Stepper:
    """Runs the optimiser steps of one task."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Adam,
        config: TrainConfig,
        world: World,
        say: Callable[[str], None],
        counters: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.config, self.world = config, world
        self.counters = counters or (
            torch.zeros((), device=world.device),
            torch.zeros((), device=world.device),
        )
        """The number of skipped steps, and the number of successive skipped steps up to now."""
        self._captured: tuple[torch.cuda.CUDAGraph, Outcome, FlatAdam] | None = None
        """Must live as long as the graph, like `_buffers` and `_forbid`: it reads their memory."""
        self._buffers: Batch = None
        self._forbid = torch.ones((), device=world.device)
        """While this is 1, a captured step does not update."""
        self._wants_graph = config.cuda_graph
        if config.cuda_graph and (world.device.type != "cuda" or world.size > 1):
            say("cuda_graph needs one process on a GPU; running eagerly instead")
            self._wants_graph = False
        gathers = self._wants_graph and getattr(task, "gathers_on_device", False)
        self._divides = self._wants_graph and not gathers and isinstance(task, Divisible)
        self._parts: ShapeGraphs | None = None
        self.takes_numbers = self._divides or gathers
        """Whether `step` takes the indices of the samples instead of the batch."""
        if config.compile:
            for block in blocks(task.model):
                block.compile()

    def step(self, batch: Batch, weight: float = 1.0) -> Outcome:
        """One update from this process's batch, whose loss is multiplied by `weight`.

        If the stepper `takes_numbers`, the batch is a tensor: the indices of its samples.
        """
        if not self._wants_graph:
            return self._eager(batch, weight)
        if self._divides:
            return self._in_parts(batch)
        if self._captured is None:
            with torch.random.fork_rng([self.world.device]):  # the first replay draws like others
                self._captured = self._capture(batch)
        if shapes(batch) != shapes(self._buffers):
            after, before = ([tuple(x.shape) for x in tensors(b)] for b in (batch, self._buffers))
            raise ValueError(
                f"cuda_graph needs batches of one shape, got {after} after {before}; "
                "set train.cuda_graph = false"
            )
        copy_into(self._buffers, batch)
        graph, outcome, _ = self._captured
        graph.replay()
        return outcome

    def _gradients(self, batch: Batch, weight: float | Tensor) -> Tensor:
        """Compute the gradients of the weighted loss, and return the weighted loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = checked_loss(self.task.loss(self.model, batch))
        if isinstance(weight, Tensor) or weight != 1:
            loss = loss * weight
        loss.backward()
        return loss.detach()

    def _clip(self) -> Tensor:
        """Scale the gradients down to the largest norm allowed; returns the norm before."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = _full(torch.nn.utils.get_total_norm(gradients))
        if self.config.clip:
            scale = (self.config.clip / (norm + 1e-6)).clamp(max=1.0)
            scale_all(gradients, scale)
        return norm

    def _eager(self, batch: Batch, weight: float) -> Outcome:
        loss, norm = self._gradients(batch, weight), self._clip()
        loss = self.world.sum(loss.clone()) / self.world.size
        bad = ~(loss.isfinite() & norm.isfinite())
        if not bool(bad):
            self.optimizer.step()
        self._count(bad.float())
        return loss, norm, bad.float()

    def _count(self, bad: Tensor) -> None:
        skipped, in_a_row = self.counters
        skipped += bad
        in_a_row += 1
        in_a_row *= bad

    def _gathered(self) -> Batch:
        return self.task.batch(self._buffers) if self.takes_numbers else self._buffers

    def _in_parts(self, indices: Tensor) -> Outcome:
        assert isinstance(self.task, Divisible)
        for batch, share in self.task.parts(indices):
            if self._parts is None:
                with torch.random.fork_rng([self.world.device]):
                    flat = self._warm_up(batch)
                self._parts = ShapeGraphs(self._gradients, flat, 1 if _draws(self.model) else LANES)
                self._forbid.zero_()
            self._parts.add(batch, share)
        assert self._parts is not None
        return self._parts.update(self._update)

    def _update(self, loss: Tensor, gradient: Tensor, flat: FlatAdam) -> Outcome:
        norm, bad = flat.step(self.config.clip, self._forbid, loss, gradient)
        self._count(bad)
        return loss, norm, bad

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Outcome, FlatAdam]:
        """Capture the whole step, after a warm-up with the update switched off.

        Weight gradients are computed on a side stream; the rest of the backward pass does not wait
        for them.
        """
        self._buffers = mapped(lambda x: x.to(self.world.device, copy=True), batch)
        flat = self._warm_up(self._gathered())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), beside() as side:
            loss = self._gradients(self._gathered(), 1.0)
            side.join()
            outcome = self._update(loss, flat.gradient(), flat)
        self._forbid.zero_()
        return graph, outcome, flat

    def _warm_up(self, batch: Batch) -> FlatAdam:
        """Run a step a few times with the update switched off, to create the optimiser's state."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._gradients(batch, 1.0)
            self.optimizer.found_inf = self._forbid  # type: ignore[attr-defined]
            self.optimizer.step()  # does not update, but creates its state
            del self.optimizer.found_inf  # type: ignore[attr-defined]
            flat = FlatAdam(self.optimizer)
            loss = self._gradients(batch, 1.0)
            flat.step(self.config.clip, self._forbid, loss, flat.gradient())
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        return flat

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.config.precision != "bfloat16":
            return contextlib.nullcontext()
        return torch.autocast(
            self.world.device.type, torch.bfloat16, cache_enabled=not self._wants_graph
        )


def _full(x: Tensor) -> Tensor:
    """A sharded norm as an ordinary tensor."""
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x
