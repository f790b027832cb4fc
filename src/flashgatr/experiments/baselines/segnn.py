"""SEGNN: steerable E(3)-equivariant message passing (Brandstetter et al., 2022), for moving bodies.

    f_i = O(x_i ⊕ v_i ⊕ |v_i|, a_i)
    f_i = f_i + O(OG(f_i ⊕ Σ_j OG(OG(f_i ⊕ f_j ⊕ |r_ij| ⊕ q_i q_j, a_ij), a_ij), a_i), a_i)
    out = O(OG(f_i, a_i), a_i)

O is a steerable map and OG one with a gate. Attributes are harmonics: a_ij of r_ij = x_j - x_i, and
a_i of the velocity plus the mean of a_ij over the neighbours j; its degree-0 part is 1. Positions
x_i are relative to the mean of the sample, so that the network does not see translations.
Shapes: B samples, N items, K neighbours of each; E = B·N or B·N·K rows of features.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...batch import Sets, packed_to_padded
from ...precision import full_precision
from ...recomputation import recomputed
from .checks import checked, require_bool, require_count
from .fully_connected import valid_pairs
from .steerable import (
    Couplings,
    Features,
    SteerableLinear,
    Steering,
    find_paths,
    gate,
    gated_channels,
)
from .wigner import SphericalHarmonics, length

NORMS = ("none", "instance")
_NORM_EPSILON = 1e-5
_CONSTANT_HARMONIC = 1 / math.sqrt(4 * math.pi)
_PAIR_SCALARS = 2  # distance and product of charges
MOST_DISTANCES = 1 << 24
"""Distances that are compared at a time, to find the nearest items of large samples."""


class Neighbours(NamedTuple):
    """Which items send messages to which: to every item of a sample its K neighbours."""

    shape: tuple[int, int, int]
    """(B, N, K)"""
    senders: Tensor | None
    """(B·N·K) rows of the senders; None if all N items of a sample are listed in order."""
    valid: Tensor
    """(B, N, K) 1 for senders that count, 0 for padding and for the item itself."""

    def of_senders(self, x: Tensor) -> Tensor:
        """Values (B, N, ...) of items to those of senders, broadcastable to (B, N, K, ...)."""
        if self.senders is None:
            return x.unsqueeze(1)
        chosen: Tensor = x.flatten(0, 1).index_select(0, self.senders).unflatten(0, self.shape)
        return chosen

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the senders that count: (B·N·K, ...) to (B·N, ...)."""
        rows = self.shape[0] * self.shape[1]
        weights = self.valid.reshape(rows, 1, self.shape[2]).to(x.dtype)
        messages = x.reshape(rows, self.shape[2], math.prod(x.shape[1:]))
        return (weights @ messages).reshape(rows, *x.shape[1:])


