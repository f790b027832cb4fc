"""Rotary positions: scalar channel pairs (c, c + S/2) are rotated by position · base^(-2c/S).

They change only the auxiliary scalars of queries and keys, so the network stays equivariant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..precision import at_least_float32


def rotate(s: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate scalars (..., N, H, S) at integer positions (N) or (..., N); S even."""
    s = at_least_float32(s)
    return rotate_by(s, rotary_table(positions, s.shape[-1], base, s.dtype))


def rotary_table(positions: Tensor, channels: int, base: float, dtype: torch.dtype) -> Tensor:
    """Cosines, then sines, of the angles of `channels` scalar channels: (..., N, channels)."""
    half = channels // 2
    exponents = torch.arange(half, dtype=dtype, device=positions.device) / half
    angles = positions.to(dtype)[..., None] * base**-exponents
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rotate_by(s: Tensor, table: Tensor) -> Tensor:
    """Rotate scalars (..., N, H, S) by the angles of a `rotary_table` (..., N, S)."""
    cos, sin = table.unsqueeze(-2).chunk(2, dim=-1)
    first, second = s.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
