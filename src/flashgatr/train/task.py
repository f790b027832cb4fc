"""What the trainer needs to know: the data, the model, the loss and the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from .batch import Batch as Batch


class Task(Protocol):
    """Data, model, loss and metrics of one experiment, on one device.

    A batch is a NamedTuple or dataclass of tensors (or None) that the task defines: see `batch`.

    Optional attributes:

    - `gathers_on_device`: the data lie on the device. A step that is captured as a CUDA graph then
      calls `batch` with numbers that are on the device, and captures all that it does.
    - `counts(indices)`: what each sample counts in the loss, if that is no mean over samples.
      Several processes weight their shares of a batch with it.
    - `data_hash`: a string that tells the training data from others. A run is not resumed with
      other data.
    - `option_defaults`: the values of `data.options` that are not given.
    - `parts(indices)`: see `Divisible`.
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
        """Mean loss over the batch, and further means to log. `model` may wrap `self.model`."""
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Validation metrics; the smaller "score", the better the model."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Metrics on the evaluation sets, for the finished run."""
        ...


@runtime_checkable
class Divisible(Protocol):
    """A task whose samples differ in size, and whose batches come in pieces of a few shapes.

    Steps are then captured piece by piece, one CUDA graph per shape. Gradients add up, and one
    update follows.
    """

    def parts(self, indices: Tensor) -> Iterable[tuple[Batch, float]]:
        """The batch of these samples in pieces, and the share of each in the batch's loss."""
        ...
