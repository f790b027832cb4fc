"""What the engine needs to know of an experiment."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

Batch = tuple[Tensor, ...]


class Task(Protocol):
    """Data, model, loss and metrics of one experiment, on one device.

    A task whose data lie on the device may set `gathers_on_device`: a step captured as a CUDA graph then calls `batch` with
    numbers that are there already, and must find everything it does there captured.
    """

    model: nn.Module
    samples: int
    """Number of training samples."""

    def batch(self, indices: Tensor) -> Batch:
        """The training samples with these numbers, on the device."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss over the batch, and further means to log. `model` is this task's, maybe wrapped."""
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Validation metrics; the smaller "score", the better the model."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Metrics on the evaluation sets, for the finished run."""
        ...
