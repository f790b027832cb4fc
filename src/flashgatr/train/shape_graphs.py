"""A step on samples of unequal size as CUDA graphs: one per shape of a part, one for the update.

    gradient = loss = 0
    for part, share in parts:              # replay the graph of the part's shape
        loss += share · loss(part)
        gradient += share · gradient(part)
    update(loss, gradient)                 # replay the last graph

The task pads its parts to a few sizes, so that there are few graphs. Parts run in two concurrent
lanes: the small kernels of one fill the gaps of the other. A model with dropout has one lane,
because concurrent graphs share the random generator's state and must not draw from it. The graphs
of a lane run one after another and share their memory. A shape that is new to a lane is captured
when it first occurs, which takes much longer than a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels.cuda.side_stream import beside
from .batch import Batch, copy_into, mapped, shapes, tensors
from .flat_adam import FlatAdam

LANES = 2
Outcome = tuple[Tensor, Tensor, Tensor]
"""Loss, gradient norm, and 1.0 if the step was skipped because one of them is not finite."""
Gradients = Callable[[Batch, Tensor], Tensor]
"""Computes the parameters' gradients of a batch's weighted loss, and returns the loss."""
Update = Callable[[Tensor, Tensor, FlatAdam], Outcome]


class Lane:
    """A stream, the graphs that run on it, and the sums of their losses and gradients."""

    def __init__(self, gradients: Gradients, flat: FlatAdam) -> None:
        self._gradients, self._flat = gradients, flat
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self.stream, self._side = torch.cuda.Stream(), torch.cuda.Stream()
        self._share = torch.zeros((), device=flat.flat.device)
        self.loss = torch.zeros_like(self._share)
        self.gradient = torch.zeros_like(flat.flat)

    def add(self, batch: Batch, share: float) -> None:
        """Add a part's loss and gradient, after the current stream has computed the part."""
        key = shapes(batch)
        if key not in self._captured:
            self._captured[key] = self._capture(batch)
        graph, buffers = self._captured[key]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            copy_into(buffers, batch)
            for x in tensors(batch):
                x.record_stream(self.stream)
            self._share.fill_(share)
            graph.replay()

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch]:
        torch.cuda.synchronize()  # lanes share the parameters' gradients while they are captured
        buffers = mapped(torch.Tensor.clone, batch)
        with torch.random.fork_rng([self._share.device]):  # the first replay draws like others
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._gradients(buffers, self._share)  # warm-up: compiles kernels
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self._pool, self.stream), beside(self._side) as side:
                loss = self._gradients(buffers, self._share)
                side.join()
                self.loss += loss
                self.gradient += self._flat.gradient()
        self._flat.forget()
        return graph, buffers


class ShapeGraphs:
    """Steps in parts: `add` each part, then `update`."""

    def __init__(self, gradients: Gradients, flat: FlatAdam, lanes: int = LANES) -> None:
        self._lanes = [Lane(gradients, flat) for _ in range(lanes)]
        self._flat, self._added = flat, 0
        self._outcome = tuple(torch.zeros((), device=flat.flat.device) for _ in range(3))
        self._last: torch.cuda.CUDAGraph | None = None

    def add(self, batch: Batch, share: float) -> None:
        self._lanes[self._added % len(self._lanes)].add(batch, share)
        self._added += 1

    def update(self, update: Update) -> Outcome:
        """Update from the sums of the parts, and reset the sums to zero."""
        for lane in self._lanes:
            torch.cuda.current_stream().wait_stream(lane.stream)
        self._added = 0
        if self._last is None:
            self._last = self._capture(update)
        self._last.replay()
        for lane in self._lanes:
            lane.stream.wait_stream(torch.cuda.current_stream())
        loss, norm, bad = self._outcome
        return loss, norm, bad

    def _capture(self, update: Update) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = torch.stack([lane.loss for lane in self._lanes]).sum()
            gradient = torch.stack([lane.gradient for lane in self._lanes]).sum(0)
            for kept, x in zip(self._outcome, update(loss, gradient, self._flat), strict=True):
                kept.copy_(x)
            for lane in self._lanes:
                lane.loss.zero_()
                lane.gradient.zero_()
        return graph
