"""Layers on features of several degrees, equivariant under rotations (tensor field networks).

    convolution    y_ij^ℓ = Σ_k Σ_J φ_J^{ℓk}(e_ij) · (C[k, J, ℓ] Y_J(r̂_ij)) f_j^k
    linear map     y^ℓ = A^ℓ f^ℓ
    nonlinearity   f ↦ g(‖f‖) f / ‖f‖

J runs from |k - ℓ| to k + ℓ. φ is a small network of the invariants e_ij of a pair: its distance
and products of the items' charges. A convolution is two batches of matrix products per output
degree ℓ: f_j with the basis C Y for all k and J at once, and the result with φ.

The components of all degrees form the last axis, S = Σ (2ℓ + 1), and all degrees have the same
number of channels. Shapes: features (..., N, C, S), pairs (..., N, N, ...) with the receiving item
first, E pairs in all, F the couples (k, J) that lead to one degree ℓ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...constants import constant
from ...precision import full_precision
from .checks import Linear
from .wigner import ExactConstant, SphericalHarmonics, wigner_3j

_RADIAL_WIDTH = 32
_SMALLEST_NORM = 1e-12


class Fiber(NamedTuple):
    """What features consist of: `channels` of every degree from `lowest` to `highest`."""

    channels: int
    lowest: int
    highest: int

    @property
    def degrees(self) -> range:
        return range(self.lowest, self.highest + 1)

    @property
    def components(self) -> int:
        """S, the number of components of a channel."""
        return (self.highest + 1) ** 2 - self.lowest**2

    def place(self, other: Fiber) -> slice:
        """Where the components of another fiber's degrees are among those of this one."""
        return slice(other.lowest**2 - self.lowest**2, (other.highest + 1) ** 2 - self.lowest**2)

    def shared(self, other: Fiber) -> Fiber:
        """The degrees of both fibers, with this one's channels; they may be none."""
        lowest = max(self.lowest, other.lowest)
        return Fiber(self.channels, lowest, min(self.highest, other.highest))

    def one_hot(self) -> tuple[tuple[int, ...], ...]:
        """(S, degrees): which component belongs to which degree."""
        return tuple(
            tuple(int(d == degree) for d in self.degrees)
            for degree in self.degrees
            for _ in range(2 * degree + 1)
        )


def couplings(fiber: Fiber, degree: int) -> int:
    """F, the number of couples (k, J) by which features of a fiber reach an output degree."""
    return sum(2 * min(k, degree) + 1 for k in fiber.degrees)


class Pairs(NamedTuple):
    """All that the layers know about pairs of items (receiver, sender)."""

    valid: Tensor  # (..., N, N), False on the diagonal and for padding
    vectors: Tensor  # (..., N, N, 3), from sender to receiver
    invariants: Tensor  # (..., N, N, edge channels + 1)
    bases: tuple[Tensor, ...]  # one per output degree: (..., N, N, S, F, 2ℓ + 1)


class Basis(nn.Module):
    """C[k, J, ℓ] Y_J of vectors, for input and output degrees from 0 to `highest`.

    One tensor (..., S, F, 2ℓ + 1) per output degree. A component of input degree k is zero in the
    columns of other input degrees.
    """

    def __init__(self, highest: int) -> None:
        super().__init__()
        self.fiber = Fiber(1, 0, highest)
        self.harmonics = SphericalHarmonics(2 * highest)
        tables = [self._table(degree) for degree in self.fiber.degrees]
        self.sizes = [table[0].numel() for table in tables]
        self.table = ExactConstant(torch.cat([table.flatten(1) for table in tables], dim=1))

    def _table(self, degree: int) -> Tensor:
        """(harmonics, S, F, 2ℓ + 1)"""
        shape = self.fiber.components, couplings(self.fiber, degree), 2 * degree + 1
        table = torch.zeros(
            (2 * self.fiber.highest + 1) ** 2, *shape, dtype=torch.float64, device="cpu"
        )
        column = 0
        for k in self.fiber.degrees:
            rows = self.fiber.place(Fiber(1, k, k))
            for j in range(abs(k - degree), k + degree + 1):
                table[j**2 : (j + 1) ** 2, rows, column] = wigner_3j(k, j, degree).transpose(0, 1)
                column += 1
        return table

    def forward(self, vectors: Tensor) -> tuple[Tensor, ...]:
        with full_precision(vectors.device):
            harmonics = self.harmonics(vectors)
            parts = (harmonics @ self.table(harmonics)).split(self.sizes, dim=-1)
        return tuple(
            part.unflatten(-1, (self.fiber.components, -1, 2 * degree + 1))
            for degree, part in zip(self.fiber.degrees, parts, strict=True)
        )


