"""Deferred kernels: within one pass, kernels on rows of the same items are queued and run together.

They run one after the other on a few rows, which stay in the cache. Threads are synchronised once
instead of after every kernel. This is an implementation detail of the CPU backend: see
`Backend.one_pass`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .library import BLOCK, Job, Library, library


class _Queue(threading.local):
    """Kernels that were called within a pass and have not run yet, all on the same items."""

    depth = 0

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.program: list[bytes] = []
        self.kept: list[tuple[Any, ...]] = []  # keeps the tensors alive
        self.kernels: Library | None = None
        self.items = self.cost = 0

    def run(self) -> None:
        if self.kernels is not None:
            self.kernels.run([Job(b"".join(self.program), self.items, BLOCK, self.cost)])
            self.clear()


_queue = _Queue()


@contextlib.contextmanager
def one_pass() -> Iterator[None]:
    """Within: kernels on rows are queued.

    Nothing else may read their results before the end of the outermost pass, or before `settle`.
    """
    outside = _queue.depth
    _queue.depth = outside + 1
    try:
        yield
        if not outside:
            _queue.run()
    finally:
        _queue.depth = outside
        if not outside:
            _queue.clear()


def settle() -> None:
    """Run the queued kernels."""
    _queue.run()


def kernels_of(dtype: torch.dtype) -> Library:
    """The compiled kernels for this dtype."""
    libraries = library()
    assert libraries is not None
    return libraries[dtype]


def call(x: Tensor, name: str, units: int, step: int, cost: int, *arguments: Any) -> None:
    """Run a kernel for x's dtype, now or at the end of the pass; see `library.Job`."""
    kernels = kernels_of(x.dtype)
    packed = kernels.packed(name, arguments)
    if not _queue.depth or step != BLOCK:
        settle()
        kernels.run([Job(packed, units, step, cost)])
        return
    if kernels is not _queue.kernels or units != _queue.items:
        settle()
    _queue.kernels, _queue.items = kernels, units
    _queue.cost += cost
    _queue.program.append(packed)
    _queue.kept.append(arguments)
