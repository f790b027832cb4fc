"""What tasks on systems of bodies share: sets of tensors on a device, and errors of systems.

A set is a dict of float64 tensors (N, ...), of which those named in the task's batch are used.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..hashing import hash_of
from ..symmetry import equivariance_error, motions, moved, turned
from .metrics import summarise, system_errors

Data = dict[str, Tensor]
MEASURED = 64
"""The first validation systems, on which equivariance is measured."""


class SystemsTask:
    """The data of a task, and its validation. Subclasses read the sets and call the model.

    limit: number of training systems; None takes all.
    """

    gathers_on_device = True
    """Batches are gathered on the device, so that a captured training step can do it."""
    batch_type: ClassVar[type[Any]]
    """The NamedTuple of a batch."""

    def __init__(self, device: torch.device, limit: int | None) -> None:
        self.device, self.limit = device, limit

    def load(self, name: str, limit: int | None) -> Data:
        """The first `limit` systems of a set."""
        raise NotImplementedError

    def predict(self, model: nn.Module, batch: Any) -> Tensor:
        """Predicted positions (B, n, 3)."""
        raise NotImplementedError

    @cached_property
    def samples(self) -> int:
        """Number of training systems. Reads the validation set as well, which training needs."""
        self._val  # noqa: B018  fail now rather than at the first validation
        return len(self._train["target"])

    @cached_property
    def data_hash(self) -> str:
        return hash_of(x.numpy() for x in self._train.values())

    @cached_property
    def _train(self) -> Data:
        return self.load("train", self.limit)

    @cached_property
    def _val(self) -> Data:
        return self.load("val", None)

    def gather(self, indices: Tensor) -> Any:
        """The training systems with these numbers, on the device."""
        if not hasattr(self, "_resident"):
            self._resident = self.to_batch(self._train)
        chosen = indices.to(self.device)
        return self.batch_type(*(x.index_select(0, chosen) for x in self._resident))

    def validate(self, model: nn.Module) -> dict[str, float]:
        found = summarise(self.errors(model, self._val))
        return {"score": found["mse"], "median": found["median"], "trimmed": found["trimmed"]}

    @torch.no_grad()
    def errors(self, model: nn.Module, data: Data, chunk: int = 1000) -> Tensor:
        """Squared error of every system, in the order of the file."""
        found = []
        for start in range(0, len(data["target"]), chunk):
            part = {name: x[start : start + chunk] for name, x in data.items()}
            prediction = self.predict(model, self.to_batch(part))
            found.append(system_errors(prediction.cpu(), part["target"]))
        return torch.cat(found)

    def to_batch(self, data: Data, dtype: torch.dtype = torch.float32) -> Any:
        """Systems on the device."""
        names = self.batch_type._fields
        return self.batch_type(*(data[name].to(self.device, dtype) for name in names))


def symmetry(task: SystemsTask, model: nn.Module, dtype: torch.dtype) -> float:
    """The error of predicted displacements if systems are rotated and moved."""
    first = {name: x[:MEASURED] for name, x in task.load("val", None).items()}
    batch = task.to_batch(first, dtype)

    def displacement(motion: Tensor) -> Tensor:
        position, velocity = moved(motion, batch.position), turned(motion, batch.velocity)
        given = batch._replace(position=position, velocity=velocity)
        return task.predict(model, given).double() - position

    return equivariance_error(displacement, motions())
