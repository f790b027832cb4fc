"""Equivariant normalisation, gate and dropout: the layers without parameters.

norm      x / √max(mean_c ⟨x, x⟩, ε);  scalars: LayerNorm without gain or bias
gate      GELU(⟨x⟩_0) x;               scalars: GELU
dropout   whole grades of a channel at a time; scalars: ordinary dropout
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algebra import EUCLIDEAN, GRADES, PGA, SCALAR
from ..constants import indices
from .precision import at_least_float32

_GRADE_OF = PGA.grades


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


# name: (gate of the multivectors, activation of the scalars)
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "gelu": (_gelu_tanh, F.gelu),
    "relu": (F.relu, F.relu),
    "sigmoid": (torch.sigmoid, torch.sigmoid),
}


class EquiLayerNorm(nn.Module):
    """Divide multivectors by their root-mean-square invariant norm over channels."""

    def __init__(self, epsilon: float = 0.01) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        mv, s = at_least_float32(mv), at_least_float32(s)
        squared = mv.index_select(-1, indices(EUCLIDEAN, mv)).square().sum(-1)
        mean = squared.mean(-1).clamp(min=self.epsilon)
        mv = mv * mean.rsqrt()[..., None, None]
        if s.shape[-1]:
            s = F.layer_norm(s, s.shape[-1:])
        return mv, s

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}"


class ScalarGate(nn.Module):
    """Multiply every multivector by an activation of its scalar part."""

    def __init__(self, activation: str = "gelu") -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {activation!r}; expected one of {', '.join(ACTIVATIONS)}"
            )
        self.activation = activation

    def forward(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        gate, activate = ACTIVATIONS[self.activation]
        return gate(mv[..., SCALAR, None]) * mv, activate(s)

    def extra_repr(self) -> str:
        return self.activation


class GradeDropout(nn.Module):
    """Drop each grade of each channel with probability p, which no rotation or shift can see."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout probability must be in [0, 1), got {p}")
        self.p = p

    def forward(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        if not self.training or self.p == 0.0:
            return mv, s
        kept = F.dropout(mv.new_ones(*mv.shape[:-1], GRADES), self.p)
        return mv * kept.index_select(-1, indices(_GRADE_OF, mv)), F.dropout(s, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
