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

    - `gathers_on_device`: the data are on the device. A step that is captured as a CUDA graph then
      calls `batch` with indices that are on the device, and captures the gathering as well.
    - `counts(indices)`: the weight of each sample in the loss, if the loss is not a mean over
      samples. Several processes weight their shares of a batch with it.
    - `data_hash`: a string that identifies the training data. A run is not resumed with other data.
      Without it, the trainer hashes the batches of three steps, unless they are random. An empty
      string switches the comparison off.
    - `option_defaults`: the default values of `data.options`.
    - `rate_factors`: a mapping from names of modules or parameters of the model to factors of the
      learning rate. Parameters that it does not name have the learning rate itself.
    - `after_step()`: called after every optimiser step, for what follows the weights in other ways
      than by gradients, such as a target network. What it changes must be among the model's
      parameters and buffers, so that checkpoints hold it. It is not part of a captured graph.
    - `parts(indices)`: see `Divisible`.
    """

    model: nn.Module

    @property
    def samples(self) -> int:
        """Number of training samples (may be a plain attribute)."""
        ...

    def batch(self, indices: Tensor) -> Batch:
        """The training samples with these numbers, on the device."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss over the batch, and a dictionary of further numbers, such as its parts.

        The dictionary is for callers of your own: the trainer reads the loss alone. `model` may
        wrap `self.model`.
        """
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Validation metrics, among them "score": lower is better."""
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
