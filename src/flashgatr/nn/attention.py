"""Geometric attention: one dot product of features that add up to invariants.

    logit = [ α Σ_c ⟨q, k⟩ - β_c Σ_c ‖k̂₀ q̂ - q̂₀ k̂‖² + γ Σ q_s k_s ] / √(12 C + S)

⟨q, k⟩ runs over the seven blades without e0 and e123; (q̂₀, q̂) is the trivector (e123, point part) times
ω(q₀) = q₀ / (q₀² + ε), a point of weight near one, so that the second term is minus its squared distance. Written out,
that term is the dot product of five features per channel, and the whole logit is one fused attention call.
Without distance awareness: ⟨q, k⟩ over all eight blades, scale √(8 C + S).

Shapes: inside, q, k, v are (..., N, H, C, 16) and (..., N, H, S); H = 1 for shared keys and values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algebra import BLADES, E123, EUCLIDEAN, POINT
from ..batch import Sets
from ..constants import indices
from .attend import attend as attend
from .linear import EquiLinear
from .norm import GradeDropout
from .precision import at_least_float32
from .rotary import rotate

_WITHOUT_E123 = tuple(i for i in EUCLIDEAN if i != E123)
_DISTANCE_FEATURES = 5
LEARNED_WEIGHTS = ("none", "distance", "all")


class Heads(NamedTuple):
    """Multivectors (..., N, H, C, 16) and scalars (..., N, H, S) of one of q, k, v."""

    mv: Tensor
    s: Tensor


def head_widths(
    mv_channels: int, s_channels: int, num_heads: int, width: int, rotary: bool
) -> tuple[int, int]:
    """Multivector and scalar channels per head, by the rule of the authors' code."""
    mv = max(width * mv_channels // num_heads, 1)
    s = max(width * s_channels // num_heads, 4) if s_channels else 0
    if rotary and s:
        s = max(s + s % 2, 8)
    return mv, s


def weighted_terms(learned_weights: str | bool) -> str:
    """Which terms of the logit have learned weights: one of LEARNED_WEIGHTS; True is "distance", False "none"."""
    if isinstance(learned_weights, bool):
        return "distance" if learned_weights else "none"
    if learned_weights not in LEARNED_WEIGHTS:
        raise ValueError(
            f"unknown learned_weights {learned_weights!r}; expected one of "
            f"{', '.join(LEARNED_WEIGHTS)}"
        )
    return learned_weights


def _require_heads(num_heads: int) -> None:
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")


class GeometricAttention(nn.Module):
    """Attention of q to k, carrying v. Holds the learned weights of the logit's terms, as logarithms."""

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
        features = (len(_WITHOUT_E123) + _DISTANCE_FEATURES) if distance_aware else len(EUCLIDEAN)
        self.scale = 1 / math.sqrt(features * mv_channels + s_channels)
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
        channels = v.mv.shape[-2]
        values = torch.cat([v.mv.flatten(-2), v.s], dim=-1)
        queries = self._features(q, as_query=True).to(values.dtype)
        keys = self._features(k, as_query=False).to(values.dtype)
        out = attend(
            queries,
            keys,
            values,
            scale=self.scale,
            sets=sets,
            context_sets=context_sets if context_sets is not None else sets,
            attention_mask=attention_mask,
        )
        mv, s = out.split([channels * BLADES, v.s.shape[-1]], dim=-1)
        # (..., N, H, C·16) to (..., N, H·C, 16): heads outermost
        return mv.unflatten(-1, (channels, BLADES)).flatten(-3, -2), s.flatten(-2)

    def _features(self, x: Heads, as_query: bool) -> Tensor:
        """(..., N, H, features). The learned weights enter on the query's side."""
        mv, s = at_least_float32(x.mv), at_least_float32(x.s)
        blades = _WITHOUT_E123 if self.distance_aware else EUCLIDEAN
        parts = [mv.index_select(-1, indices(blades, mv)).flatten(-2)]
        if as_query and self.log_alpha is not None:
            parts[0] = parts[0] * self.log_alpha.exp()
        if self.distance_aware:
            distance = _distance_features(mv, self.epsilon, as_query)
            if as_query and self.log_beta is not None:
                distance = distance * self.log_beta.exp().unsqueeze(-1)
            parts.append(distance.flatten(-2))
        parts.append(s * self.log_gamma.exp() if as_query and self.log_gamma is not None else s)
        return torch.cat(parts, dim=-1)


def _distance_features(mv: Tensor, epsilon: float, as_query: bool) -> Tensor:
    """(..., 5): φ(q) and ψ(k) with φ·ψ = -‖k₀ q - q₀ k‖² of the normalised trivectors."""
    weight = mv[..., E123, None]
    omega = weight / (weight * weight + epsilon)
    point = mv.index_select(-1, indices(POINT, mv)) * omega
    weight = weight * omega
    squared = (point * point).sum(-1, keepdim=True)
    if as_query:
        return torch.cat([weight * weight, squared, weight * point], dim=-1)
    return torch.cat([-squared, -weight * weight, 2 * weight * point], dim=-1)


class _Projected(nn.Module):
    """What self- and cross-attention share: head splitting, the attention itself, the output map."""

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        num_heads: int,
        *,
        multi_query: bool = True,
        attention_width: int = 2,
        distance_aware: bool = True,
        learned_weights: str | bool = "distance",
        rotary: bool = False,
        rotary_base: float = 4096,
        dropout: float = 0.0,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__()
        _require_heads(num_heads)
        if rotary and not s_channels:
            raise ValueError("rotary positions turn scalar channels, but hidden_s_channels is 0")
        self.num_heads = num_heads
        self.multi_query = multi_query
        self.kv_heads = 1 if multi_query else num_heads
        self.widths = head_widths(mv_channels, s_channels, num_heads, attention_width, rotary)
        self.rotary_base = rotary_base if rotary else None
        self.attention = GeometricAttention(
            num_heads,
            *self.widths,
            distance_aware=distance_aware,
            learned_weights=learned_weights,
            epsilon=epsilon,
        )
        self.output = EquiLinear(
            num_heads * self.widths[0],
            mv_channels,
            num_heads * self.widths[1],
            s_channels,
            initialization="small",
        )
        self.dropout = GradeDropout(dropout)

    def _split(self, projected: tuple[Tensor, Tensor], heads: list[int]) -> list[Heads]:
        """Consecutive groups of heads of the projected channels."""
        mv_width, s_width = self.widths
        mv, s = projected
        mvs = mv.split([n * mv_width for n in heads], dim=-2)
        ss = s.split([n * s_width for n in heads], dim=-1)
        return [
            Heads(m.unflatten(-2, (n, mv_width)), t.unflatten(-1, (n, s_width)))
            for m, t, n in zip(mvs, ss, heads, strict=True)
        ]

    def _turn(self, x: Heads, sets: Sets | None) -> Heads:
        if self.rotary_base is None:
            return x
        sets = Sets(x.s.shape[:-2]) if sets is None else sets
        positions = sets.positions(x.s.device)
        return Heads(x.mv, rotate(x.s, positions, self.rotary_base))

    def extra_repr(self) -> str:
        kind = "multi-query" if self.multi_query else "multi-head"
        return f"{self.num_heads} heads of {self.widths[0]} mv + {self.widths[1]} s, {kind}"


class SelfAttention(_Projected):
    """Attention of a set to itself. `reinsert` channels of the network's input join queries and keys.

    As in the authors' code, re-inserted channels reach the values too in the multi-head variant.
    """

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        num_heads: int,
        *,
        reinsert_mv_channels: int = 0,
        reinsert_s_channels: int = 0,
        **options: object,
    ) -> None:
        super().__init__(mv_channels, s_channels, num_heads, **options)  # type: ignore[arg-type]
        mv_width, s_width = self.widths
        every = num_heads + 2 * self.kv_heads
        fan_in = mv_channels + reinsert_mv_channels, s_channels + reinsert_s_channels
        self.qkv = EquiLinear(
            mv_channels, every * mv_width, s_channels, every * s_width, fan_in=fan_in
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
            )

    def forward(
        self,
        mv: Tensor,
        s: Tensor,
        reinsert: tuple[Tensor, Tensor] | None = None,
        sets: Sets | None = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        qkv_mv, qkv_s = self.qkv(mv, s)
        if self.reinsert is None:
            if reinsert is not None and reinsert[0].shape[-2] + reinsert[1].shape[-1]:
                raise ValueError(
                    "this attention re-inserts nothing, but got reinsert=(mv, s) with channels; make "
                    "it with reinsert_mv_channels and reinsert_s_channels"
                )
        else:
            if reinsert is None:
                raise ValueError("this attention re-inserts input channels: pass reinsert=(mv, s)")
            more_mv, more_s = self.reinsert(*reinsert)
            qkv_mv = qkv_mv + F.pad(more_mv, (0, 0, 0, qkv_mv.shape[-2] - more_mv.shape[-2]))
            qkv_s = qkv_s + F.pad(more_s, (0, qkv_s.shape[-1] - more_s.shape[-1]))
        q, k, v = self._split((qkv_mv, qkv_s), [self.num_heads, self.kv_heads, self.kv_heads])
        q, k = self._turn(q, sets), self._turn(k, sets)
        mv, s = self.attention(q, k, v, sets=sets, attention_mask=attention_mask)
        mv, s = self.dropout(*self.output(mv, s))
        return mv, s


class CrossAttention(_Projected):
    """Attention of one set (mv, s) to another, the context; each sample of one to the same sample of the other."""

    def __init__(
        self,
        mv_channels: int,
        s_channels: int,
        num_heads: int,
        *,
        context_mv_channels: int | None = None,
        context_s_channels: int | None = None,
        **options: object,
    ) -> None:
        super().__init__(mv_channels, s_channels, num_heads, **options)  # type: ignore[arg-type]
        context_mv = mv_channels if context_mv_channels is None else context_mv_channels
        context_s = s_channels if context_s_channels is None else context_s_channels
        mv_width, s_width = self.widths
        shared = 2 * self.kv_heads
        self.q = EquiLinear(mv_channels, num_heads * mv_width, s_channels, num_heads * s_width)
        self.kv = EquiLinear(context_mv, shared * mv_width, context_s, shared * s_width)

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
        (q,) = self._split(self.q(mv, s), [self.num_heads])
        k, v = self._split(self.kv(context_mv, context_s), [self.kv_heads, self.kv_heads])
        if context_sets is None:
            context_sets = Sets(context_mv.shape[:-2])
        mv, s = self.attention(
            self._turn(q, sets),
            self._turn(k, context_sets),
            v,
            sets=sets,
            context_sets=context_sets,
            attention_mask=attention_mask,
        )
        mv, s = self.dropout(*self.output(mv, s))
        return mv, s
