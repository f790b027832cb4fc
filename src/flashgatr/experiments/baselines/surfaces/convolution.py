"""Gauge-equivariant convolution on a surface (de Haan et al., 2021), and its nonlinearity.

Features of order m are complex numbers that turn with the tangent frame, m times as fast; order 0
is one real number. Node p receives, with u and t as in `frames` and r the rings of the kernel,

    yₚ = mean over neighbours q of  ρ(u) Σᵣ wᵣ(‖q - p‖) Wᵣ ρ(ū t) x_q       W: any real matrix
         for q = p                  V xₚ                                    V commutes with turning

where ρ(u) multiplies order m by uᵐ. A map from order m to order n is z → a z + b z̄, so that

    ρ(u) W ρ(ū t) z = a · uⁿ⁻ᵐ tᵐ z + b · (conjugate of u⁻ⁿ⁻ᵐ tᵐ z)

The products of u, t and z are summed over the neighbours first, and a and b are applied once per
node: for seven neighbours, a seventh of the work of the first formula.
Shapes: N nodes, K neighbours, D = 2·order + 1 components (0, re 1, im 1, re 2, im 2), C channels,
R rings, S samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....precision import at_least_float32, full_precision
from ..checks import Linear
from .frames import directions, powers, transports
from .levels import rows, shares
from .sampling import Array

ORDER = 2
"""Highest order of features."""


def components(order: int) -> slice:
    """Where the numbers of one order are among the components."""
    return slice(max(2 * order - 1, 0), 2 * order + 1)


def harmonics(order: int) -> list[int]:
    """The powers of u that features of this order (at least 1) are summed with, by the order n of
    the output that the sums are for: the one for a, and from n = 1 on the one for b.
    """
    return [-order, *(k - order for n in range(1, ORDER + 1) for k in (n, -n))]


def sums_for(order: int) -> list[int]:
    """How many sums of features of one order are for each order of the output."""
    return _sizes(ORDER) if order == 0 else [2, *[4] * ORDER]


def _sizes(order: int) -> list[int]:
    """The numbers of each order: 1, and then 2 each."""
    return [1, *[2] * order]


class Part(NamedTuple):
    """Nodes n of similar numbers of neighbours, on one scale."""

    linked: Tensor  # (n·K,) their neighbours' rows; any row where there is none
    terms: tuple[Tensor, ...]  # per order m: (n, J·R, d·K), d numbers of order m to J sums


class Neighbourhood(NamedTuple):
    """What a convolution needs to know about the neighbours on one scale."""

    parts: tuple[Part, ...]  # of all nodes, in their order
    share: Tensor  # (N, 1), 1 / number of neighbours, oneself included
    mean: Tensor  # (N, 5), mean of 1, u and u² over the neighbours, for biases


def neighbourhood(
    position: Tensor,
    frames: Tensor,
    linked: Tensor,
    radius: float,
    rings: int,
    cuts: Sequence[tuple[int, int]] | None = None,
) -> Neighbourhood:
    """The neighbourhoods of nodes (N, 3) with frames (N, 3, 3) and neighbours (N, K).

    cuts: where parts end, and the length of their longest list (`by_length`); None: one part.
    """
    found = []
    start = 0
    for end, width in cuts or [(len(linked), linked.shape[1])]:
        own = torch.arange(start, end, device=linked.device)
        found.append(_part(position, frames, linked[start:end, :width], own, radius, rings))
        start = end
    parts, share, mean = zip(*found, strict=True)
    return Neighbourhood(parts, torch.cat(share), torch.cat(mean))


def _part(
    position: Tensor, frames: Tensor, linked: Tensor, own: Tensor, radius: float, rings: int
) -> tuple[Part, Tensor, Tensor]:
    """The nodes with the numbers `own`, their `share` and their `mean`."""
    share = shares(linked, position.dtype)
    others = torch.where(linked == own[:, None], 0, share)
    frame = frames[own, None]
    offset = rows(position, linked) - position[own, None]
    u = directions(offset, frame)
    axes = rows(frames[:, [0, 2]], linked)
    t = transports(axes[..., 0, :], axes[..., 1, :], frame)
    place = offset.norm(dim=-1) * ((rings - 1) / radius)
    ring = torch.arange(rings, device=place.device, dtype=place.dtype)
    weight = (1 - (place[:, None] - ring[:, None]).abs()).clamp(min=0)  # (n, R, K)
    weight = weight * others[:, None]
    up, along = powers(u, 2 * ORDER), powers(t, ORDER)
    plain = _real_numbers([up[n] for n in range(ORDER + 1)])  # (n, 5, K)
    terms = [(plain[:, :, None] * weight[:, None]).flatten(1, 2)]
    for m in range(1, ORDER + 1):
        turns = [along[m] * (up[k] if k >= 0 else up[-k].conj()) for k in harmonics(m)]
        c, s = torch.view_as_real(torch.stack(turns, dim=1)).unbind(-1)  # (n, J/2, K)
        both = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], dim=2)
        both = both[..., None, :, :] * weight[:, None, None, ..., None]  # (n, J/2, 2, R, K, 2)
        terms.append(both.flatten(-2).flatten(1, 3))
    mean = (plain * others[:, None]).sum(-1)
    mean[:, 0] = 1
    return Part(linked.clamp(min=0).flatten(), tuple(terms)), share.amax(1, keepdim=True), mean


def _real_numbers(numbers: list[Tensor]) -> Tensor:
    """Re 0, Re 1, Im 1, Re 2, ... of complex (N, K): (N, D, K). The imaginary part of the first,
    which is 1, is left out.
    """
    parts = [numbers[0].real]
    for z in numbers[1:]:
        parts += [z.real, z.imag]
    return torch.stack(parts, dim=1)


@cache
def kernel_basis(order: int, out_order: int) -> Array:
    """How sums of features of one order make the output, per entry of W: (d, D, J, D).

    Entry [i, o, j, k]: weight of sum j in component k of the output, if W takes component i (of
    this order) to component o and nothing else.
    """
    size = 2 * out_order + 1
    if order == 0:
        basis = np.zeros((1, size, 2 * ORDER + 1, size))
        basis[0, 0, 0, 0] = 1
        for n in range(1, out_order + 1):
            re, im = 2 * n - 1, 2 * n
            basis[0, re, re, re] = basis[0, re, im, im] = 1  # 1·uⁿ
            basis[0, im, re, im], basis[0, im, im, re] = 1, -1  # i·uⁿ
        return basis
    basis = np.zeros((2, size, 2 * len(harmonics(order)), size))
    basis[0, 0, 0, 0] = basis[1, 0, 1, 0] = 1  # to order 0: real or imaginary part
    for n in range(1, out_order + 1):
        re, im = 2 * n - 1, 2 * n
        first, second = 4 * n - 2, 4 * n  # where the sums for a and for b are
        for i, o in np.ndindex(2, 2):
            a = (1 if i == o else -1j if i == 1 else 1j) / 2
            b = ((1 if i == 0 else -1) if i == o else 1j) / 2
            entry = basis[i, re + o]
            entry[first : first + 2, re] = a.real, -a.imag
            entry[first : first + 2, im] = a.imag, a.real
            entry[second : second + 2, re] = b.real, b.imag
            entry[second : second + 2, im] = b.imag, -b.real
    return basis


def self_basis(in_order: int, out_order: int) -> Array:
    """The maps that commute with turning: per order 1, and the turn by 90°: (B, D_in, D_out)."""
    least = min(in_order, out_order)
    basis = np.zeros((2 * least + 1, 2 * in_order + 1, 2 * out_order + 1))
    basis[0, 0, 0] = 1
    for n in range(1, least + 1):
        re, im = 2 * n - 1, 2 * n
        basis[re, re, re] = basis[re, im, im] = 1
        basis[im, re, im], basis[im, im, re] = 1, -1
    return basis


class GaugeConvolution(nn.Module):
    """Features (N, D_in, C_in) to (N, D_out, C_out). Weights and start values are those of the
    authors' code.
    """

    own: Tensor
    basis_0: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, in_order: int, out_order: int, rings: int
    ) -> None:
        super().__init__()
        size_in, size_out = 2 * in_order + 1, 2 * out_order + 1
        self.in_order, self.out_order, self.out_channels = in_order, out_order, out_channels
        self.weight = nn.Parameter(torch.empty(rings, in_channels, size_in, out_channels, size_out))
        self.register_buffer("own", _tensor(self_basis(in_order, out_order)), persistent=False)
        self.self_weight = nn.Parameter(torch.empty(len(self.own), in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels, size_out))
        for m in range(in_order + 1):
            basis = _tensor(kernel_basis(m, out_order))
            self.register_buffer(f"basis_{m}", basis, persistent=False)
        limit = math.sqrt(6 / (in_channels * size_in + out_channels * size_out))
        nn.init.uniform_(self.weight, -limit, limit)
        nn.init.uniform_(self.self_weight, -limit, limit)

    def forward(self, x: Tensor, near: Neighbourhood) -> Tensor:
        own = torch.einsum("bio,bde->dieo", self.self_weight, self.own)
        bias = torch.einsum("oe,ejk->jko", self.bias, self.basis_0[0])
        y = (x * near.share[..., None]).flatten(1) @ own.flatten(2).flatten(0, 1)
        y = y + near.mean @ bias.flatten(1)
        outputs = list(y.split([n * self.out_channels for n in _sizes(self.out_order)], dim=1))
        for m, part in enumerate(x.split(_sizes(self.in_order), dim=1)):
            part = part.contiguous()
            sums = torch.cat([_summed(part, own.linked, own.terms[m]) for own in near.parts])
            counts = [len(self.weight) * count for count in sums_for(m)]
            for n, (used, kernel) in enumerate(
                zip(sums.split(counts, dim=1), self._kernels(m), strict=False)
            ):
                outputs[n] = torch.addmm(outputs[n], used.flatten(1), kernel)
        y = torch.cat(outputs, dim=1).unflatten(1, (-1, self.out_channels))
        return at_least_float32(y)

    def _kernels(self, m: int) -> list[Tensor]:
        """The matrices (J·R·C_in, d·C_out) that take sums of order m to each order of output."""
        basis = self.get_buffer(f"basis_{m}")
        kernel = torch.einsum("rcdoe,dejk->jrcko", self.weight[:, :, components(m)], basis)
        parts = kernel.split(sums_for(m), dim=0)
        return [
            part[:, :, :, components(n)].flatten(3).flatten(0, 2)
            for n, part in zip(range(self.out_order + 1), parts, strict=False)
        ]


def _summed(x: Tensor, linked: Tensor, terms: Tensor) -> Tensor:
    """The sums (n, J·R, C) of the features (N, d, C) of neighbours (n·K)."""
    found = x.index_select(0, linked).view(len(terms), -1, x.shape[-1])  # (n, K·d, C)
    return torch.bmm(terms.to(found.dtype), found)


class RegularNonlinearity(nn.Module):
    """ReLU after batch normalisation, of features as functions of an angle, at S equal steps.

    With few samples it is only approximately equivariant: a frame that is turned by less than a
    step sees other samples.
    """

    table: Tensor

    def __init__(self, channels: int, order: int, samples: int) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(samples, dtype=torch.float64) / samples
        waves = [torch.ones_like(angle)]
        for n in range(1, order + 1):
            waves += [math.sqrt(2) * (n * angle).cos(), math.sqrt(2) * (n * angle).sin()]
        table = (torch.stack(waves, dim=1) / math.sqrt(samples)).float()
        self.register_buffer("table", table, persistent=False)  # (S, D), orthonormal columns
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        with full_precision(x.device):
            values = torch.matmul(self.table, at_least_float32(x))  # (N, S, C)
            values = F.relu(self.norm(values.flatten(0, 1))).view_as(values)
            return torch.matmul(self.table.T, values)


class Skip(Linear):
    """The same mix of channels for all components; its bias is for order 0 only, because a constant
    of higher order would depend on the frame.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x.to(self.weight.dtype), self.weight)
        return torch.cat([y[:, :1] + self.bias, y[:, 1:]], dim=1)


def transported(x: Tensor, t: Tensor) -> Tensor:
    """Features (N, D, C), those of order m multiplied by tᵐ for complex t (N)."""
    order = (x.shape[1] - 1) // 2
    parts = [x[:, :1]]
    for m, turn in enumerate(powers(t, order)[1:], start=1):
        (c, s), (re, im) = (turn.real[:, None], turn.imag[:, None]), x[:, components(m)].unbind(1)
        parts.append(torch.stack([c * re - s * im, s * re + c * im], dim=1))
    return torch.cat(parts, dim=1)


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array).float()
