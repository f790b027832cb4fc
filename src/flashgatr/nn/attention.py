"""Geometric attention as modules: the attention itself, self-attention and cross-attention.

The logits are dot products of the features in `functional.features`, so `functional.attend`
computes the attention in one call. Shapes: q, k, v are (..., N, H, C, 16) and (..., N, H, S),
with H = 1 for shared keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import functional
from ..algebra import BLADES
from ..batch import Sets
from ..functional import LogitWeights
from ..functional.features import head_widths, weighted_terms
from ..functional.linear import halves
from .linear import EquiLinear
from .norm import GradeDropout


class Heads(NamedTuple):
    """Queries, keys or values: multivectors (..., N, H, C, 16) and scalars (..., N, H, S)."""

    mv: Tensor
    s: Tensor


class Memory(NamedTuple):
    """Keys and values of the items of a set, as attention reads them."""

    keys: Tensor
    """(..., M, 1 or H, features)"""
    values: Tensor
    """(..., M, 1 or H, 16 C + S)"""
    channels: int
    """C, the multivector channels of a value."""
    sets: Sets | None = None
    log_weights: Tensor | None = None
    """(..., M), added to the logits."""


def _require_heads(num_heads: int) -> None:
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")


class GeometricAttention(nn.Module):
    """Attention on q, k, v. Its parameters are logarithms of the weights of the logit's terms."""

    def __init__(
        self,
        num_heads: int,
        mv_channels: int,
        s_channels: int,
        *,
        distance_aware: bool = True,
        learned_weights: str | bool = "distance",
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__()
        _require_heads(num_heads)
        self.distance_aware = distance_aware
        self.epsilon = epsilon
        self.scale = functional.attention_scale(mv_channels, s_channels, distance_aware)
        terms = weighted_terms(learned_weights)
        every, distance = terms == "all", distance_aware and terms != "none"

        def logarithm(used: bool, channels: int) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(num_heads, channels)) if used else None

        self.log_alpha = logarithm(every, 1)
        self.log_beta = logarithm(distance, mv_channels)
        self.log_gamma = logarithm(every and s_channels > 0, 1)

    def forward(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        *,
        sets: Sets | None = None,
        context_sets: Sets | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(..., N, H·C, 16) and (..., N, H·S), heads outermost."""
        memory = self.memory(k, v, context_sets if context_sets is not None else sets)
        return self.read(q, memory, sets=sets, attention_mask=attention_mask)

    def memory(
        self, k: Heads, v: Heads, sets: Sets | None = None, log_weights: Tensor | None = None
    ) -> Memory:
        """What `read` needs of keys and values."""
        values = torch.cat([v.mv.flatten(-2), v.s], dim=-1)
        keys = functional.key_features(k.mv, k.s, self.distance_aware, self.epsilon)
        return Memory(keys.to(values.dtype), values, v.mv.shape[-2], sets, log_weights)

    def read(
        self,
        q: Heads,
        memory: Memory,
        *,
        sets: Sets | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of the queries to a memory: (..., N, H·C, 16) and (..., N, H·S)."""
        channels, values = memory.channels, memory.values
        how = self.distance_aware, self.epsilon
        queries = functional.query_features(q.mv, q.s, *how, self.weights).to(values.dtype)
        out = functional.attend(
            queries,
            memory.keys,
            values,
            scale=self.scale,
            sets=sets,
            context_sets=memory.sets,
            attention_mask=attention_mask,
            log_weights=memory.log_weights,
        )
        mv, s = out.tensor_split([channels * BLADES], dim=-1)
        # (..., N, H, C·16) to (..., N, H·C, 16): heads outermost
        return mv.unflatten(-1, (channels, BLADES)).flatten(-3, -2), s.flatten(-2)

    @property
    def weights(self) -> LogitWeights:
        """The learned weights of the logit's terms."""
        return LogitWeights(self.log_alpha, self.log_beta, self.log_gamma)


class _Projected(nn.Module):
    """Shared by self- and cross-attention: the split into heads, the attention, the output map.

    The widths of a head follow from the input channels, as in the authors' code, not from the
    output channels.
    """

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        num_heads: int,
        *,
        out_mv_channels: int | None = None,
        out_s_channels: int | None = None,
        multi_query: bool = True,
        attention_width: int = 2,
        distance_aware: bool = True,
        learned_weights: str | bool = "distance",
        rotary: bool = False,
        rotary_base: float = 4096,
        dropout: float = 0.0,
        epsilon: float = 1e-3,
        parity: str | None = None,
        out_parity: str | None = None,
    ) -> None:
        super().__init__()
        _require_heads(num_heads)
        if rotary and not s_channels:
            raise ValueError("rotary positions rotate scalar channels, but hidden_s_channels is 0")
        self.num_heads = num_heads
        self.multi_query = multi_query
        self.kv_heads = 1 if multi_query else num_heads
        self.widths = head_widths(mv_channels, s_channels, num_heads, attention_width, rotary)
        self.rotary_base = rotary_base if rotary else None
        self.head_parity = None if parity is None else halves(self.widths[0])
        self.attention = GeometricAttention(
            num_heads,
            *self.widths,
            distance_aware=distance_aware,
            learned_weights=learned_weights,
            epsilon=epsilon,
        )
        self.output = EquiLinear(
            num_heads * self.widths[0],
            mv_channels if out_mv_channels is None else out_mv_channels,
            num_heads * self.widths[1],
            s_channels if out_s_channels is None else out_s_channels,
            initialization="small",
            in_parity=self._of_heads(num_heads),
            out_parity=parity if out_parity is None else out_parity,
        )
        self.dropout = GradeDropout(dropout)

    def _of_heads(self, heads: int) -> str | None:
        """Types of the channels of this many heads."""
        return None if self.head_parity is None else self.head_parity * heads

    def split_heads(self, projected: tuple[Tensor, Tensor], heads: list[int]) -> list[Heads]:
        """Split the projected channels into consecutive groups of this many heads each."""
        mv_width, s_width = self.widths
        mv, s = projected
        mvs = mv.split([n * mv_width for n in heads], dim=-2)
        ss = s.split([n * s_width for n in heads], dim=-1)
        return [
            Heads(m.unflatten(-2, (n, mv_width)), t.unflatten(-1, (n, s_width)))
            for m, t, n in zip(mvs, ss, heads, strict=True)
        ]

    def _rotate(self, x: Heads, sets: Sets | None) -> Heads:
        if self.rotary_base is None:
            return x
        sets = Sets(x.s.shape[:-2]) if sets is None else sets
        positions = sets.positions(x.s.device)
        return Heads(x.mv, functional.rotate(x.s, positions, self.rotary_base))

    def extra_repr(self) -> str:
        kind = "multi-query" if self.multi_query else "multi-head"
        return f"{self.num_heads} heads of {self.widths[0]} mv + {self.widths[1]} s, {kind}"


