"""What the engine needs to know of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

Batch: TypeAlias = Any
"""A NamedTuple or tuple of tensors, or None where an optional field is absent; the task defines it."""


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in the order of its fields."""
    return [x for x in batch if x is not None]


def map_batch(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """A batch of the same type with the function applied to each of its tensors."""
    found = [None if x is None else function(x) for x in batch]
    return type(batch)(*found) if hasattr(batch, "_fields") else tuple(found)


class Task(Protocol):
    """Data, model, loss and metrics of one experiment, on one device.

    A task whose data lie on the device may set `gathers_on_device`: a step captured as a CUDA graph then calls `batch` with
    numbers that are there already, and must find everything it does there captured.

    A task whose loss is no mean over samples may have `counts(indices)`: what each sample counts, so that several processes
    can weight their parts of a batch.

    A task may have a `data_hash`, a string that tells its training data from others: a run is not resumed with other data;
    and `option_defaults`, what `data.options` are where they are not given.

    A task whose samples differ in size may have `parts(indices)`, which gives the batch in pieces of only a few different
    shapes, each with its share of the batch's loss. Steps are then captured piece by piece, one CUDA graph per shape;
    gradients add up, and one update follows.
    """

    model: nn.Module

    @property
    def samples(self) -> int:
        """Number of training samples; an attribute will do."""
        ...

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


@runtime_checkable
class Divisible(Protocol):
    """A task that can cut its batches into pieces of a few shapes."""

    def parts(self, indices: Tensor) -> Iterable[tuple[Batch, float]]:
        """The batch of these samples in pieces, on the device, and what each counts in the batch's loss."""
        ...
