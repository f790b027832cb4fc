"""A second CUDA stream that prepares weights and computes their gradients in parallel to the rest.

It is for steps that are captured as a CUDA graph. Small products leave most of the GPU idle, and
nothing in the backward pass waits for the gradient of a weight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class SideStream:
    """The stream, and the tensors that it uses, which stay alive until `join`."""

    active: SideStream | None = None

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream or torch.cuda.Stream()
        self.kept: list[Tensor] = []

    @contextlib.contextmanager
    def running(self, *used: Tensor) -> Iterator[None]:
        """Within: work runs on the side stream, after the work queued on the current one so far."""
        self.kept.extend(used)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Make the current stream wait for the side stream."""
        if self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()


@contextlib.contextmanager
def beside(stream: torch.cuda.Stream | None = None) -> Iterator[SideStream]:
    """Within: gradients of weights are computed on a side stream (the given one, or a new one).

    Call `join` before using the gradients. Graphs that are replayed at the same time need separate
    streams, because libraries keep one workspace per stream.
    """
    side = SideStream.active = SideStream(stream)
    try:
        yield side
    finally:
        SideStream.active = None


_HERE = contextlib.nullcontext()


def on_side_stream(*used: Tensor) -> contextlib.AbstractContextManager[None]:
    """Within: work runs on the side stream, if there is one."""
    side = SideStream.active
    return _HERE if side is None else side.running(*used)
