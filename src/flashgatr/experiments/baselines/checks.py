"""Checks of a baseline's arguments and input, and a linear layer that accepts any precision."""

from __future__ import annotations

import torch
from torch import Tensor

from ...precision import stream_dtype


def require_count(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def require_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def checked(x: Tensor, weight: Tensor, axes: tuple[str, ...], channels: int) -> Tensor:
    """x (..., *axes, channels) in the residual stream's dtype, after checking shape, dtype and
    device. `weight` is a parameter of the network.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor, got {type(x).__name__}; make one with torch.as_tensor")
    if x.dim() <= len(axes) or x.shape[-1] != channels:
        expected = ", ".join(("...", *axes, str(channels)))
        raise ValueError(f"expected features ({expected}), got {tuple(x.shape)}")
    dtype = stream_dtype(weight.dtype)
    if not x.is_floating_point() or stream_dtype(x.dtype) != dtype:
        raise TypeError(
            f"the input has dtype {x.dtype}, the network {weight.dtype}; cast one of them, for "
            f"example x.to({weight.dtype})"
        )
    if x.device != weight.device:
        raise ValueError(
            f"the input is on {x.device}, the network on {weight.device}; move one with .to()"
        )
    return x.to(dtype)


class Linear(torch.nn.Linear):
    """nn.Linear that casts its input: the residual stream may have more bits than the weights."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))
