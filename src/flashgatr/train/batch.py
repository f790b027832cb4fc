"""A batch as a tree of tensors.

A task defines its own batch: a NamedTuple or dataclass of tensors or None; a plain tuple, list,
dictionary or single tensor works as well. The engine copies batches and compares their shapes; only
the task uses their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

Batch: TypeAlias = Any
"""What a task's `batch` returns."""
AnyBatch = TypeVar("AnyBatch")


def leaves(batch: Batch) -> Iterator[Any]:
    """The leaves of a batch in order: tensors, None, numbers."""
    if isinstance(batch, (tuple, list)):
        for part in batch:
            yield from leaves(part)
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from leaves(part)
    elif is_dataclass(batch):
        for field in fields(batch):
            yield from leaves(getattr(batch, field.name))
    else:
        yield batch


def tensors(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in order."""
    return [x for x in leaves(batch) if isinstance(x, Tensor)]


def shapes(batch: Batch) -> tuple[Any, ...]:
    """The shapes of all tensors, and all other leaves; a captured graph runs one of these.

    >>> import torch
    >>> shapes((torch.zeros(2, 3), None))
    (torch.Size([2, 3]), None)
    """
    return tuple(x.shape if isinstance(x, Tensor) else x for x in leaves(batch))


def mapped(function: Callable[[Tensor], Tensor], batch: AnyBatch) -> AnyBatch:
    """A batch of the same kind, with the function applied to each of its tensors."""
    tree: Any = batch
    if isinstance(tree, Tensor):
        return function(tree)  # type: ignore[return-value]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        tree = type(tree)(*(mapped(function, x) for x in tree))
    elif isinstance(tree, (tuple, list)):
        tree = type(tree)(mapped(function, x) for x in tree)
    elif isinstance(tree, Mapping):
        tree = {key: mapped(function, x) for key, x in tree.items()}
    elif is_dataclass(tree) and not isinstance(tree, type):
        parts = {f.name: mapped(function, getattr(tree, f.name)) for f in fields(tree)}
        tree = replace(tree, **parts)
    return tree  # type: ignore[no-any-return]


def copy_into(buffers: Batch, batch: Batch) -> None:
    """Copy a batch's tensors into those of another batch of the same kind and shapes."""
    for buffer, x in zip(tensors(buffers), tensors(batch), strict=True):
        buffer.copy_(x)
