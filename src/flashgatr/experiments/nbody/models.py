"""Models of the n-body experiment: (mass, position, velocity) to positions and a regulariser.

GATr's input is one multivector per body: mass as scalar, position as point, velocity as
translation. As in the authors' code, the regulariser keeps |e123| of the output near one and its
unused scalar near zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import GATr, embed_point, embed_scalar, embed_translation, extract_point
from ...algebra import E123
from ...config import preset
from ..baselines.mlp import MLP
from ..baselines.segnn import SEGNN
from ..baselines.transformer import Transformer

Prediction = tuple[Tensor, Tensor]
"""Positions (B, n, 3), and the regulariser (a number)."""


class GATrNBody(nn.Module):
    def __init__(self, net: GATr) -> None:
        super().__init__()
        self.net = net

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        body = embed_scalar(mass[..., None]) + embed_point(position) + embed_translation(velocity)
        out, s = self.net(body.unsqueeze(-2), torch.zeros_like(mass[..., None]))
        weight = out[..., 0, E123]
        regulariser = (weight.abs() - 1).square().sum(-1) + s.square().sum((-2, -1))
        return extract_point(out[..., 0, :]), regulariser.mean()


class SEGNNNBody(nn.Module):
    """SEGNN predicts how far every body moves."""

    def __init__(self, net: SEGNN) -> None:
        super().__init__()
        self.net = net

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        return position + self.net(position, velocity, mass), position.new_zeros(())


class PlainNBody(nn.Module):
    """A network on the seven numbers of each body."""

    def __init__(self, net: nn.Module, *, flatten: int = 0) -> None:
        super().__init__()
        self.net, self.flatten = net, flatten

    def forward(self, mass: Tensor, position: Tensor, velocity: Tensor) -> Prediction:
        features = torch.cat([mass[..., None], position, velocity], dim=-1)
        if not self.flatten:
            return self.net(features), features.new_zeros(())
        if mass.shape[-1] != self.flatten:
            raise ValueError(
                f"this MLP was made for {self.flatten} bodies and cannot take {mass.shape[-1]}"
            )
        out = self.net(features.flatten(-2)).unflatten(-1, (self.flatten, 3))
        return out, features.new_zeros(())


def gatr(**options: Any) -> nn.Module:
    return GATrNBody(GATr(preset("nbody", **options)))


def segnn(mass_as_node_scalar: bool = False, **options: Any) -> nn.Module:
    """As in the paper, bodies know the products of masses but not their own mass."""
    return SEGNNNBody(SEGNN(charge_as_node_scalar=mass_as_node_scalar, **options))


def transformer(**options: Any) -> nn.Module:
    return PlainNBody(Transformer(7, 3, **options))


def mlp(bodies: int = 4, **options: Any) -> nn.Module:
    return PlainNBody(MLP(7 * bodies, 3 * bodies, **options), flatten=bodies)


MODELS = {"gatr": gatr, "segnn": segnn, "transformer": transformer, "mlp": mlp}


def fits(model: nn.Module, bodies: int) -> bool:
    """Whether a model can take this number of bodies."""
    return not isinstance(model, PlainNBody) or model.flatten in (0, bodies)
