"""Equivariant linear maps (paper, proposition 1) with auxiliary scalars mixed in.

    y = Σ_k w_k ⟨x⟩_k + Σ_k v_k e0 ⟨x⟩_k,        k = 0..4 and 0..3: nine numbers per channel pair

    y's scalar part also receives  S s + bias;     the scalars out are  A s + B ⟨x⟩_0 + bias.

Each of the nine maps is divided by its Frobenius norm: weights then train as in the authors' code
and can be converted from it. Shapes: mv (..., C, K), s (..., S); internally x_KTC with K = 16
blades and T items.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algebra import BLADES, E0, EUCLIDEAN, GRADES, NULL, PGA, SCALAR
from ..constants import constant, indices

MAPS = 2 * GRADES - 1
"""Equivariant maps of one channel: one per grade, and e0 times each grade but the last."""
_NORMS = tuple(math.sqrt(PGA.grades.count(k)) for k in range(GRADES)) + tuple(
    math.sqrt(sum(PGA.grades[i] == k for i in EUCLIDEAN)) for k in range(GRADES - 1)
)
SCALES = tuple(1 / norm for norm in _NORMS)
"""One over the Frobenius norm of each map."""
_GRADE_OF = PGA.grades
_SHIFT_OF = tuple(GRADES + PGA.grades[i] for i in EUCLIDEAN)


class LinearWeights(NamedTuple):
    """The parameters of one equivariant linear map; None for those it does not have."""

    weight: Tensor
    """(C', C, 9): multivectors to multivectors."""
    s2mv: Tensor | None = None
    """(C', S): scalars to the scalar parts of multivectors."""
    mv2s: Tensor | None = None
    """(S', C): scalar parts of multivectors to scalars."""
    s2s: Tensor | None = None
    """(S', S)"""
    bias_mv: Tensor | None = None
    """(C'), added to the scalar parts."""
    bias_s: Tensor | None = None
    """(S')"""


def halves(channels: int) -> str:
    """Types of channels of which the first half is even and the second half odd.

    >>> halves(5)
    'eeeoo'
    """
    odd = channels // 2
    return "e" * (channels - odd) + "o" * odd


def masked(weights: LinearWeights, in_parity: str, out_parity: str) -> LinearWeights:
    """The map between channels with these types, "e" (even) or "o" (odd): entries between unlike
    types are zero. Scalars and biases are even.
    """
    like = weights.weight
    even_in, even_out = (
        constant(tuple(int(letter == "e") for letter in types), like)
        for types in (in_parity, out_parity)
    )
    alike = (even_out[:, None] == even_in).to(like.dtype)

    def times(x: Tensor | None, mask: Tensor) -> Tensor | None:
        return None if x is None else x * mask

    return weights._replace(
        weight=like * alike[..., None],
        s2mv=times(weights.s2mv, even_out[:, None]),
        mv2s=times(weights.mv2s, even_in),
        bias_mv=times(weights.bias_mv, even_out),
    )


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


def linear(
    mv: Tensor, s: Tensor, weights: LinearWeights, out_s_channels: int = 0
) -> tuple[Tensor, Tensor]:
    """Apply the map to multivectors (..., C, 16) and scalars (..., S).

    out_s_channels: scalar channels of the result; needed only if mv2s and s2s are both None.
    """
    weight = weights.weight
    items, (out_channels, in_channels, _) = mv.shape[:-2], weight.shape
    total = math.prod(items)
    x_KTC = mv.movedim(-1, 0).reshape(BLADES, total, in_channels)

    weight = weight * constant(SCALES, weight)
    weight = weight.permute(2, 1, 0).contiguous()  # bmm copies other layouts element by element
    keep_KCC = weight.index_select(0, indices(_GRADE_OF, weight))
    shift_KCC = weight.index_select(0, indices(_SHIFT_OF, weight))
    y_KTC = torch.bmm(x_KTC, keep_KCC)
    raised = torch.bmm(x_KTC.index_select(0, indices(EUCLIDEAN, mv)), shift_KCC)
    targets = NULL

    from_scalars = weights.bias_mv
    if weights.s2mv is not None:
        from_scalars = F.linear(s.reshape(total, s.shape[-1]), weights.s2mv, weights.bias_mv)
    if from_scalars is not None:
        from_scalars = from_scalars.to(raised.dtype).expand(raised.shape[1:])
        raised = torch.cat([raised, from_scalars.unsqueeze(0)])
        targets = (*NULL, SCALAR)
    y_KTC = y_KTC.index_add(0, indices(targets, mv), raised)

    out = y_KTC.permute(1, 2, 0).reshape(*items, out_channels, BLADES)
    return out, _scalars_out(mv[..., SCALAR], s, weights, out_s_channels)


def _scalars_out(
    mv_scalars: Tensor, s: Tensor, weights: LinearWeights, out_s_channels: int
) -> Tensor:
    out, bias = None, weights.bias_s
    for x, weight in ((mv_scalars, weights.mv2s), (s, weights.s2s)):
        if weight is not None:
            y = F.linear(x, weight, bias)
            out, bias = (y if out is None else out + y), None
    if out is None:  # no inputs: the bias alone
        shape = (*s.shape[:-1], out_s_channels)
        return s.new_zeros(shape) if bias is None else bias.expand(shape)
    return out
