"""TemporalUNet: the denoiser of Diffuser (Janner et al., 2022), a U-Net over time.

    residual block   x -> conv, norm, Mish;  + Linear(Mish(time));  conv, norm, Mish;  + x
    level            two residual blocks, linear attention, then half (or twice) the frames

Convolutions have width 5 and norms 8 groups. Linear attention takes the softmax of keys over time
and is a sum over frames, so its cost is linear in their number. All numbers of a frame are
channels, so the network knows neither objects nor directions.
Shapes: B batch, H frames, D numbers per frame, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from .checks import checked, require_count
from .time_embedding import TimeEmbedding

_WIDTH = 5
_GROUPS = 8
_HEADS, _HEAD_WIDTH = 4, 32


class ConvBlock(nn.Sequential):
    """Convolution over time, norm and Mish: (B, C, H) to (B, C', H)."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv1d(channels, out_channels, _WIDTH, padding=_WIDTH // 2),
            nn.GroupNorm(_GROUPS, out_channels),
            nn.Mish(),
        )


class ResidualBlock(nn.Module):
    """Two convolutions with the time between them, beside a shortcut."""

    def __init__(self, channels: int, out_channels: int, time_channels: int) -> None:
        super().__init__()
        self.first = ConvBlock(channels, out_channels)
        self.time = nn.Sequential(nn.Mish(), nn.Linear(time_channels, out_channels))
        self.second = ConvBlock(out_channels, out_channels)
        same = channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv1d(channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(time).unsqueeze(-1)
        return self.second(hidden) + self.shortcut(x)  # type: ignore[no-any-return]


class LinearAttention(nn.Module):
    """x + attention(norm(x)) over time, without a matrix of frames by frames."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = _HEADS * _HEAD_WIDTH
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Conv1d(channels, 3 * inner, 1, bias=False)
        self.output = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x.mT).mT
        q, k, v = self.qkv(rows).unflatten(1, (3, _HEADS, _HEAD_WIDTH)).unbind(1)  # (B, 4, 32, H)
        summary = k.softmax(-1).to(v.dtype) @ v.mT  # (B, 4, 32, 32)
        found = summary.mT @ (q * _HEAD_WIDTH**-0.5)
        return x + self.output(found.flatten(1, 2))  # type: ignore[no-any-return]


class Level(nn.Module):
    """Two residual blocks and attention; `resize` then changes the number of frames."""

    def __init__(self, channels: int, out_channels: int, time_channels: int, resize: nn.Module):
        super().__init__()
        self.first = ResidualBlock(channels, out_channels, time_channels)
        self.second = ResidualBlock(out_channels, out_channels, time_channels)
        self.attention = LinearAttention(out_channels)
        self.resize = resize

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """The result before and after the change of the number of frames."""
        x = self.attention(self.second(self.first(x, time), time))
        return x, self.resize(x)


class Middle(nn.Module):
    """A residual block, attention, a residual block."""

    def __init__(self, channels: int, time_channels: int) -> None:
        super().__init__()
        self.first = ResidualBlock(channels, channels, time_channels)
        self.attention = LinearAttention(channels)
        self.second = ResidualBlock(channels, channels, time_channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.second(self.attention(self.first(x, time)), time)  # type: ignore[no-any-return]


class TemporalUNet(nn.Module):
    """Trajectories (B, H, D) and diffusion steps (B) to (B, H, D).

    factors: channels of the levels relative to hidden_channels. H must be divisible by 2 for every
    level but the last.

    >>> net = TemporalUNet(6, hidden_channels=8, factors=(1, 2))
    >>> net(torch.randn(2, 4, 6), torch.tensor([0, 999])).shape
    torch.Size([2, 4, 6])
    """

    def __init__(
        self, channels: int, hidden_channels: int = 128, factors: Sequence[int] = (1, 2, 4, 8)
    ) -> None:
        super().__init__()
        for name, value in dict(channels=channels, hidden_channels=hidden_channels).items():
            require_count(name, value)
        for factor in factors:
            require_count("a factor", factor)
        if len(factors) < 2 or hidden_channels % _GROUPS:
            raise ValueError(
                f"TemporalUNet needs two factors or more and hidden_channels divisible by "
                f"{_GROUPS}, got factors={factors!r} and hidden_channels={hidden_channels}"
            )
        self.channels, self.stride = channels, 2 ** (len(factors) - 1)
        self.time = TimeEmbedding(hidden_channels, hidden_channels)
        widths = [channels, *(factor * hidden_channels for factor in factors)]
        last = len(factors) - 1
        self.down = nn.ModuleList(
            Level(narrow, wide, hidden_channels, nn.Identity() if i == last else _halving(wide))
            for i, (narrow, wide) in enumerate(pairwise(widths))
        )
        self.middle = Middle(widths[-1], hidden_channels)
        self.up = nn.ModuleList(
            Level(2 * wide, narrow, hidden_channels, _doubling(narrow))
            for narrow, wide in zip(widths[-2:0:-1], widths[:1:-1], strict=True)
        )
        self.output = nn.Sequential(
            ConvBlock(widths[1], hidden_channels), nn.Conv1d(hidden_channels, channels, 1)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        weight = self.output[-1].weight
        assert isinstance(weight, Tensor)
        x = checked(x, weight, ("H",), self.channels)
        if x.dim() != 3 or x.shape[1] % self.stride:
            raise ValueError(
                f"expected trajectories (B, H, {self.channels}) with H divisible by {self.stride}, "
                f"got {tuple(x.shape)}; cut them or pad them"
            )
        time = self.time(t)
        h, before = x.mT, []
        for level in self.down:
            kept, h = level(h, time)
            before.append(kept)
        h = self.middle(h, time)
        for level in self.up:
            _, h = level(torch.cat([h, before.pop()], dim=1), time)
        return self.output(h).mT.to(x.dtype)  # type: ignore[no-any-return]


def _halving(channels: int) -> nn.Module:
    return nn.Conv1d(channels, channels, 3, stride=2, padding=1)


def _doubling(channels: int) -> nn.Module:
    return nn.ConvTranspose1d(channels, channels, 4, stride=2, padding=1)