class SelfAttention(_Projected):
    """Attention of a set to itself; `reinsert` adds channels of the network's input to q and k.

    As in the authors' code, the multi-head variant adds re-inserted channels to the values, too.
    `out_mv_channels` and `out_s_channels` are the widths of the output (default: those of the
    input). The channels per head depend on the input's widths: `attention_width` times the input
    channels, divided among the heads. `parity`, `reinsert_parity` and `out_parity`: types of the
    channels; the first half of each head is even, the second odd.
    """

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        num_heads: int,
        *,
        reinsert_mv_channels: int = 0,
        reinsert_s_channels: int = 0,
        parity: str | None = None,
        reinsert_parity: str | None = None,
        **options: object,
    ) -> None:
        super().__init__(mv_channels, s_channels, num_heads, parity=parity, **options)  # type: ignore[arg-type]
        if parity is not None and reinsert_parity is None:
            reinsert_parity = ""
        fan_parity = None if parity is None else parity + (reinsert_parity or "")
        mv_width, s_width = self.widths
        every = num_heads + 2 * self.kv_heads
        fan_in = mv_channels + reinsert_mv_channels, s_channels + reinsert_s_channels
        self.qkv = EquiLinear(
            mv_channels,
            every * mv_width,
            s_channels,
            every * s_width,
            fan_in=fan_in,
            in_parity=parity,
            out_parity=self._of_heads(every),
            fan_parity=fan_parity,
        )
        self.reinsert: EquiLinear | None = None
        if reinsert_mv_channels or reinsert_s_channels:
            reached = num_heads + self.kv_heads if self.multi_query else every
            self.reinsert = EquiLinear(
                reinsert_mv_channels,
                reached * mv_width,
                reinsert_s_channels,
                reached * s_width,
                bias=False,
                fan_in=fan_in,
                in_parity=reinsert_parity,
                out_parity=self._of_heads(reached),
                fan_parity=fan_parity,
            )

    def forward(
        self,
        mv: Tensor,
        s: Tensor,
        reinsert: tuple[Tensor, Tensor] | None = None,
        sets: Sets | None = None,
        attention_mask: Tensor | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`memory`: what the items attend to, instead of each other; see `memory_of`."""
        q, k, v = self._project(mv, s, reinsert)
        if memory is None:
            memory = self.attention.memory(self._rotate(k, sets), v, sets)
        q = self._rotate(q, sets)
        mv, s = self.attention.read(q, memory, sets=sets, attention_mask=attention_mask)
        mv, s = self.dropout(*self.output(mv, s))
        return mv, s

    def memory_of(
        self,
        mv: Tensor,
        s: Tensor,
        reinsert: tuple[Tensor, Tensor] | None = None,
        sets: Sets | None = None,
        log_weights: Tensor | None = None,
    ) -> Memory:
        """Keys and values of these items, for items that attend to them without being read."""
        _, k, v = self._project(mv, s, reinsert)
        return self.attention.memory(self._rotate(k, sets), v, sets, log_weights)

    def _project(
        self, mv: Tensor, s: Tensor, reinsert: tuple[Tensor, Tensor] | None
    ) -> list[Heads]:
        """Queries, keys and values."""
        qkv_mv, qkv_s = self.qkv(mv, s)
        if self.reinsert is None:
            if reinsert is not None and reinsert[0].shape[-2] + reinsert[1].shape[-1]:
                raise ValueError(
                    "this attention re-inserts nothing, but got reinsert=(mv, s) with channels; "
                    "construct it with reinsert_mv_channels and reinsert_s_channels"
                )
        else:
            if reinsert is None:
                raise ValueError("this attention re-inserts input channels: pass reinsert=(mv, s)")
            more_mv, more_s = self.reinsert(*reinsert)
            qkv_mv = qkv_mv + F.pad(more_mv, (0, 0, 0, qkv_mv.shape[-2] - more_mv.shape[-2]))
            qkv_s = qkv_s + F.pad(more_s, (0, qkv_s.shape[-1] - more_s.shape[-1]))
        heads = [self.num_heads, self.kv_heads, self.kv_heads]
        return self.split_heads((qkv_mv, qkv_s), heads)


class CrossAttention(_Projected):
    """Attention of one set (mv, s) to another, the context, sample by sample.

    `out_mv_channels` and `out_s_channels` are the widths of the output (default: those of mv and
    s). The channels per head follow from the widths of mv and s, as in `SelfAttention`; in the
    authors' code they follow from those of the context. `parity`, `context_parity` (default: as
    `parity`) and `out_parity`: types of the channels.
    """

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        num_heads: int,
        *,
        context_mv_channels: int | None = None,
        context_s_channels: int | None = None,
        parity: str | None = None,
        context_parity: str | None = None,
        **options: object,
    ) -> None:
        super().__init__(mv_channels, s_channels, num_heads, parity=parity, **options)  # type: ignore[arg-type]
        context_mv = mv_channels if context_mv_channels is None else context_mv_channels
        context_s = s_channels if context_s_channels is None else context_s_channels
        mv_width, s_width = self.widths
        shared = 2 * self.kv_heads
        self.q = EquiLinear(
            mv_channels,
            num_heads * mv_width,
            s_channels,
            num_heads * s_width,
            in_parity=parity,
            out_parity=self._of_heads(num_heads),
        )
        self.kv = EquiLinear(
            context_mv,
            shared * mv_width,
            context_s,
            shared * s_width,
            in_parity=parity if context_parity is None else context_parity,
            out_parity=self._of_heads(shared),
        )

    def forward(
        self,
        mv: Tensor,
        s: Tensor,
        context_mv: Tensor,
        context_s: Tensor,
        *,
        sets: Sets | None = None,
        context_sets: Sets | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        (q,) = self.split_heads(self.q(mv, s), [self.num_heads])
        k, v = self.split_heads(self.kv(context_mv, context_s), [self.kv_heads, self.kv_heads])
        if context_sets is None:
            context_sets = Sets(context_mv.shape[:-2])
        mv, s = self.attention(
            self._rotate(q, sets),
            self._rotate(k, context_sets),
            v,
            sets=sets,
            context_sets=context_sets,
            attention_mask=attention_mask,
        )
        mv, s = self.dropout(*self.output(mv, s))
        return mv, s
