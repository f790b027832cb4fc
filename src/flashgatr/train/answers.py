"""Checks of what a task answers: batches, losses and validations.

require_samples                  a TaskError unless it is a number of samples
require_task                     a TaskError unless the task has all that a trainer needs
checked_loss, checked_metrics    the answer, or a TaskError that says what was expected
hash_of_batches                  identifies the training data of a task without a `data_hash`
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..io.files import sha256, to_safetensors
from .batch import leaves
from .task import Task

NEEDED = ("model", "samples", "batch", "loss", "validate", "evaluate")
"""What every task has."""
MARK = "batches:"
"""How a hash of batches begins. It is never compared with a task's own `data_hash`."""


class TrainingError(RuntimeError):
    """Training cannot continue."""


class TaskError(TrainingError, TypeError):
    """A task lacks something, or its method returned something else than the trainer needs."""


def require_task(task: object) -> None:
    """Raise an error unless this object has what `Task` says."""
    name = task.__name__ if isinstance(task, type) else type(task).__name__
    if isinstance(task, type):
        raise TaskError(f"a trainer takes a task, got the class {name}; pass an object of it")
    lacks = [x for x in NEEDED if not hasattr(type(task), x) and not hasattr(task, x)]
    if lacks:
        raise TaskError(f"the task {name} lacks {', '.join(lacks)}; see flashgatr.train.Task")
    model = getattr(task, "model", None)
    if not isinstance(model, nn.Module):
        raise TaskError(f"the task's model must be a torch.nn.Module, got {_kind(model)}")


def require_samples(samples: Any) -> None:
    """Raise a TaskError unless a task's `samples` is a number of training samples."""
    try:
        is_number = operator.index(samples) >= 1
    except TypeError:
        is_number = False
    if not is_number:
        raise TaskError(
            "the task's samples must be the number of its training samples, an integer of at "
            f"least 1; got {_kind(samples)}"
        )


def checked_loss(answer: Any) -> Tensor:
    """The loss in what a task's `loss` returned, without axes. Nothing else of it is read."""
    wanted = (
        "the task's loss must return a pair: the loss, and a dictionary of further numbers (or {})"
    )
    is_pair = isinstance(answer, (tuple, list)) and len(answer) == 2
    if not is_pair or not isinstance(answer[1], Mapping | None):
        raise TaskError(f"{wanted}; got {_kind(answer)}")
    loss = answer[0]
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise TaskError(f"{wanted}. The loss must be one real number, got {_kind(loss)}")
    if not loss.requires_grad:
        raise TaskError(
            "the task's loss does not depend on the model's parameters, so there is no gradient; "
            "compute it from the outputs of the model that `loss` receives, without no_grad, "
            "detach or item"
        )
    return loss if loss.dim() == 0 else loss.reshape(())


def checked_metrics(answer: object) -> dict[str, float]:
    """What a task's `validate` returned: numbers, among them the score."""
    wanted = (
        "the task's validate must return a dictionary with a number 'score' (lower is better), "
        "and further numbers to log"
    )
    if not isinstance(answer, dict) or "score" not in answer:
        raise TaskError(f"{wanted}; got {answer!r:.200}")
    try:
        return {name: x if isinstance(x, (int, float)) else x.item() for name, x in answer.items()}
    except (AttributeError, ValueError, RuntimeError) as error:
        kinds = ", ".join(f"{name!r}: {_kind(x)}" for name, x in answer.items())
        raise TaskError(f"{wanted}; got {kinds}") from error


def hash_of_batches(task: Task, batches: Sequence[Tensor], device: torch.device) -> str:
    """A hash of the batches with these indices; empty if they cannot identify the data.

    That is so if the first one, drawn again with other random numbers, is another one (the task
    augments its data), or if a batch has objects other than tensors, numbers and strings.
    """
    with undisturbed(device):
        hashes = []
        for seed, indices in enumerate((batches[0], *batches)):
            _seed(seed)
            hashes.append(_hash(task.batch(indices)))
    again, *own = hashes
    if again != own[0] or not all(own):
        return ""
    return MARK + sha256("".join(own).encode())


def same_data(theirs: str | None, ours: str | None) -> bool:
    """Whether two hashes may be of the same data; hashes of two kinds cannot be compared."""
    if not theirs or not ours or theirs.startswith(MARK) != ours.startswith(MARK):
        return True
    return theirs == ours


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """A context after which random numbers go on as if it had not been: torch, Python, NumPy."""
    numpy: Any = sys.modules.get("numpy")  # it is optional
    before, array_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(before)
        if numpy:
            numpy.random.set_state(array_state)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _hash(batch: object) -> str:
    """Hash of a batch, with shapes and types; empty if it has objects that have no bytes."""
    parts = []
    for x in leaves(batch):
        if isinstance(x, Tensor) and x.layout == torch.strided:
            content = x.detach().to("cpu").reshape(-1).contiguous()
            content = content.view(torch.uint8) if content.numel() else content.byte()
            parts.append(f"{x.dtype}{tuple(x.shape)}{sha256(to_safetensors({'x': content}))}")
        elif x is None or isinstance(x, (bool, int, float, str, bytes)):
            parts.append(repr(x))
        else:
            return ""
    return sha256("\n".join(parts).encode())


def _kind(value: object) -> str:
    """A value in a few words, for an error."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r:.100} ({type(value).__name__})"
