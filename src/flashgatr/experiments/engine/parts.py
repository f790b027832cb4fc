"""A step on samples of unequal size as CUDA graphs: one per shape of a part of the batch, and one for the update.

    gradient = loss = 0
    for part, share in parts:   loss += share · loss(part),  gradient += share · gradient(part)      replay the part's graph
    update(loss, gradient)                                                                           replay the last graph

Parts are padded to a few sizes by whoever makes them, so that there are few graphs. They run in two lanes, side by side: one
part's small kernels fill the gaps of the other's. A model with dropout has one lane: graphs that run at the same time must not
draw, since they share the generator's state. Graphs of a lane share their memory, since they run one after another. A shape
that a lane did not see before is captured when it comes, which takes much longer than a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...kernels.gpu import beside
from .flat import FlatAdam
from .task import Batch, map_batch, tensors_of

LANES = 2
Outcome = tuple[Tensor, Tensor, Tensor]
"""Loss, gradient norm, and 1.0 if the step was skipped because one of them is not finite."""
Gradients = Callable[[Batch, Tensor], Tensor]
"""Puts the gradients of a batch's weighted loss into the parameters, and returns the loss."""
Update = Callable[[Tensor, Tensor, FlatAdam], Outcome]
Shapes = tuple[torch.Size | None, ...]


class Lane:
    """A stream with the graphs that run there, and what they add up."""

    def __init__(self, gradients: Gradients, flat: FlatAdam) -> None:
        self._gradients, self._flat = gradients, flat
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[Shapes, tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self.stream, self._side = torch.cuda.Stream(), torch.cuda.Stream()
        self._share = torch.zeros((), device=flat.flat.device)
        self.loss = torch.zeros_like(self._share)
        self.gradient = torch.zeros_like(flat.flat)

    def add(self, batch: Batch, share: float) -> None:
        """Add a part's loss and gradient, as soon as the current stream has made it."""
        shapes = tuple(None if x is None else x.shape for x in batch)
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(batch)
        graph, buffers = self._captured[shapes]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for buffer, x in zip(tensors_of(buffers), tensors_of(batch), strict=True):
                buffer.copy_(x)
                x.record_stream(self.stream)
            self._share.fill_(share)
            graph.replay()

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch]:
        torch.cuda.synchronize()  # lanes share the parameters' gradients while they are captured
        buffers = map_batch(Tensor.clone, batch)
        with torch.random.fork_rng([self._share.device]):  # this step draws as all later ones do
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._gradients(buffers, self._share)  # libraries plan and kernels compile
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self._pool, self.stream), beside(self._side) as side:
                loss = self._gradients(buffers, self._share)
                side.join()
                self.loss += loss
                self.gradient += self._flat.gradient()
        self._flat.forget()
        return graph, buffers


class PartGraphs:
    """Steps in parts: `add` each, then `update`."""

    def __init__(self, gradients: Gradients, flat: FlatAdam, lanes: int = LANES) -> None:
        self._lanes = [Lane(gradients, flat) for _ in range(lanes)]
        self._flat, self._added = flat, 0
        self._outcome = tuple(torch.zeros((), device=flat.flat.device) for _ in range(3))
        self._last: torch.cuda.CUDAGraph | None = None

    def add(self, batch: Batch, share: float) -> None:
        self._lanes[self._added % len(self._lanes)].add(batch, share)
        self._added += 1

    def update(self, update: Update) -> Outcome:
        """Update from what was added, which starts at zero again."""
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
