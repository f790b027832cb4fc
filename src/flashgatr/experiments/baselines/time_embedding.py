"""The diffusion step as features: sines and cosines of many frequencies, and a small network.

sin(ω_k t), cos(ω_k t)  for  ω_k = 10000^(-k / (n - 1)),  k = 0, ..., n - 1;  Linear, Mish, Linear
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...precision import full_precision
from .checks import Linear, require_count

_LOWEST = 1e4


def sinusoids(t: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines (B, channels) of steps t (B); all sines come first."""
    half = channels // 2
    k = torch.arange(half, device=t.device, dtype=dtype) / (half - 1)
    angles = t.to(dtype)[:, None] * torch.exp(-math.log(_LOWEST) * k)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class TimeEmbedding(nn.Module):
    """Diffusion steps (B) to features (B, out_channels).

    >>> TimeEmbedding(8, 3)(torch.tensor([0, 999])).shape
    torch.Size([2, 3])
    """

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        require_count("channels", channels, least=4)
        require_count("out_channels", out_channels)
        if channels % 2:
            raise ValueError(f"channels must be even, one half is of sines, got {channels}")
        self.channels = channels
        self.net = nn.Sequential(
            Linear(channels, 4 * channels), nn.Mish(), Linear(4 * channels, out_channels)
        )

    def forward(self, t: Tensor) -> Tensor:
        first = self.net[0]
        assert isinstance(first, Linear)
        with full_precision(t.device):  # angles of up to 1000 have no digits left in 16 bits
            found = sinusoids(t, self.channels, first.weight.dtype)
            return self.net(found)  # type: ignore[no-any-return]