class PairwiseRadial(nn.Module):
    """φ by one network per input degree k, output degree ℓ and role (value, key).

        Linear, LayerNorm, ReLU, Linear, LayerNorm, ReLU, Linear

    All networks run as one batch. Their last maps have 2 min(k, ℓ) + 1 times as many outputs as
    channels; in the batch, each of these multiples is a slot of its own.
    """

    slots: Tensor

    def __init__(self, inputs: int, fiber: Fiber, channels: int, roles: dict[int, int]) -> None:
        super().__init__()
        self.fiber, self.channels, self.roles = fiber, channels, roles
        owners: list[int] = []  # the network of every slot
        networks = 0
        for degree, count in roles.items():
            for _ in range(count):
                for k in fiber.degrees:
                    owners += [networks] * (2 * min(k, degree) + 1)
                    networks += 1
        slots = F.one_hot(torch.tensor(owners), networks).to(torch.get_default_dtype())
        self.register_buffer("slots", slots, persistent=False)
        outputs = channels * fiber.channels
        self.sizes = [count * couplings(fiber, degree) for degree, count in roles.items()]
        self.first = _Linears(networks, inputs, _RADIAL_WIDTH)
        self.first_norm = _LayerNorms(networks)
        self.second = _Linears(networks, _RADIAL_WIDTH, _RADIAL_WIDTH)
        self.second_norm = _LayerNorms(networks)
        self.last = _Linears(len(owners), _RADIAL_WIDTH, outputs)

    def forward(self, invariants: Tensor) -> list[Tensor]:
        """(E, inputs) to one (E, roles · channels, C · F) per output degree."""
        x = invariants.expand(len(self.first.bias), -1, -1)
        x = F.relu(self.first_norm(self.first(x)))
        x = F.relu(self.second_norm(self.second(x)))
        # A product with a one-hot matrix copies the networks to their slots; unlike that of
        # indexing, its gradient is a deterministic sum on every device.
        x = (self.slots.to(x.dtype) @ x.flatten(1)).unflatten(1, x.shape[1:])
        parts = self.last(x).split(self.sizes)
        counts = self.roles.values()
        return [self._arrange(part, count) for part, count in zip(parts, counts, strict=True)]

    def _arrange(self, part: Tensor, count: int) -> Tensor:
        """(roles · F, E, channels · C) to (E, roles · channels, C · F)"""
        part = part.unflatten(0, (count, -1)).unflatten(-1, (self.channels, self.fiber.channels))
        return part.permute(2, 0, 3, 4, 1).flatten(3, 4).flatten(1, 2)


class FusedRadial(nn.Module):
    """φ by one network for all degrees and roles; its last map has no bias."""

    def __init__(self, inputs: int, fiber: Fiber, channels: int, roles: dict[int, int]) -> None:
        super().__init__()
        rows = [count * channels for count in roles.values()]
        columns = [fiber.channels * couplings(fiber, degree) for degree in roles]
        self.shapes = list(zip(rows, columns, strict=True))
        self.sizes = [n * m for n, m in self.shapes]
        self.network = nn.Sequential(
            Linear(inputs, _RADIAL_WIDTH),
            nn.LayerNorm(_RADIAL_WIDTH),
            nn.ReLU(),
            Linear(_RADIAL_WIDTH, _RADIAL_WIDTH),
            nn.LayerNorm(_RADIAL_WIDTH),
            nn.ReLU(),
            Linear(_RADIAL_WIDTH, sum(self.sizes), bias=False),
        )

    def forward(self, invariants: Tensor) -> list[Tensor]:
        parts = self.network(invariants).split(self.sizes, dim=-1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True)]


class _Linears(nn.Module):
    """Several linear maps at once, (maps, E, inputs) to (maps, E, outputs)."""

    def __init__(self, maps: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(maps, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(maps, 1, outputs))
        with torch.no_grad():  # Kaiming's uniform weights, and the biases of nn.Linear
            self.weight.uniform_(-math.sqrt(6 / inputs), math.sqrt(6 / inputs))
            self.bias.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x.to(self.weight.dtype), self.weight)


