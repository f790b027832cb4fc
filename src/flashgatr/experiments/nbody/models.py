"""Models of the n-body experiment: (mass, position, velocity) to positions and a regulariser.

GATr's input is one multivector per body: mass as scalar, position as point, velocity as
translation. With types of channels (`gatr_e3`), the point is a channel of its own, because a mirror
changes its sign and not that of the others. As in the authors' code, the regulariser keeps |e123|
of the output near one and its unused scalar near zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ... import (
    GATr,
    embed_point,
    embed_scalar,
    embed_translation,
    extract_direction,
    extract_point,
    parity,
)
from ...algebra import E123
from ...config import preset
from ..baselines.gca import GCAGNN, GCAMLP
from ..baselines.mlp import MLP
from ..baselines.se3_transformer import SE3Transformer
from ..baselines.segnn import SEGNN
from ..baselines.tensor_field import Fiber
from ..baselines.transformer import Transformer

Prediction = tuple[Tensor, Tensor]
"""Positions (B, n, 3), and the regulariser (a number)."""
SMALLEST_WEIGHT = 1e-3
"""Of points that GCA networks return."""
_TYPES = parity("point", "translation")
"""Types of the channels of `gatr_e3`; the mass shares the one of the velocity, as both are even."""
WIDE = 24
"""Multivector channels of `gatr_e3_wide`."""


class GATrNBody(nn.Module):
    def __init__(self, net: GATr) -> None:
        super().__init__()
        self.net = net

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        embed = _embed_apart if self.net.config.is_typed else _embed
        bodies = embed(mass, position, velocity)
        out, s = self.net(bodies, torch.zeros_like(mass[..., None]))
        regulariser = _weight_regulariser(out) + s.square().sum((-2, -1))
        return extract_point(out[..., 0, :]), regulariser.mean()


class GCANBody(nn.Module):
    """A network on the same multivectors as GATr's; `flatten` bodies are channels of one item.

    Points are read as in the authors' code: a weight |e123| of at most `SMALLEST_WEIGHT` counts as
    that number. The weights of the output do not depend on the input. They start at zero, where
    neither loss nor regulariser has a gradient, and stay there: positions are the point parts of
    the output, times 1,000. Without this factor, training first has to enlarge them: they begin
    near 0.01 and the positions are near 20.
    """

    def __init__(self, net: GCAGNN | GCAMLP, *, flatten: int = 0) -> None:
        super().__init__()
        self.net, self.flatten = net, flatten

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        bodies = _embed(mass, position, velocity)
        if self.flatten:
            _require_bodies(mass, self.flatten)
            out = self.net(bodies.flatten(-3, -2)).unsqueeze(-2)
        else:
            out = self.net(bodies)
        point = out[..., 0, :]
        weight = point[..., E123, None]
        weight = torch.where(weight.abs() > SMALLEST_WEIGHT, weight, SMALLEST_WEIGHT)
        return extract_direction(point) / weight, _weight_regulariser(out).mean()


class SEGNNNBody(nn.Module):
    """SEGNN predicts how far every body moves."""

    def __init__(self, net: SEGNN) -> None:
        super().__init__()
        self.net = net

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        return position + self.net(position, velocity, mass), position.new_zeros(())


class SE3NBody(nn.Module):
    """A network on velocities, positions and products of masses, which returns how bodies move.

    It sees differences of positions only, so that there is no centre to choose.
    """

    def __init__(self, net: SE3Transformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        out = self.net(velocity.unsqueeze(-2), position, mass.unsqueeze(-1))
        return position + out[..., 0, :], position.new_zeros(())


class PlainNBody(nn.Module):
    """A network on the seven numbers of each body."""

    def __init__(self, net: nn.Module, *, flatten: int = 0) -> None:
        super().__init__()
        self.net, self.flatten = net, flatten

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        features = torch.cat([mass[..., None], position, velocity], dim=-1)
        if not self.flatten:
            return self.net(features), features.new_zeros(())
        _require_bodies(mass, self.flatten)
        out = self.net(features.flatten(-2)).unflatten(-1, (self.flatten, 3))
        return out, features.new_zeros(())


def gatr(**options: Any) -> nn.Module:
    return GATrNBody(GATr(preset("nbody", **options)))


def gatr_e3(**options: Any) -> nn.Module:
    """GATr with types of channels, exactly equivariant under mirrors, too."""
    types = dict(in_mv_parity=_TYPES, out_mv_parity=parity("point"))
    own = dict(in_mv_channels=len(_TYPES), **types)
    return GATrNBody(GATr(preset("nbody", **own, **options)))


def gatr_e3_wide(**options: Any) -> nn.Module:
    """`gatr_e3` of a width that gives about as many parameters as `gatr` has."""
    return gatr_e3(**{"hidden_mv_channels": WIDE, **options})


def segnn(mass_as_node_scalar: bool = False, **options: Any) -> nn.Module:
    """As in the paper, bodies know the products of masses but not their own mass."""
    return SEGNNNBody(SEGNN(charge_as_node_scalar=mass_as_node_scalar, **options))


def se3_transformer(**options: Any) -> nn.Module:
    """One vector per body to two, as in the authors' code; the second is not used."""
    return SE3NBody(SE3Transformer(Fiber(1, 1, 1), Fiber(2, 1, 1), **options))


