"""Steerable features and linear maps: the building blocks of SEGNN, in plain PyTorch.

A feature of degree l has 2l + 1 components. They transform like the spherical harmonics of degree
l, under reflections too (parity (-1)^l). A steerable map combines features x with the harmonics a
of a direction, its attribute:

    out_l3 = Σ W_p (x_l1 ⊗ a_l2)_l3      over paths p = (l1, l2, l3) with |l1 - l2| <= l3 <= l1 + l2
                                         and l1 + l2 + l3 even
For degrees 0 and 1, with x = (s, v), this is

    s' = a0 W s + W ⟨v, a1⟩ / √3 + b         v' = (W s) a1 + a0 W v

Weights act before the coupling with a. For pairs of items they can then act once per item.
The degree-0 part of an attribute is one number, the same for all directions.
Shapes: E items or pairs, C channels; a feature of degree l is (E, 2l + 1, C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...constants import constant
from .wigner import wigner_3j

Features = tuple[Tensor, ...]
"""One tensor (E, 2l + 1, C_l) per degree l = 0, 1, ..."""
Path = tuple[int, int, int]
"""Degrees of the feature, of the attribute and of the result."""

SILU_SCALE = 1.676532470331092
SIGMOID_SCALE = 1.8462285453386056
"""1 / √E[f(z)²] for a standard normal z: activations keep the variance, as those of e3nn do."""


def find_paths(in_degree: int, attribute_degree: int, out_degree: int) -> list[Path]:
    """All paths up to these degrees, ordered by feature, result and attribute."""
    return [
        (l1, l2, l3)
        for l1 in range(in_degree + 1)
        for l3 in range(out_degree + 1)
        for l2 in range(abs(l1 - l3), min(l1 + l3, attribute_degree) + 1)
        if (l1 + l2 + l3) % 2 == 0
    ]


class Steering(NamedTuple):
    """Attributes of items or pairs, as the matrices that act on features."""

    scale: float
    """The attribute's part of degree 0: paths of it multiply by this number."""
    matrices: dict[Path, Tensor]
    """(E, 2l3 + 1, 2l1 + 1) of every other path."""


class Couplings:
    """The couplings of features up to `degree` with attributes up to `attribute_degree`.

    Their entries stand side by side in one table: rows are the components of the attribute from
    degree 1 on, columns the entries (m3, m1) of every path's matrix.
    """

    def __init__(self, degree: int, attribute_degree: int) -> None:
        self.paths = [path for path in find_paths(degree, attribute_degree, degree) if path[1]]
        self.shapes = [(2 * l3 + 1, 2 * l1 + 1) for l1, _, l3 in self.paths]
        blocks = []
        for path in self.paths:
            before, after = path[1] ** 2 - 1, (attribute_degree + 1) ** 2 - (path[1] + 1) ** 2
            block = math.sqrt(2 * path[2] + 1) * wigner_3j(*path).permute(1, 2, 0).flatten(1)
            blocks.append(F.pad(block, (0, 0, before, after)))
        self.table = tuple(map(tuple, torch.cat(blocks, dim=1).tolist()))

    def steer(self, scale: float, attributes: Tensor) -> Steering:
        """Attributes (E, components from degree 1 on) as matrices."""
        entries = attributes @ constant(self.table, attributes)
        columns = entries.split([rows * width for rows, width in self.shapes], dim=-1)
        found = (x.unflatten(-1, shape) for x, shape in zip(columns, self.shapes, strict=True))
        return Steering(scale, dict(zip(self.paths, found, strict=True)))


