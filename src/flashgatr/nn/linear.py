"""Equivariant linear maps as a module: parameters, their initialization, checks.

The formula is `functional.linear`. Shapes: mv (..., C, 16), s (..., S).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from .. import functional
from ..algebra import BLADES, SCALAR
from ..functional.linear import MAPS, LinearWeights
from ..functional.linear import basis as basis
from ..object_types import check_parity
from ..precision import check_dtype

Initialization = Literal["default", "small", "unit_scalar", "almost_unit_scalar"]

# Variance of each map's weight times fan-in: unit variance of inputs gives unit variance of grades.
_VARIANCES = (1.0, 4.0, 6.0, 2.0, 0.5, 0.5, 1.5, 1.5, 0.5)
# Per initialization, a factor on the weights of multivector outputs and one on scalar outputs.
_FACTORS = {
    "default": (1.0, 1.0),
    "small": (0.1, 0.1),
    "unit_scalar": (0.1, 1.0),
    "almost_unit_scalar": (0.5, 1.0),
}


class EquiLinear(nn.Module):
    """Linear layer on (mv, s) that commutes with every Euclidean motion.

    `initialization`: "default" preserves the variance; "small" is a tenth as large; "unit_scalar"
    and "almost_unit_scalar" give multivectors close to 1, so that a product with them is close to
    the identity, and scalars as "default" does. Start values are distributed as in the authors'
    code, except that here the factor of multivector weights also scales their bias.

    `in_parity` and `out_parity`: types of the multivector channels, one letter each, "e" (even) or
    "o" (odd). Weights between unlike types, and between scalars and odd channels, are zero and stay
    zero. `fan_parity`: types of all channels whose maps are summed, if this is one of several.
    """

    def __init__(
        self,
        in_mv_channels: int,
        out_mv_channels: int,
        in_s_channels: int = 0,
        out_s_channels: int = 0,
        *,
        bias: bool = True,
        initialization: Initialization = "default",
        fan_in: tuple[int, int] | None = None,
        in_parity: str | None = None,
        out_parity: str | None = None,
        fan_parity: str | None = None,
    ) -> None:
        super().__init__()
        self.types: tuple[str, str] | None = None
        if in_parity is not None or out_parity is not None:
            self.types = (
                check_parity(in_parity, in_mv_channels, "in_parity"),  # type: ignore[arg-type]
                check_parity(out_parity, out_mv_channels, "out_parity"),  # type: ignore[arg-type]
            )
        self._fan_parity = in_parity if fan_parity is None else fan_parity
        self.in_mv_channels, self.out_mv_channels = in_mv_channels, out_mv_channels
        self.in_s_channels, self.out_s_channels = in_s_channels, out_s_channels
        self.weight = nn.Parameter(torch.empty(out_mv_channels, in_mv_channels, MAPS))

        def matrix(*size: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(size)) if all(size) else None

        self.s2mv = matrix(out_mv_channels, in_s_channels)
        self.mv2s = matrix(out_s_channels, in_mv_channels)
        self.s2s = matrix(out_s_channels, in_s_channels)
        self.bias_mv = matrix(out_mv_channels) if bias else None
        self.bias_s = matrix(out_s_channels) if bias else None
        self._fan_in = fan_in or (in_mv_channels, in_s_channels)
        self.reset_parameters(initialization)

    @torch.no_grad()
    def reset_parameters(
        self, initialization: Initialization = "default", rows: slice = slice(None)
    ) -> None:
        """Draw new parameters; with `rows`, only those of some multivector outputs."""
        if initialization not in _FACTORS:
            raise ValueError(
                f"unknown initialization {initialization!r}; expected one of {', '.join(_FACTORS)}"
            )
        factor, scalar_factor = _FACTORS[initialization]
        one = 1.0 if initialization.endswith("unit_scalar") else 0.0
        fan_mv, fan_s = (max(fan, 1) for fan in self._fan_in)
        share = math.sqrt(0.5) if self._fan_in[1] else 1.0  # two inputs, half the variance each
        for b, variance in enumerate(_VARIANCES):
            bound = factor * math.sqrt(variance / fan_mv) * (share if b == SCALAR else 1.0)
            self.weight[rows, :, b].uniform_(-bound, bound)
        if self.s2mv is not None:
            bound = factor * share / math.sqrt(fan_s)
            self.s2mv[rows].uniform_(-bound, bound)
        bound = 1 / math.sqrt(max(sum(self._fan_in), 1))
        if self.bias_mv is not None:
            jitter = factor * bound if self._fan_in[1] else 0.0
            self.bias_mv[rows].uniform_(one - jitter, one + jitter)
        if rows == slice(None):
            self._reset_scalar_outputs(scalar_factor, scalar_factor * bound)
        if self.types is not None:
            self._apply_types(rows)

    def _apply_types(self, rows: slice) -> None:
        """Zero the weights between unlike types; the others grow, as fewer are summed."""
        assert self.types is not None
        assert self._fan_parity is not None
        letters = self._fan_parity
        gain = {t: math.sqrt(len(letters) / max(letters.count(t), 1)) for t in "eo"}
        gains = self.weight.new_tensor([gain[t] for t in self.types[1]])
        self.weight[rows].mul_(gains[rows, None, None])
        if self.mv2s is not None and rows == slice(None):
            self.mv2s.mul_(gain["e"])
        for parameter, value in zip(self.stored, self.weights, strict=True):
            if parameter is not None and value is not None:
                parameter.copy_(value)

    def _reset_scalar_outputs(self, factor: float, bias_bound: float) -> None:
        sources = [
            (w, max(fan, 1)) for w, fan in zip((self.mv2s, self.s2s), self._fan_in, strict=True)
        ]
        used = sum(fan > 0 for fan in self._fan_in)
        for weight, fan in sources:
            if weight is not None:
                bound = factor / math.sqrt(fan * max(used, 1))
                weight.uniform_(-bound, bound)
        if self.bias_s is not None:
            self.bias_s.uniform_(-bias_bound, bias_bound)

    def forward(self, mv: Tensor, s: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if s is None:
            s = mv.new_zeros(*mv.shape[:-2], 0)
        self._check(mv, s)
        mv, s = mv.to(self.weight.dtype), s.to(self.weight.dtype)
        return functional.linear(mv, s, self.weights, self.out_s_channels)

    @property
    def weights(self) -> LinearWeights:
        """The parameters, as `functional.linear` takes them; zero between unlike types."""
        given = self.stored
        return given if self.types is None else functional.masked(given, *self.types)

    @property
    def stored(self) -> LinearWeights:
        """The parameters themselves; those between unlike types have no effect."""
        return LinearWeights(self.weight, self.s2mv, self.mv2s, self.s2s, self.bias_mv, self.bias_s)

    @property
    def unused_parameters(self) -> int:
        """The number of parameters that are zero because they connect unlike types."""
        if self.types is None:
            return 0
        (even_in, odd_in), (even_out, odd_out) = ((t.count("e"), t.count("o")) for t in self.types)
        unused = (even_out * odd_in + odd_out * even_in) * MAPS
        unused += odd_out * self.in_s_channels + odd_in * self.out_s_channels
        return unused + odd_out * (self.bias_mv is not None)

    def _check(self, mv: Tensor, s: Tensor) -> None:
        if mv.dim() < 2 or mv.shape[-2:] != (self.in_mv_channels, BLADES):
            raise ValueError(
                f"expected multivectors (..., {self.in_mv_channels}, {BLADES}), got "
                f"{tuple(mv.shape)}"
            )
        if s.shape != (*mv.shape[:-2], self.in_s_channels):
            raise ValueError(
                f"expected scalars {(*mv.shape[:-2], self.in_s_channels)}, got {tuple(s.shape)}"
            )
        check_dtype("mv", mv, self.weight.dtype, "layer")
        check_dtype("s", s, self.weight.dtype, "layer")

    def extra_repr(self) -> str:
        return (
            f"{self.in_mv_channels} mv + {self.in_s_channels} s -> "
            f"{self.out_mv_channels} mv + {self.out_s_channels} s"
            + ("" if self.types is None else ", types {} -> {}".format(*self.types))
        )