class _LayerNorms(nn.Module):
    """LayerNorm over channels, with gain and bias per map: (maps, E, channels)."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(maps, 1, _RADIAL_WIDTH))
        self.bias = nn.Parameter(torch.zeros(maps, 1, _RADIAL_WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, F.layer_norm(x, (_RADIAL_WIDTH,)), self.weight)


class Convolution(nn.Module):
    """Messages of all pairs: features (..., N, C, S) to one (..., N, N, channels, S') per output.

    The outputs are fibers with the same number of channels, such as values and keys.
    add_position: add r_ij to the vector in channel 0 of the sender.
    """

    def __init__(
        self,
        fiber: Fiber,
        outputs: tuple[Fiber, ...],
        radial: type[PairwiseRadial | FusedRadial],
        *,
        edge_channels: int,
        add_position: bool = False,
    ) -> None:
        super().__init__()
        self.fiber, self.outputs, self.add_position = fiber, outputs, add_position
        channels = outputs[0].channels
        degrees = sorted({degree for output in outputs for degree in output.degrees})
        roles = {degree: sum(degree in o.degrees for o in outputs) for degree in degrees}
        self.roles = roles
        self.radial = radial(edge_channels + 1, fiber, channels, roles)

    def forward(self, x: Tensor, pairs: Pairs) -> tuple[Tensor, ...]:
        items = pairs.valid.shape
        senders = x.unsqueeze(-4).expand(*items, *x.shape[-2:])
        if self.add_position:
            place = self.fiber.place(Fiber(1, 1, 1))
            room = (place.start, self.fiber.components - place.stop, 0, self.fiber.channels - 1)
            senders = senders + F.pad(pairs.vectors.unsqueeze(-2), room)
        senders = senders.reshape(items.numel(), *x.shape[-2:])
        weights = self.radial(pairs.invariants.flatten(0, -2))
        found: list[list[Tensor]] = [[] for _ in self.outputs]
        for degree, weight in zip(self.roles, weights, strict=True):
            basis = self._basis(pairs.bases[degree], degree).flatten(0, len(items) - 1)
            # (E, C, S) @ (E, S, F (2ℓ + 1)), then (E, channels, C F) @ (E, C F, 2ℓ + 1)
            coupled = (senders @ basis.flatten(-2)).unflatten(-1, basis.shape[-2:])
            message = weight.to(coupled.dtype) @ coupled.flatten(1, 2)
            owners = [i for i, output in enumerate(self.outputs) if degree in output.degrees]
            for i, part in zip(owners, message.chunk(len(owners), dim=1), strict=True):
                found[i].append(part)
        return tuple(torch.cat(parts, dim=-1).to(x.dtype).unflatten(0, items) for parts in found)

    def _basis(self, basis: Tensor, degree: int) -> Tensor:
        """The part for the input's degrees of (..., S, F, 2ℓ + 1)."""
        start = couplings(Fiber(1, 0, self.fiber.lowest - 1), degree)
        rows = Fiber(1, 0, self.fiber.highest).place(self.fiber)
        return basis[..., rows, start : start + couplings(self.fiber, degree), :]


class DegreeLinear(nn.Module):
    """A linear map of channels per degree, without bias: (..., C, S) to (..., C', S).

    fan_in: number of channels that are summed, if this is one of several maps that are added.
    """

    def __init__(self, fiber: Fiber, channels: int, fan_in: dict[int, int] | None = None) -> None:
        super().__init__()
        self.one_hot = fiber.one_hot()
        fans = [fiber.channels if fan_in is None else fan_in[degree] for degree in fiber.degrees]
        weight = torch.randn(len(fans), channels, fiber.channels)
        self.weight = nn.Parameter(weight / torch.tensor(fans).sqrt()[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        weight = constant(self.one_hot, self.weight) @ self.weight.flatten(1)
        weight = weight.unflatten(1, self.weight.shape[1:])
        return torch.einsum("...cs,soc->...os", x.to(weight.dtype), weight).to(x.dtype)


class _Norms(nn.Module):
    """f ↦ g(‖f‖) f / ‖f‖ per channel and degree; zero stays zero, with the gradient zero."""

    def __init__(self, fiber: Fiber) -> None:
        super().__init__()
        self.one_hot = fiber.one_hot()

    def forward(self, x: Tensor) -> Tensor:
        # Not matrix products: norms keep all digits under TF32 and autocast.
        one_hot = constant(self.one_hot, x)
        squared = (x.square().unsqueeze(-1) * one_hot).sum(-2)  # (..., C, degrees)
        norms = squared.clamp(min=_SMALLEST_NORM**2).sqrt()
        factor = self.new_norms(norms) / norms * (squared > _SMALLEST_NORM**2)
        return x * (factor.unsqueeze(-2) * one_hot).sum(-1)

    def new_norms(self, norms: Tensor) -> Tensor:
        raise NotImplementedError


class NormBias(_Norms):
    """g(n) = ReLU(n + b) with a learned b per channel and degree."""

    def __init__(self, fiber: Fiber) -> None:
        super().__init__(fiber)
        self.bias = nn.Parameter(torch.randn(fiber.channels, len(fiber.degrees)))

    def new_norms(self, norms: Tensor) -> Tensor:
        return F.relu(norms + self.bias)


class NormLayerNorm(_Norms):
    """g(n) = ReLU(LayerNorm(n)) over the channels of a degree, with gain and bias."""

    def __init__(self, fiber: Fiber) -> None:
        super().__init__(fiber)
        shape = fiber.channels, len(fiber.degrees)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))

    def new_norms(self, norms: Tensor) -> Tensor:
        norms = F.layer_norm(norms.mT, norms.shape[-2:-1]).mT
        return F.relu(torch.addcmul(self.bias, norms, self.weight))