class SteerableLinear(nn.Module):
    """Steerable map between features of these numbers of channels, one number per degree.

    Weights and bias (of degree 0) start uniform within ±1/√fan, where fan counts all channels that
    reach an output, as in nn.Linear.
    """

    def __init__(
        self, in_channels: Sequence[int], out_channels: Sequence[int], attribute_degree: int
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = tuple(in_channels), tuple(out_channels)
        self.attribute_degree = attribute_degree
        paths = find_paths(len(self.in_channels) - 1, attribute_degree, len(self.out_channels) - 1)
        self.paths = [path for path in paths if self.out_channels[path[2]]]
        fans = [
            sum(self.in_channels[l1] for l1, _, l3 in self.paths if l3 == degree)
            for degree in range(len(self.out_channels))
        ]
        self.weights = nn.ParameterList()
        for degree, channels in enumerate(self.in_channels):
            columns = [torch.empty(channels, 0)]  # high degrees may reach no output
            columns += [
                torch.empty(channels, self.out_channels[l3]).uniform_(-1, 1) / math.sqrt(fans[l3])
                for l1, _, l3 in self.paths
                if l1 == degree
            ]
            self.weights.append(nn.Parameter(torch.cat(columns, dim=1)))
        bias = torch.empty(self.out_channels[0]).uniform_(-1, 1) / math.sqrt(fans[0] or 1)
        self.bias = nn.Parameter(bias) if self.out_channels[0] else None

    def forward(self, x: Features, steering: Steering) -> Features:
        return self.couple(self.project(x), steering)

    def project(self, x: Features) -> Features:
        """Apply the weights; paths from one degree stand side by side: (E, 2l + 1, columns)."""
        return tuple(y.to(w.dtype) @ w for y, w in zip(x, self.weights, strict=True))

    def couple(self, projected: Features, steering: Steering) -> Features:
        """Couple projected features with attributes, sum over paths, and add the bias."""
        parts: dict[Path, Tensor] = {}
        for degree, y in enumerate(projected):
            paths = [path for path in self.paths if path[0] == degree]
            columns = y.split([self.out_channels[l3] for _, _, l3 in paths], dim=-1)
            parts |= zip(paths, columns, strict=True)
        reached = {path[2] for path in self.paths}
        out = [
            self._sum(degree, parts, steering)
            if degree in reached
            else y.new_zeros(len(y), 2 * degree + 1, channels)
            for degree, channels in enumerate(self.out_channels)
        ]
        if self.bias is not None:
            out[0] = out[0] + self.bias
        return tuple(out)

    def _sum(self, degree: int, parts: dict[Path, Tensor], steering: Steering) -> Tensor:
        """The sum over paths into a degree. The path of attribute 0 needs no matrix."""
        unsteered, out = parts.get((degree, 0, degree)), None
        for path in self.paths:
            if path[2] != degree or path[1] == 0:
                continue
            matrix, part = steering.matrices[path].to(parts[path].dtype), parts[path]
            if out is not None:
                out = torch.baddbmm(out, matrix, part)
            elif unsteered is not None:
                out = torch.baddbmm(unsteered, matrix, part, beta=steering.scale)
            else:
                out = matrix @ part
        if out is None:
            assert unsteered is not None  # a path leads here
            return steering.scale * unsteered
        return out

    def extra_repr(self) -> str:
        def name(channels: tuple[int, ...]) -> str:
            return " + ".join(f"{c}x{n}{'eo'[n % 2]}" for n, c in enumerate(channels) if c)

        return f"{name(self.in_channels)} -> {name(self.out_channels)}"


def gated_channels(channels: int, degree: int) -> tuple[int, ...]:
    """Channels per degree before `gate`, for features of as many channels in every degree after it:
    one more scalar per feature of degree 1 or more.
    """
    return (channels * (1 + degree), *[channels] * degree)


def gate(x: Features) -> Features:
    """SiLU on scalars; features of other degrees are multiplied by the sigmoid of a scalar each."""
    channels = x[-1].shape[-1]
    scalars, gates = x[0].split([channels, x[0].shape[-1] - channels], dim=-1)
    opening = SIGMOID_SCALE * gates.sigmoid()
    factors = opening.split(channels, dim=-1) if len(x) > 2 else (opening,)  # a split costs a copy
    gated = (y * factor for y, factor in zip(x[1:], factors, strict=True))
    return (SILU_SCALE * F.silu(scalars), *gated)
