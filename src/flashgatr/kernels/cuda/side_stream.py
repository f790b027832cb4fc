"""A second stream for a captured step: weights are prepared, and their gradients computed, beside the rest.

Small products leave most of the GPU idle, and nothing in the backward pass waits for a weight's gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class SideStream:
    """The stream, and the tensors it uses, which are kept alive until `join`."""

    active: SideStream | None = None

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream or torch.cuda.Stream()
        self.kept: list[Tensor] = []

    @contextlib.contextmanager
    def running(self, *used: Tensor) -> Iterator[None]:
        """Within: on the side stream, after what the current one has done so far."""
        self.kept.extend(used)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """From here on the current stream sees the gradients."""
        if self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()


@contextlib.contextmanager
def beside(stream: torch.cuda.Stream | None = None) -> Iterator[SideStream]:
    """Within: gradients of weights are computed on a side stream (the given one, or a new one).

    Join it before the gradients are used. Graphs that are replayed at the same time need streams of their
    own: libraries keep their workspaces per stream.
    """
    side = SideStream.active = SideStream(stream)
    try:
        yield side
    finally:
        SideStream.active = None


_HERE = contextlib.nullcontext()


def on_side_stream(*used: Tensor) -> contextlib.AbstractContextManager[None]:
    """Within: on the side stream, if there is one."""
    side = SideStream.active
    return _HERE if side is None else side.running(*used)
