"""Features of geometric attention: the dot product of two features is a sum of invariants.

    logit = [ α Σ_c ⟨q, k⟩ - β_c Σ_c ‖k̂₀ q̂ - q̂₀ k̂‖² + γ Σ q_s k_s ] / √(12 C + S)

⟨q, k⟩ runs over the seven blades without e0 and e123. (q̂₀, q̂) is the trivector (e123, point
part) times ω(q₀) = q₀ / (q₀² + ε): a point of weight near one. The second term is therefore minus
a squared distance. It expands to the dot product of five features per channel, so the whole logit
is one dot product, and one fused attention call computes it. Without distance awareness, ⟨q, k⟩
runs over all eight blades, and the scale is √(8 C + S).

Shapes: multivectors (..., N, H, C, 16), scalars (..., N, H, S); H = 1 for shared keys.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..algebra import E123, EUCLIDEAN, POINT
from ..constants import indices
from ..precision import at_least_float32

WITHOUT_E123 = tuple(i for i in EUCLIDEAN if i != E123)
"""Blades of the inner product in distance-aware attention."""
DISTANCE_FEATURES = 5
"""w², ‖p‖² and w p of a point p of weight w."""

LEARNED_WEIGHTS = ("none", "distance", "all")
"""Which terms of the logit have learned weights."""


class LogitWeights(NamedTuple):
    """Logarithms of the learned weights of the logit's terms; None for a weight of one."""

    log_alpha: Tensor | None = None
    """(H, 1)"""
    log_beta: Tensor | None = None
    """(H, C)"""
    log_gamma: Tensor | None = None
    """(H, 1)"""


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
    """One of LEARNED_WEIGHTS; True means "distance", False "none"."""
    if isinstance(learned_weights, bool):
        return "distance" if learned_weights else "none"
    if learned_weights not in LEARNED_WEIGHTS:
        raise ValueError(
            f"unknown learned_weights {learned_weights!r}; expected one of "
            f"{', '.join(LEARNED_WEIGHTS)}"
        )
    return learned_weights


def inner_blades(distance_aware: bool) -> tuple[int, ...]:
    """Blades whose inner product is a term of the logit."""
    return WITHOUT_E123 if distance_aware else EUCLIDEAN


def features_per_channel(distance_aware: bool) -> int:
    """Features of one multivector channel."""
    return len(inner_blades(distance_aware)) + DISTANCE_FEATURES * distance_aware


def attention_scale(mv_channels: int, s_channels: int, distance_aware: bool) -> float:
    """The factor of the dot product of features; the channels are those of one head."""
    return 1 / math.sqrt(features_per_channel(distance_aware) * mv_channels + s_channels)


def query_features(
    mv: Tensor,
    s: Tensor,
    distance_aware: bool = True,
    epsilon: float = 1e-3,
    weights: LogitWeights = LogitWeights(),  # noqa: B008  immutable
) -> Tensor:
    """Features of queries, (..., N, H, features); they include the learned weights."""
    mv, s = at_least_float32(mv), at_least_float32(s)
    parts = [mv.index_select(-1, indices(inner_blades(distance_aware), mv)).flatten(-2)]
    if weights.log_alpha is not None:
        parts[0] = parts[0] * weights.log_alpha.exp()
    if distance_aware:
        weight, point = _normalised_point(mv, epsilon)
        squared = (point * point).sum(-1, keepdim=True)
        distance = torch.cat([weight * weight, squared, weight * point], dim=-1)
        if weights.log_beta is not None:
            distance = distance * weights.log_beta.exp().unsqueeze(-1)
        parts.append(distance.flatten(-2))
    parts.append(s if weights.log_gamma is None else s * weights.log_gamma.exp())
    return torch.cat(parts, dim=-1)


def key_features(
    mv: Tensor, s: Tensor, distance_aware: bool = True, epsilon: float = 1e-3
) -> Tensor:
    """Features of keys, (..., N, H, features)."""
    mv, s = at_least_float32(mv), at_least_float32(s)
    parts = [mv.index_select(-1, indices(inner_blades(distance_aware), mv)).flatten(-2)]
    if distance_aware:
        weight, point = _normalised_point(mv, epsilon)
        squared = (point * point).sum(-1, keepdim=True)
        distance = torch.cat([-squared, -weight * weight, 2 * weight * point], dim=-1)
        parts.append(distance.flatten(-2))
    return torch.cat([*parts, s], dim=-1)


def _normalised_point(mv: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Weight (..., 1), near one, and point part (..., 3) of every multivector's trivector."""
    weight = mv[..., E123, None]
    omega = weight / (weight * weight + epsilon)
    point = mv.index_select(-1, indices(POINT, mv)) * omega
    return weight * omega, point
