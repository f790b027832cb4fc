"""A step on samples of unequal size as CUDA graphs: one per shape of a part of the batch, and one for the update.

    gradient = loss = 0
    for part, share in parts:   loss += share · loss(part),  gradient += share · gradient(part)      replay the part's graph
    update(loss, gradient)                                                                           replay the last graph

Parts are padded to a few sizes by whoever makes them, so that there are few graphs; all share their memory, since they run one after
another. A shape that was not seen before is captured when it comes, which takes about a second.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...kernels.gpu import beside
from .flat import FlatAdam
from .task import Batch

Outcome = tuple[Tensor, Tensor, Tensor]
"""Loss, gradient norm, and 1.0 if the step was skipped because one of them is not finite."""
Gradients = Callable[[Batch, Tensor], Tensor]
"""Puts the gradients of a batch's weighted loss into the parameters, and returns the loss."""
Update = Callable[[Tensor, Tensor, FlatAdam], Outcome]


class PartGraphs:
    def __init__(
        self, gradients: Gradients, flat: FlatAdam, optimizer: torch.optim.Optimizer
    ) -> None:
        self._gradients, self._flat, self._optimizer = gradients, flat, optimizer
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self._share = torch.zeros((), device=flat.flat.device)
        self._loss = torch.zeros_like(self._share)
        self._gradient = torch.zeros_like(flat.flat)
        self._outcome = tuple(torch.zeros_like(self._share) for _ in range(3))
        self._last: torch.cuda.CUDAGraph | None = None

    def add(self, batch: Batch, share: float) -> None:
        """Add a part's loss and gradient to the step's."""
        shapes = tuple(x.shape for x in batch)
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(batch)
        graph, buffers = self._captured[shapes]
        for buffer, x in zip(buffers, batch, strict=True):
            buffer.copy_(x)
        self._share.fill_(share)
        graph.replay()

    def update(self, update: Update) -> Outcome:
        """Update from what was added, which starts at zero again."""
        if self._last is None:
            self._last = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._last, self._pool):
                found = update(self._loss.clone(), self._gradient, self._flat)
                for kept, x in zip(self._outcome, found, strict=True):
                    kept.copy_(x)
                self._loss.zero_()
                self._gradient.zero_()
        self._last.replay()
        loss, norm, bad = self._outcome
        return loss, norm, bad

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch]:
        buffers = tuple(x.clone() for x in batch)
        device = self._share.device
        with torch.random.fork_rng([device]):  # this step draws as all later ones do
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._gradients(buffers, self._share)  # libraries plan and kernels compile
            torch.cuda.current_stream().wait_stream(stream)
            self._optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self._pool), beside() as side:
                loss = self._gradients(buffers, self._share)
                side.join()
                self._loss += loss
                self._gradient += self._flat.gradient()
            self._optimizer.zero_grad(set_to_none=True)
        return graph, buffers