def find_neighbours(position: Tensor, mask: Tensor | None, k: int | None) -> Neighbours:
    """The k nearest other items of every item, or all of them; positions (B, N, 3), mask (B, N).

    Large samples are searched a few receivers at a time, so that no tensor has N² entries.
    """
    batch, items, _ = position.shape
    if k is None or k >= items - 1:
        valid = valid_pairs((batch, items), mask, position.device)
        return Neighbours((batch, items, items), None, valid.to(position.dtype))
    together = max(1, MOST_DISTANCES // max(1, batch * items))
    parts = [
        _nearest(position.detach(), mask, k, slice(first, min(first + together, items)))
        for first in range(0, items, together)
    ]
    nearest, chosen = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    starts = items * torch.arange(batch, device=position.device)[:, None, None]
    return Neighbours((batch, items, k), (nearest + starts).flatten(), chosen.to(position.dtype))


def _nearest(position: Tensor, mask: Tensor | None, k: int, rows: slice) -> tuple[Tensor, Tensor]:
    """The nearest items of the receivers in these rows, (B, rows, k), and which of them count."""
    valid = valid_pairs(position.shape[:-1], mask, position.device, rows)
    squares = (position.unsqueeze(1) - position[:, rows].unsqueeze(2)).square().sum(-1)
    nearest = squares.masked_fill(~valid, torch.inf).topk(k, largest=False, sorted=False).indices
    return nearest, valid.gather(2, nearest)


class PairLinear(SteerableLinear):
    """Steerable map of f_i ⊕ f_j ⊕ scalars of the pair. Its weights act on items, not on pairs.

    `weights` are (C, 2 columns): for the item as receiver, and beside it as sender.
    """

    def __init__(self, channels: int, degree: int, attribute_degree: int) -> None:
        inputs = (2 * channels + _PAIR_SCALARS, *[2 * channels] * degree)
        super().__init__(inputs, gated_channels(channels, degree), attribute_degree)
        parts = [
            w.detach().split([channels, channels, len(w) - 2 * channels]) for w in self.weights
        ]
        self.weights = nn.ParameterList(torch.cat(part[:2], dim=1) for part in parts)
        self.scalar_weight = nn.Parameter(parts[0][2].clone())

    def forward(  # type: ignore[override]  # one feature per pair needs more than one per item
        self, x: Features, scalars: Tensor, neighbours: Neighbours, attributes: Steering
    ) -> Features:
        """Features (B·N, 2l + 1, C) of items and scalars (B·N·K, 2) to (B·N·K, 2l + 1, C)."""
        found = []
        for y in self.project(x):
            receiver, sender = y.unflatten(0, neighbours.shape[:2]).chunk(2, dim=-1)
            pair = receiver.unsqueeze(2) + neighbours.of_senders(sender)
            found.append(pair.flatten(0, 2))
        scalars = scalars.to(self.scalar_weight.dtype)
        found[0] = torch.addmm(found[0].squeeze(1), scalars, self.scalar_weight).unsqueeze(1)
        return self.couple(tuple(found), attributes)


class InstanceNorm(nn.Module):
    """Divide features by their root mean square over the items and components of a sample.

    Scalars lose their mean over the sample first. One learned factor per feature, one bias per
    scalar.
    """

    def __init__(self, channels: int, degree: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(degree + 1, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Features, sets: Sets) -> Features:
        found = []
        for degree, y in enumerate(x):
            items = y.unflatten(0, sets.shape)  # (B, N, 2l + 1, C)
            if degree == 0:
                items = items - sets.spread(sets.mean(items.squeeze(2))).unsqueeze(2)
            square = sets.mean(items.square().mean(2))
            scale = sets.spread((square + _NORM_EPSILON).rsqrt() * self.weight[degree])
            found.append((items * scale.unsqueeze(2)).flatten(0, 1))
        return (found[0] + self.bias, *found[1:])


class Layer(nn.Module):
    """Messages between neighbours, their sum, and an update of every item."""

    def __init__(
        self, channels: int, degree: int, attribute_degree: int, norm: str, checkpoint: bool
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        hidden, doubled = [channels] * (degree + 1), [2 * channels] * (degree + 1)
        gated = gated_channels(channels, degree)
        self.message_in = PairLinear(channels, degree, attribute_degree)
        self.message_out = SteerableLinear(hidden, gated, attribute_degree)
        self.update_in = SteerableLinear(doubled, gated, attribute_degree)
        self.update_out = SteerableLinear(hidden, hidden, attribute_degree)
        self.norm = InstanceNorm(channels, degree) if norm == "instance" else None

    def forward(
        self,
        x: Features,
        scalars: Tensor,
        neighbours: Neighbours,
        pairs: Steering,
        items: Steering,
        sets: Sets,
    ) -> Features:
        def receive(*x: Tensor) -> Features:
            message = gate(self.message_in(x, scalars, neighbours, pairs))
            message = gate(self.message_out(message, pairs))
            return tuple(neighbours.sum(y) for y in message)

        received = recomputed(self.checkpoint, receive, *x)
        both = tuple(torch.cat(pair, dim=-1) for pair in zip(x, received, strict=True))
        update = self.update_out(gate(self.update_in(both, items)), items)
        x = tuple(y + change for y, change in zip(x, update, strict=True))
        return x if self.norm is None else self.norm(x, sets)


class SEGNN(nn.Module):
    """Positions and velocities (..., N, 3) and charges (..., N) to one vector (..., N, 3) per item.

    A charge is any number that pairs of items feel as a product: an electric charge, a mass.
    hidden_channels: as many weights as a linear map of this width; there are
        ⌈hidden_channels / √paths⌉ channels of every degree (32 for 64 and degrees of 1).
    degree, attribute_degree: largest degree of features, and of the harmonics of directions.
    norm: "none" or "instance".
    k: messages come from the k nearest other items only. Among items at exactly the same distance,
        the choice depends on their order.
    charge_as_node_scalar: items see their own charge too, not only products.
    checkpoint: compute messages again in the backward pass to save memory.

    >>> net = SEGNN()
    >>> net(torch.randn(8, 4, 3), torch.randn(8, 4, 3), torch.ones(8, 4)).shape
    torch.Size([8, 4, 3])
    """

    def __init__(
        self,
        hidden_channels: int = 64,
        num_layers: int = 4,
        *,
        degree: int = 1,
        attribute_degree: int = 1,
        norm: str = "none",
        k: int | None = None,
        charge_as_node_scalar: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        counts = dict(hidden_channels=hidden_channels, num_layers=num_layers)
        for name, value in (
            counts | dict(degree=degree, attribute_degree=attribute_degree)
        ).items():
            require_count(name, value)
        if k is not None:
            require_count("k", k)
        require_bool("charge_as_node_scalar", charge_as_node_scalar)
        require_bool("checkpoint", checkpoint)
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        self.degree, self.attribute_degree, self.k = degree, attribute_degree, k
        self.charge_as_node_scalar = charge_as_node_scalar
        self.couplings = Couplings(degree, attribute_degree)
        self.harmonics = SphericalHarmonics(attribute_degree)
        channels = balanced_channels(hidden_channels, degree, attribute_degree)
        hidden = [channels] * (degree + 1)
        self.linear_in = SteerableLinear((1 + charge_as_node_scalar, 2), hidden, attribute_degree)
        self.layers = nn.ModuleList(
            Layer(channels, degree, attribute_degree, norm, checkpoint) for _ in range(num_layers)
        )
        gated = gated_channels(channels, degree)
        self.last = SteerableLinear(hidden, gated, attribute_degree)
        self.linear_out = SteerableLinear(hidden, (0, 1), attribute_degree)

    def forward(
        self,
        position: Tensor,
        velocity: Tensor,
        charge: Tensor,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
    ) -> Tensor:
        """One vector per item; it does not change when all positions are translated.

        mask: (..., N), True for valid items; the others are ignored and their output is zero.
        offsets: (B + 1) for packed sets; the items of all samples then form the first axis.
        max_items: size of the largest packed set, if known.
        """
        weight = self.linear_in.weights[0]
        bodies = torch.cat(_checked(position, velocity, charge, weight), dim=-1)
        sets = Sets(bodies.shape[:-1], mask=mask, offsets=offsets, max_items=max_items)
        if offsets is not None:
            padded, mask = packed_to_padded(bodies, offsets, sets.max_items)
            return self._padded(padded, mask)[sets.sample, sets.positions(bodies.device)]
        batch = (math.prod(sets.samples), bodies.shape[-2])
        mask = None if mask is None else mask.reshape(batch)
        return self._padded(bodies.reshape(*batch, 7), mask).reshape(position.shape)

    def _padded(self, bodies: Tensor, mask: Tensor | None) -> Tensor:
        """Position, velocity and charge of bodies (B, N, 7) to vectors (B, N, 3)."""
        sets = Sets(bodies.shape[:2], mask=mask)
        with full_precision(bodies.device):
            position, velocity, charge = sets.keep(bodies).split([3, 3, 1], dim=-1)
            position = sets.keep(position - sets.spread(sets.mean(position)))
            neighbours = find_neighbours(position, mask, self.k)
            scalars, pairs, items = self._attributes(position, velocity, charge, neighbours)
            speed = length(velocity)
            numbers = torch.cat([speed, charge], dim=-1) if self.charge_as_node_scalar else speed
            vectors = torch.stack([position, velocity], dim=-1)
            x = self.linear_in((numbers.flatten(0, 1)[:, None], vectors.flatten(0, 1)), items)
        x = tuple(y.to(bodies.dtype) for y in x)
        for layer in self.layers:
            x = layer(x, scalars, neighbours, pairs, items, sets)
        x = gate(self.last(x, items))
        with full_precision(bodies.device):
            out = self.linear_out(x, items)[1].to(bodies.dtype)
        return sets.keep(out.reshape(*sets.shape, 3))

    def _attributes(
        self, position: Tensor, velocity: Tensor, charge: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Steering, Steering]:
        """Scalars of the pairs, and the attributes of pairs and of items."""
        relative = neighbours.of_senders(position) - position.unsqueeze(2)  # (B, N, K, 3)
        distance = length(relative)
        product = neighbours.of_senders(charge) * charge.unsqueeze(2)
        scalars = torch.cat([distance, product.expand_as(distance)], dim=-1).flatten(0, 2)
        of_pairs = self.harmonics(relative)[..., 1:].flatten(0, 2)
        number = neighbours.valid.sum(-1).clamp(min=1).reshape(-1, 1)
        of_items = self.harmonics(velocity)[..., 1:].flatten(0, 1)
        of_items = of_items + neighbours.sum(of_pairs) / number
        return (
            scalars,
            self.couplings.steer(_CONSTANT_HARMONIC, of_pairs),
            self.couplings.steer(1.0, of_items),
        )

    def __repr__(self) -> str:
        channels = self.linear_in.out_channels[0]
        parameters = sum(p.numel() for p in self.parameters())
        neighbours = "all neighbours" if self.k is None else f"{self.k} neighbours"
        return (
            f"SEGNN({len(self.layers)} layers of {channels} channels in degrees 0 to "
            f"{self.degree}, attributes up to degree {self.attribute_degree}, {neighbours}, "
            f"{parameters:,} parameters)"
        )


def balanced_channels(width: int, degree: int, attribute_degree: int) -> int:
    """The least number of channels per degree for which a map has width² weights or more.

    >>> balanced_channels(64, 1, 1)
    32
    """
    paths = len(find_paths(degree, attribute_degree, degree))
    return math.isqrt((width * width - 1) // paths) + 1


def _checked(
    position: Tensor, velocity: Tensor, charge: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Position, velocity and charge (..., N, 3), (..., N, 3), (..., N, 1) of one dtype."""
    position, velocity = (checked(x, weight, ("N",), 3) for x in (position, velocity))
    if velocity.shape != position.shape or tuple(charge.shape) != tuple(position.shape[:-1]):
        raise ValueError(
            f"positions {tuple(position.shape)} need velocities of this shape and charges "
            f"{tuple(position.shape[:-1])}, got {tuple(velocity.shape)} and {tuple(charge.shape)}"
        )
    return position, velocity, checked(charge.unsqueeze(-1), weight, ("N",), 1)
