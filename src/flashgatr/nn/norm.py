"""Norm, gate and dropout as modules without parameters; the formulas are in `functional.norm`."""

from __future__ import annotations

from torch import Tensor, nn

from .. import functional
from ..functional import ACTIVATIONS


class EquiLayerNorm(nn.Module):
    """Divide multivectors by their root-mean-square invariant norm over channels."""

    def __init__(self, epsilon: float = 0.01) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return functional.layer_norm(mv, s, self.epsilon)

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}"


class ScalarGate(nn.Module):
    """Multiply every multivector by an activation of its scalar part.

    is_typed: the second half of the channels is odd, and each takes the gate of its even partner in
    the first half.
    """

    def __init__(self, activation: str = "gelu", *, is_typed: bool = False) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {activation!r}; expected one of {', '.join(ACTIVATIONS)}"
            )
        self.activation, self.is_typed = activation, is_typed

    def forward(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return functional.gate(mv, s, self.activation, self.is_typed)

    def extra_repr(self) -> str:
        return self.activation + ", with types" * self.is_typed


class GradeDropout(nn.Module):
    """Drop each grade of each channel with probability p; this commutes with Euclidean motions."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout probability must be in [0, 1), got {p}")
        self.p = p

    def forward(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        if not self.training or self.p == 0.0:
            return mv, s
        return functional.dropout(mv, s, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
