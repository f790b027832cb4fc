"""Faster alternatives to public interfaces of torch and Triton, with these as fallback.

    DIRECT_CALLS      operators are called as functions, bypassing torch's dispatcher
    BLOCK_NODE        a block on a few small sets is one node of autograd's graph
    TRITON_LAUNCH     kernels that Triton has compiled are launched without its argument inspection
    FLAT_TENSORS      one C++ call concatenates parameters, and one splits gradients
    MANY_TENSORS      one call scales or averages a list of tensors
    CUDNN_ATTENTION   cuDNN's attention with shared keys and values of another width
    PACKED_ATTENTION  attention kernels that take packed sets with their offsets

Some need private names of torch or Triton. These are checked when a shortcut is first used: if
one is missing or behaves differently, the shortcut is off and the public interface is used, with
the same results. `flashgatr bench shortcuts` measures the savings; docs/benchmarks.md lists them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .constants import is_transformed


class Shortcut:
    """A shortcut: take it if `is_on`, else use the public interface."""

    def __init__(self, name: str, probe: Callable[[], object] | None = None) -> None:
        self.name = name
        self.problem = ""
        """Why the shortcut cannot be used here; empty if it can."""
        self._probe = probe
        self._switched_off = False

    def check_with(self, probe: Callable[[], object]) -> None:
        """Set the check that runs at the first use; if it raises, the shortcut is off."""
        self._probe, self.problem = probe, ""

    @property
    def is_on(self) -> bool:
        if self._probe is not None:
            probe, self._probe = self._probe, None
            try:
                probe()
            except Exception as error:  # private interfaces may fail in any way
                self.fail(error)
        return not self._switched_off and not self.problem

    def fail(self, error: Exception) -> None:
        """Turn the shortcut off for good, because of this error."""
        self.problem = f"{type(error).__name__}: {error}"

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Within: the shortcut is off, for tests and measurements."""
        before, self._switched_off = self._switched_off, True
        try:
            yield
        finally:
            self._switched_off = before


def is_followed() -> bool:
    """Whether a dispatch mode, a torch.func transform or a tracer is active."""
    return (
        bool(torch._C._len_torch_dispatch_stack())
        or is_transformed()
        or torch._C._get_tracing_state() is not None
    )


def flatten(tensors: list[Any]) -> torch.Tensor:
    """All elements as one vector."""
    if FLAT_TENSORS.is_on:
        return torch._C._nn.flatten_dense_tensors(tensors)
    return torch.cat([x.reshape(-1) for x in tensors])


def unflatten(flat: torch.Tensor, like: list[Any]) -> list[torch.Tensor]:
    """The inverse of `flatten`; returns views."""
    if not torch.compiler.is_compiling() and type(flat) is torch.Tensor and FLAT_TENSORS.is_on:
        return list(torch._C._nn.unflatten_dense_tensors(flat, like))
    parts = flat.split([x.numel() for x in like])
    return [part.view(x.shape) for part, x in zip(parts, like, strict=True)]


def scale_all(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply every tensor by the factor, in place."""
    if MANY_TENSORS.is_on:
        torch._foreach_mul_(tensors, factor)
    else:
        for x in tensors:
            x.mul_(factor)


def move_all(tensors: list[torch.Tensor], targets: list[torch.Tensor], fraction: float) -> None:
    """Move every tensor towards its target by this fraction of the distance, in place."""
    if MANY_TENSORS.is_on:
        torch._foreach_lerp_(tensors, targets, fraction)
    else:
        for x, target in zip(tensors, targets, strict=True):
            x.lerp_(target, fraction)


def _try_many_tensors() -> None:
    with torch.inference_mode(False), torch.device("cpu"):
        x = [torch.ones(1), torch.zeros(2)]
        torch._foreach_mul_(x, torch.tensor(2.0))
        torch._foreach_lerp_(x, [torch.zeros(1), torch.ones(2)], 0.5)
    if [y.tolist() for y in x] != [[1.0], [0.5, 0.5]]:
        raise RuntimeError("_foreach_ functions do something else")


def _try_flat_tensors() -> None:
    with torch.inference_mode(False), torch.device("cpu"):
        parts = [torch.zeros(2), torch.ones(1, 3)]
        flat = torch._C._nn.flatten_dense_tensors(parts)
        back = torch._C._nn.unflatten_dense_tensors(flat, parts)
    if flat.tolist() != [0, 0, 1, 1, 1] or [x.shape for x in back] != [x.shape for x in parts]:
        raise RuntimeError("flatten_dense_tensors does not concatenate")


DIRECT_CALLS = Shortcut("direct calls", is_followed)
BLOCK_NODE = Shortcut("block node")
TRITON_LAUNCH = Shortcut("triton launch")
FLAT_TENSORS = Shortcut("flat tensors", _try_flat_tensors)
MANY_TENSORS = Shortcut("many tensors", _try_many_tensors)
CUDNN_ATTENTION = Shortcut("cudnn attention")
PACKED_ATTENTION = Shortcut("packed attention")
EVERY = (
    DIRECT_CALLS, BLOCK_NODE, TRITON_LAUNCH, FLAT_TENSORS, MANY_TENSORS, CUDNN_ATTENTION,
    PACKED_ATTENTION,
)  # fmt: skip
