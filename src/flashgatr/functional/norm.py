"""Equivariant normalisation, gate and dropout: the formulas without parameters.

    layer_norm   x / √max(mean_c ⟨x, x⟩, ε);  scalars: LayerNorm without gain or bias
    gate         GELU(⟨x⟩_0) x;               scalars: GELU
    dropout      whole grades of a channel at a time; scalars: ordinary dropout

Shapes: mv (..., C, 16), s (..., S).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algebra import EUCLIDEAN, GRADES, PGA, SCALAR
from ..constants import indices
from ..precision import at_least_float32

SCALAR_NORM_EPSILON = 1e-5
"""Added to the variance of the scalars."""
GELU_CUBIC = 0.044715
"""tanh form of GELU: x/2 (1 + tanh(√(2/π) (x + GELU_CUBIC x³)))."""
GELU_SLOPE = math.sqrt(2 / math.pi)
_GRADE_OF = PGA.grades


class Activation(NamedTuple):
    """The functions that a gate applies to the scalar parts of multivectors and to scalars."""

    gate: Callable[[Tensor], Tensor]
    scalars: Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {
    "gelu": Activation(_gelu_tanh, F.gelu),
    "relu": Activation(F.relu, F.relu),
    "sigmoid": Activation(torch.sigmoid, torch.sigmoid),
}
"""Activations by name. Kernels identify an activation by its position in this table."""


def layer_norm(mv: Tensor, s: Tensor, epsilon: float = 0.01) -> tuple[Tensor, Tensor]:
    """Divide multivectors by their root-mean-square invariant norm over channels."""
    mv, s = at_least_float32(mv), at_least_float32(s)
    squared = mv.index_select(-1, indices(EUCLIDEAN, mv)).square().sum(-1)
    mean = squared.mean(-1).clamp(min=epsilon)
    mv = mv * mean.rsqrt()[..., None, None]
    if s.shape[-1]:
        s = F.layer_norm(s, s.shape[-1:], eps=SCALAR_NORM_EPSILON)
    return mv, s


def gate(
    mv: Tensor, s: Tensor, activation: str = "gelu", is_typed: bool = False
) -> tuple[Tensor, Tensor]:
    """Multiply every multivector by an activation of its scalar part.

    is_typed: the first half of the channels is even, the second odd. The scalar part of an odd
    channel changes sign under mirrors, so the channel takes the gate of its even partner.
    """
    chosen = ACTIVATIONS[activation]
    if is_typed:
        if mv.shape[-2] % 2:
            raise ValueError(
                f"a gate with types needs as many even as odd channels, got {mv.shape[-2]} "
                "channels; give it an even number of them"
            )
        gates = chosen.gate(mv[..., : mv.shape[-2] // 2, SCALAR, None])
        return torch.cat([gates, gates], dim=-2) * mv, chosen.scalars(s)
    return chosen.gate(mv[..., SCALAR, None]) * mv, chosen.scalars(s)


def dropout(mv: Tensor, s: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Drop each grade of each channel with probability p; this commutes with Euclidean motions."""
    kept = F.dropout(mv.new_ones(*mv.shape[:-1], GRADES), p)
    return mv * kept.index_select(-1, indices(_GRADE_OF, mv)), F.dropout(s, p)