def transformer(**options: Any) -> nn.Module:
    return PlainNBody(Transformer(7, 3, **options))


def gca_gnn(point_weight: float = 0.0, **options: Any) -> nn.Module:
    return GCANBody(GCAGNN(1, 1, point_weight=point_weight, **options))


def gca_mlp(bodies: int = 4, point_weight: float = 1.0, **options: Any) -> nn.Module:
    """GCA-MLP has few layers, so its outputs have the right size; its point weights start at
    one.
    """
    net = GCAMLP(bodies, bodies, point_weight=point_weight, **options)
    return GCANBody(net, flatten=bodies)


def mlp(bodies: int = 4, **options: Any) -> nn.Module:
    return PlainNBody(MLP(7 * bodies, 3 * bodies, **options), flatten=bodies)


MODELS = {
    "gatr": gatr,
    "gatr_e3": gatr_e3,
    "gatr_e3_wide": gatr_e3_wide,
    "segnn": segnn,
    "se3_transformer": se3_transformer,
    "transformer": transformer,
    "gca_gnn": gca_gnn,
    "gca_mlp": gca_mlp,
    "mlp": mlp,
}


def fits(model: nn.Module, bodies: int) -> bool:
    """Whether a model can take this number of bodies."""
    return not isinstance(model, (PlainNBody, GCANBody)) or model.flatten in (0, bodies)


FEWEST_NEIGHBOURS = 3
"""Of SEGNN, as in the paper; systems of four bodies have no more."""


@contextmanager
def neighbours(model: nn.Module, k: int) -> Iterator[None]:
    """A context in which SEGNN takes messages from the k nearest bodies only."""
    assert isinstance(model, SEGNNNBody)
    before, model.net.k = model.net.k, k
    try:
        yield
    finally:
        model.net.k = before


def fewer_neighbours(model: nn.Module, bodies: int) -> range:
    """The numbers of neighbours with which a model on this number of bodies is evaluated as well:
    from three up for a SEGNN that takes all of them, none for other models.
    """
    takes_all = isinstance(model, SEGNNNBody) and model.net.k is None
    return range(FEWEST_NEIGHBOURS, bodies - 1 if takes_all else 0)


def _embed(mass: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
    """One multivector per body, (B, n, 1, 16)."""
    body = embed_scalar(mass[..., None]) + embed_point(position) + embed_translation(velocity)
    return body.unsqueeze(-2)


def _embed_apart(mass: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
    """Two multivectors per body, of the types `_TYPES`: (B, n, 2, 16)."""
    rest = embed_scalar(mass[..., None]) + embed_translation(velocity)
    return torch.stack([embed_point(position), rest], dim=-2)


def _weight_regulariser(out: Tensor) -> Tensor:
    """How far the weights |e123| of the points (B, n, 1, 16) are from one, (B)."""
    return (out[..., 0, E123].abs() - 1).square().sum(-1)


def _require_bodies(mass: Tensor, bodies: int) -> None:
    if mass.shape[-1] != bodies:
        raise ValueError(f"this MLP was made for {bodies} bodies and cannot take {mass.shape[-1]}")
