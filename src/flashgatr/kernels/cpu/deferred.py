"""Deferred kernels: within one pass, kernels on the rows of the same items wait and then run together.

They run one after the other on a few rows that stay in the cache, and threads meet once instead of after
every kernel. Nothing outside this folder knows about it: see `Backend.one_pass`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .library import BLOCK, Job, Library, library


class _Waiting(threading.local):
    """Kernels that were called within a pass and did not run yet: all on the rows of the same items."""

    depth = 0

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.program: list[bytes] = []
        self.kept: list[tuple[Any, ...]] = []
        self.kernels: Library | None = None
        self.items = self.cost = 0

    def run(self) -> None:
        if self.kernels is not None:
            self.kernels.run([Job(b"".join(self.program), self.items, BLOCK, self.cost)])
            self.clear()


_waiting = _Waiting()


@contextlib.contextmanager
def one_pass() -> Iterator[None]:
    """Within: kernels on rows are delayed.

    What they write must not be read by anything else before the end of the outermost pass, or before `settle`.
    """
    outside = _waiting.depth
    _waiting.depth = outside + 1
    try:
        yield
        if not outside:
            _waiting.run()
    finally:
        _waiting.depth = outside
        if not outside:
            _waiting.clear()


def settle() -> None:
    """Run what waits."""
    _waiting.run()


def kernels_of(dtype: torch.dtype) -> Library:
    libraries = library()
    assert libraries is not None
    return libraries[dtype]


def call(x: Tensor, name: str, units: int, step: int, cost: int, *arguments: Any) -> None:
    """Run the kernel of x's dtype, now or at the end of the pass: see `library`."""
    kernels = kernels_of(x.dtype)
    packed = kernels.packed(name, arguments)
    if not _waiting.depth or step != BLOCK:
        settle()
        kernels.run([Job(packed, units, step, cost)])
        return
    if kernels is not _waiting.kernels or units != _waiting.items:
        settle()
    _waiting.kernels, _waiting.items = kernels, units
    _waiting.cost += cost
    _waiting.program.append(packed)
    _waiting.kept.append(arguments)
