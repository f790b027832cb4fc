"""Rotary positions: scalar channel pairs (c, c + S/2) are rotated by position · base^(-2c/S).

They change only the auxiliary scalars of queries and keys, so the network stays equivariant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..precision import at_least_float32


def rotate(s: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate scalars (..., N, H, S) at integer positions (N) or (..., N); S even."""
    half = s.shape[-1] // 2
    s = at_least_float32(s)
    exponents = torch.arange(half, dtype=s.dtype, device=s.device) / half
    angles = positions.to(s.dtype)[..., None, None] * base**-exponents
    cos, sin = angles.cos(), angles.sin()
    first, second = s[..., :half], s[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
