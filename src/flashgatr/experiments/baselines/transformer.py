"""Transformer: the paper's baseline without geometry, on the same sets as GATr.

    x = x + attention(norm(x))          norm: LayerNorm over channels, without gain and bias
    x = x + mlp(norm(x))                mlp: C to mlp_ratio·C, GELU, back to C

A linear map comes before and after the blocks; there is no final norm. Heads have ⌊C / H⌋ channels;
with rotary positions, this is rounded up to an even number and is at least 16.
Shapes: B batch, N items, C channels, H heads, D channels per head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from ...batch import Sets
from ...functional import attend, rotate
from ...kernels.backend import backend
from ...kernels.paths import obstacle
from ...kernels.small_sets import small_attention
from ...precision import full_precision, stream_dtype
from .checks import Linear, checked, require_bool, require_count

_NORM_EPSILON = 1e-5
_LEAST_ROTARY_WIDTH = 16


def head_width(channels: int, num_heads: int, rotary: bool) -> int:
    """Channels per head."""
    width = channels // num_heads
    return max(width + width % 2, _LEAST_ROTARY_WIDTH) if rotary else width


class LayerNorm(nn.Module):
    """LayerNorm over channels, without parameters; with `legacy`, over channels and items.

    Releases of the authors' code before August 2024 normalise over both; presumably the paper's
    experiments did so too. For packed sets those releases use one mean and variance for all
    samples; here every sample has its own, so that samples never mix.
    """

    def __init__(self, legacy: bool = False) -> None:
        super().__init__()
        self.legacy = legacy

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        if not self.legacy:
            return F.layer_norm(x, x.shape[-1:], eps=_NORM_EPSILON)
        x = x - sets.spread(sets.mean(x.mean(-1, keepdim=True)))
        variance = sets.mean(x.square().mean(-1, keepdim=True))
        return x * sets.spread((variance + _NORM_EPSILON).rsqrt())

    def extra_repr(self) -> str:
        return "over items and channels" if self.legacy else ""


class SelfAttention(nn.Module):
    """Self-attention over a set; with `multi_query`, all heads share their keys and values."""

    def __init__(
        self,
        channels: int,
        num_heads: int,
        *,
        multi_query: bool,
        rotary_base: float | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.kv_heads = 1 if multi_query else num_heads
        self.rotary_base = rotary_base
        self.width = head_width(channels, num_heads, rotary_base is not None)
        self.qkv = Linear(channels, (num_heads + 2 * self.kv_heads) * self.width)
        self.output = Linear(num_heads * self.width, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sets: Sets, attention_mask: Tensor | None = None) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.width))  # (..., N, heads of q, k and v, D)
        q, k, v = heads.split([self.num_heads, self.kv_heads, self.kv_heads], dim=-2)
        q, k, scale = self._turn(q, sets), self._turn(k, sets), 1 / math.sqrt(self.width)
        if attention_mask is None and _are_small(q, sets):
            out = _attend_in_small_sets(q, k, v, scale)
        else:
            out = attend(
                q,
                k,
                v,
                scale=scale,
                sets=sets,
                context_sets=sets,
                attention_mask=attention_mask,
            )
        return self.dropout(self.output(out.flatten(-2)))  # type: ignore[no-any-return]

    def _turn(self, x: Tensor, sets: Sets) -> Tensor:
        if self.rotary_base is None:
            return x
        return rotate(x, sets.positions(x.device), self.rotary_base).to(x.dtype)


def _are_small(q: Tensor, sets: Sets) -> bool:
    """Whether GATr's kernel for sets of a few items can run; cuDNN's takes 3.3 ms for 25,600 sets
    of five items (H200), more than all the rest of a block.
    """
    if not (q.is_cuda and sets.is_plain):
        return False
    return q.shape[-3] <= backend(q).SMALL_SET and obstacle(q, q, q.shape[-1]) is None


def _attend_in_small_sets(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    q_THD, k_THD, v_THD = (x.reshape(-1, *x.shape[-2:]).contiguous() for x in (q, k, v))
    out: Tensor = small_attention(q_THD, k_THD, v_THD, q.shape[-3], 1, scale)
    return out.view(*q.shape[:-1], -1)


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(
        self,
        channels: int,
        num_heads: int,
        *,
        multi_query: bool,
        mlp_ratio: int,
        rotary_base: float | None,
        dropout: float,
        legacy_norm: bool,
    ) -> None:
        super().__init__()
        self.norm = LayerNorm(legacy_norm)
        self.attention = SelfAttention(
            channels, num_heads, multi_query=multi_query, rotary_base=rotary_base, dropout=dropout
        )
        self.mlp = nn.Sequential(
            Linear(channels, mlp_ratio * channels),
            nn.GELU(),
            Linear(mlp_ratio * channels, channels),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor, sets: Sets, attention_mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm(x, sets), sets, attention_mask)
        return x + self.mlp(self.norm(x, sets))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Transformer over sets of items: features (..., N, in_channels) to (..., N, out_channels).

    multi_query: all heads share their keys and values.
    mlp_ratio: width of the MLPs relative to hidden_channels.
    rotary: rotary encoding of the items' positions.
    checkpoint: recompute each block in the backward pass to save memory.
    legacy_norm: normalise over items and channels, as early releases of the authors' code did.

    >>> net = Transformer(7, 3, hidden_channels=32, num_blocks=2, num_heads=4)
    >>> net(torch.randn(8, 5, 7)).shape
    torch.Size([8, 5, 3])
    """

    item_axes = 1
    """Number of axes that count items."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 384,
        num_blocks: int = 10,
        num_heads: int = 8,
        *,
        multi_query: bool = False,
        mlp_ratio: int = 2,
        rotary: bool | tuple[bool, bool] = False,
        rotary_base: float = 4096.0,
        dropout: float = 0.0,
        checkpoint: bool = False,
        legacy_norm: bool = False,
    ) -> None:
        super().__init__()
        counts = dict(
            in_channels=in_channels,
            out_channels=out_channels,
            hidden_channels=hidden_channels,
            num_blocks=num_blocks,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
        )
        flags = dict(multi_query=multi_query, checkpoint=checkpoint, legacy_norm=legacy_norm)
        for name, value in counts.items():
            require_count(name, value)
        for name, flag in flags.items():
            require_bool(name, flag)
        if hidden_channels < num_heads:
            raise ValueError(
                f"{num_heads} heads need at least {num_heads} hidden_channels, "
                f"got {hidden_channels}"
            )
        if not (_is_number(rotary_base) and math.isfinite(rotary_base) and rotary_base > 0):
            raise ValueError(f"rotary_base must be a positive number, got {rotary_base!r}")
        if not (_is_number(dropout) and 0 <= dropout < 1):
            raise ValueError(f"dropout must be a probability in [0, 1), got {dropout!r}")
        positions = self._rotary_axes(rotary)
        self.checkpoint = checkpoint
        self.linear_in = Linear(in_channels, hidden_channels)
        self.blocks = nn.ModuleList(
            Block(
                hidden_channels,
                num_heads,
                multi_query=multi_query,
                mlp_ratio=mlp_ratio,
                rotary_base=rotary_base if positions[self._axis(i)] else None,
                dropout=dropout,
                legacy_norm=legacy_norm,
            )
            for i in range(num_blocks)
        )
        self.linear_out = Linear(hidden_channels, out_channels)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        attention_mask: Any = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
    ) -> Tensor:
        """Features (..., N, in_channels) to (..., N, out_channels).

        mask: (..., N), True for valid items; the others are ignored and their output is zero.
        attention_mask: boolean (True = may attend) or additive, (..., [heads,] N, N).
        offsets: (B + 1) for packed sets; x is then (all items, in_channels).
        max_items: size of the largest packed set, if known.
        """
        axes = ("N",) if self.item_axes == 1 else ("N1", "N2")
        x = checked(x, self.linear_in.weight, axes, self.linear_in.in_features)
        sets = Sets(
            x.shape[:-1], axes=self.item_axes, mask=mask, offsets=offsets, max_items=max_items
        )
        with full_precision(x.device):
            x = self._stream(self.linear_in(sets.keep(x)))
        x = self._run_blocks(x, sets, attention_mask)
        with full_precision(x.device):
            x = self._stream(self.linear_out(x))
        return sets.keep(x)

    def _run_blocks(self, x: Tensor, sets: Sets, attention_mask: Any) -> Tensor:
        for block in self.blocks:
            x = self._run_block(block, x, sets, attention_mask)
        return x

    def _run_block(
        self, block: nn.Module, x: Tensor, sets: Sets, attention_mask: Tensor | None
    ) -> Tensor:
        if not (self.checkpoint and torch.is_grad_enabled()):
            return block(x, sets, attention_mask)  # type: ignore[no-any-return]
        return recompute(  # type: ignore[no-any-return]
            lambda x: block(x, sets, attention_mask), x, use_reentrant=False
        )

    def _rotary_axes(self, rotary: object) -> tuple[bool, ...]:
        """Which item axes have rotary positions."""
        if isinstance(rotary, (tuple, list)):
            raise ValueError(
                f"rotary={rotary} is for two item axes; use AxialTransformer, or True or False here"
            )
        if not isinstance(rotary, bool):
            raise TypeError(f"rotary must be True or False, got {rotary!r}")
        return (rotary,)

    def _axis(self, block: int) -> int:
        """Item axis that this block attends over."""
        return 0

    def _stream(self, x: Tensor) -> Tensor:
        return x.to(stream_dtype(self.linear_in.weight.dtype))

    def __repr__(self) -> str:
        attention = self.blocks[0].attention
        assert isinstance(attention, SelfAttention)
        kind = "multi-query" if attention.kv_heads < attention.num_heads else "multi-head"
        parameters = sum(p.numel() for p in self.parameters())
        return (
            f"{type(self).__name__}({self.linear_in.in_features} -> "
            f"{self.linear_out.out_features}; {len(self.blocks)} blocks of "
            f"{self.linear_in.out_features} channels, {attention.num_heads} {kind} heads, "
            f"{parameters:,} parameters)"
        )


class AxialTransformer(Transformer):
    """Transformer over (..., N1, N2, in_channels).

    Even blocks attend over the second axis, odd blocks over the first. `rotary` is a pair, for
    positions along each of the two axes (True: both). `attention_mask` is None or a pair of masks
    for the two axes; `mask` is (..., N1, N2).
    """

    item_axes = 2

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """As `Transformer.forward`, but with two item axes and without packed sets (`offsets`)."""
        masks = options.get("attention_mask")
        if options.get("offsets") is not None:
            raise ValueError("AxialTransformer takes padded sets (mask), not packed ones (offsets)")
        if masks is not None and not (isinstance(masks, (tuple, list)) and len(masks) == 2):
            raise TypeError(
                "attention_mask of AxialTransformer must be a pair: one mask (or None) per item "
                "axis"
            )
        return super().forward(x, **options)

    def _run_blocks(self, x: Tensor, sets: Sets, attention_mask: Any) -> Tensor:
        """Swap the item axes before and after odd blocks: blocks attend over the last item axis."""
        along_first, along_second = attention_mask or (None, None)
        swapped = sets.along_first()
        for i, block in enumerate(self.blocks):
            if self._axis(i) == 1:
                x = self._run_block(block, x, sets, along_second)
            else:
                x = x.transpose(-3, -2)
                x = self._run_block(block, x, swapped, along_first)
                x = x.transpose(-3, -2)
        return x

    def _rotary_axes(self, rotary: object) -> tuple[bool, ...]:
        pair = tuple(rotary) if isinstance(rotary, (tuple, list)) else (rotary, rotary)
        if len(pair) != 2 or not all(isinstance(flag, bool) for flag in pair):
            raise TypeError(f"rotary must be True, False or a pair of them, got {rotary!r}")
        return pair

    def _axis(self, block: int) -> int:
        return (block + 1) % 2


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
