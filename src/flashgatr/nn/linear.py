"""Equivariant linear maps (paper, proposition 1) with auxiliary scalars mixed in.

    y = Σ_k w_k ⟨x⟩_k + Σ_k v_k e0 ⟨x⟩_k,        k = 0..4 and 0..3: nine numbers per channel pair

    y's scalar part also receives  S s + bias;     the scalars out are  A s + B ⟨x⟩_0 + bias.

Each of the nine maps is divided by its Frobenius norm, so that `weight` trains and converts as in the authors' code.
Shapes: mv (..., C, K), s (..., S); inside, T items and K = 16 blades lead: x_KTC.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algebra import BLADES, E0, EUCLIDEAN, GRADES, NULL, PGA, SCALAR
from ..constants import constant, indices
from .precision import check_dtype

Initialization = Literal["default", "small", "unit_scalar", "almost_unit_scalar"]

MAPS = 2 * GRADES - 1
_NORMS = tuple(math.sqrt(PGA.grades.count(k)) for k in range(GRADES)) + tuple(
    math.sqrt(sum(PGA.grades[i] == k for i in EUCLIDEAN)) for k in range(GRADES - 1)
)
SCALES = tuple(1 / norm for norm in _NORMS)
_GRADE_OF = PGA.grades
_SHIFT_OF = tuple(GRADES + PGA.grades[i] for i in EUCLIDEAN)

# Variance of each map's weight, in units of 1/fan-in: unit variance in every grade for unit input.
_VARIANCES = (1.0, 4.0, 6.0, 2.0, 0.5, 0.5, 1.5, 1.5, 0.5)
_FACTORS = {"default": 1.0, "small": 0.1, "unit_scalar": 0.1, "almost_unit_scalar": 0.5}


def basis() -> Tensor:
    """The nine normalised maps as matrices (9, 16, 16), float64: y = basis[b] @ x.

    >>> basis().shape
    torch.Size([9, 16, 16])
    """
    maps = torch.zeros(MAPS, BLADES, BLADES, dtype=torch.float64)
    for blade, k in enumerate(_GRADE_OF):
        maps[k, blade, blade] = SCALES[k]
    for source, target, b in zip(EUCLIDEAN, NULL, _SHIFT_OF, strict=True):
        maps[b, target, source] = SCALES[b] * PGA.multiply(E0, source)[1]
    return maps


class EquiLinear(nn.Module):
    """Linear layer on (mv, s) that commutes with every Euclidean motion.

    `initialization`: "default" keeps the variance; "small" starts a tenth as large; "unit_scalar" and
    "almost_unit_scalar" start close to the constant multivector 1, so that a product begins as the identity.
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
    ) -> None:
        super().__init__()
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
        """Draw new parameters; `rows` limits it to some of the multivector outputs."""
        if initialization not in _FACTORS:
            raise ValueError(
                f"unknown initialization {initialization!r}; expected one of {', '.join(_FACTORS)}"
            )
        factor = _FACTORS[initialization]
        one = 1.0 if initialization.endswith("unit_scalar") else 0.0
        fan_mv, fan_s = (max(fan, 1) for fan in self._fan_in)
        share = math.sqrt(0.5) if self._fan_in[1] else 1.0  # two sources, half the variance each
        for b, variance in enumerate(_VARIANCES):
            bound = factor * math.sqrt(variance / fan_mv) * (share if b == SCALAR else 1.0)
            self.weight[rows, :, b].uniform_(-bound, bound)
        if self.s2mv is not None:
            bound = factor * share / math.sqrt(fan_s)
            self.s2mv[rows].uniform_(-bound, bound)
        bound = factor / math.sqrt(max(sum(self._fan_in), 1))
        if self.bias_mv is not None:
            jitter = bound if self._fan_in[1] else 0.0
            self.bias_mv[rows].uniform_(one - jitter, one + jitter)
        if rows == slice(None):
            self._reset_scalar_outputs(factor, bound)

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
        items = mv.shape[:-2]
        total = math.prod(items)
        x_KTC = mv.movedim(-1, 0).reshape(BLADES, total, self.in_mv_channels)

        weight = self.weight * constant(SCALES, self.weight)
        weight = weight.permute(2, 1, 0).contiguous()  # bmm copies other layouts item by item
        keep_KCC = weight.index_select(0, indices(_GRADE_OF, weight))
        shift_KCC = weight.index_select(0, indices(_SHIFT_OF, weight))
        y_KTC = torch.bmm(x_KTC, keep_KCC)
        raised = torch.bmm(x_KTC.index_select(0, indices(EUCLIDEAN, mv)), shift_KCC)
        targets = NULL

        from_scalars = self._scalars_to_mv(s.reshape(total, self.in_s_channels))
        if from_scalars is not None:
            from_scalars = from_scalars.to(raised.dtype).expand(raised.shape[1:])
            raised = torch.cat([raised, from_scalars.unsqueeze(0)])
            targets = (*NULL, SCALAR)
        y_KTC = y_KTC.index_add(0, indices(targets, mv), raised)

        out = y_KTC.permute(1, 2, 0).reshape(*items, self.out_mv_channels, BLADES)
        return out, self._scalars_out(mv[..., SCALAR], s)

    def _scalars_to_mv(self, s_TS: Tensor) -> Tensor | None:
        if self.s2mv is None:
            return self.bias_mv
        return F.linear(s_TS, self.s2mv, self.bias_mv)

    def _scalars_out(self, mv_scalars: Tensor, s: Tensor) -> Tensor:
        if not self.out_s_channels:
            return s.new_zeros(*s.shape[:-1], 0)
        out, bias = None, self.bias_s
        for x, weight in ((mv_scalars, self.mv2s), (s, self.s2s)):
            if weight is not None:
                y = F.linear(x, weight, bias)
                out, bias = (y if out is None else out + y), None
        if out is None:  # nothing comes in: the bias alone
            shape = (*s.shape[:-1], self.out_s_channels)
            return s.new_zeros(shape) if bias is None else bias.expand(shape)
        return out

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
        )
