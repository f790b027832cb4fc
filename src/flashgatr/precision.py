"""The precision policy, in one place.

- Residual stream, norms, centroid, distance features and multivector products: float32 at least.
- Dense products and attention: the parameters' dtype, or autocast's.
- First and last linear map: the parameters' dtype, also under autocast. With float32 parameters the
  network's inputs therefore reach its outputs on a path that never rounds to 16 bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 if it has 16 bits, else unchanged."""
    return x.to(stream_dtype(x.dtype))


def stream_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the residual stream of a network whose parameters have this dtype."""
    return torch.promote_types(dtype, torch.float32)


def check_tensor(name: str, x: object) -> None:
    """Refuse lists, numbers and arrays where a tensor of numbers is expected."""
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a tensor, got {type(x).__name__}; convert it with "
            "torch.tensor(..., dtype=torch.float32)"
        )


def check_dtype(name: str, x: Tensor, dtype: torch.dtype, owner: str) -> None:
    """Refuse integers, and float64 mixed with lower precision; 16-bit and float32 may be mixed."""
    if not x.is_floating_point() or stream_dtype(x.dtype) != stream_dtype(dtype):
        raise TypeError(
            f"{name} has dtype {x.dtype}, the {owner} {dtype}; cast one of them, for example "
            f"{name}.to({dtype})"
        )


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast is disabled."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
