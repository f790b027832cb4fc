"""Models of the benchmark: (charge, position, velocity) to positions.

All predict how far every body moves. The law does not change if all charges of a system are
reversed. With `canonical_charges`, models see charges multiplied by the sign of their sum, and have
this symmetry exactly; the sum of five charges of ±1 is never zero.

Nor does the law change if a constant is added to all velocities: forces depend on differences of
positions only. With `moving_frame`, models see velocities minus their mean v̄, add T v̄ to what they
predict, where T is the time from input to target, and have this symmetry exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import GATr, embed_direction, embed_point, embed_translation, extract_direction, parity
from ...algebra import E123
from ...config import preset
from ..baselines.mlp import MLP
from ..baselines.se3_transformer import SE3Transformer
from ..baselines.segnn import SEGNN
from ..baselines.tensor_field import Fiber
from ..baselines.transformer import Transformer
from ..nbody import models as nbody
from ..nbody.models import PlainNBody
from .simulate import BODIES

VELOCITIES = {"translation": embed_translation, "direction": embed_direction}


class Mover(nn.Module):
    """A model that adds displacements to the positions.

    moving_frame: see velocities relative to their mean. The task then sets `duration`, the time
        from input to target, which follows from the horizon of the data.
    """

    def __init__(
        self, net: nn.Module, *, canonical_charges: bool = False, moving_frame: bool = False
    ) -> None:
        super().__init__()
        if not isinstance(moving_frame, bool):
            raise TypeError(f"moving_frame must be True or False, got {moving_frame!r}")
        self.net, self.canonical_charges, self.moving_frame = net, canonical_charges, moving_frame
        self.duration: float | None = None

    def forward(self, charge: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        if self.canonical_charges:
            total = charge.sum(-1, keepdim=True)
            charge = torch.where(total < 0, -charge, charge)
        if not self.moving_frame:
            return position + self.displacement(charge, position, velocity)
        if self.duration is None:
            raise ValueError("a model with moving_frame needs its duration, from input to target")
        mean = velocity.mean(-2, keepdim=True)
        moved = position + self.duration * mean
        return moved + self.displacement(charge, position, velocity - mean)

    def displacement(self, charge: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        raise NotImplementedError


class GATrMover(Mover):
    """GATr on a point and a velocity per body; its output is read without a division.

    A shift s changes a trivector with point part t and weight w to t + w s, so that t - w x stays
    as it is if all bodies are shifted.
    """

    def __init__(self, net: GATr, velocity: str, **options: Any) -> None:
        super().__init__(net, **options)
        if velocity not in VELOCITIES:
            raise ValueError(f"velocity must be one of {', '.join(VELOCITIES)}, got {velocity!r}")
        self.embed_velocity = VELOCITIES[velocity]

    def displacement(self, charge: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        body = torch.stack([embed_point(position), self.embed_velocity(velocity)], dim=-2)
        out, _ = self.net(body, charge[..., None])
        moved = out[..., 0, :]
        shift: Tensor = extract_direction(moved) - moved[..., E123, None] * position
        return shift


class SEGNNMover(Mover):
    def displacement(self, charge: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        return self.net(position, velocity, charge)  # type: ignore[no-any-return]


class SE3Mover(Mover):
    def displacement(self, charge: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        found: Tensor = self.net(velocity.unsqueeze(-2), position, charge.unsqueeze(-1))
        return found[..., 0, :]


class PlainMover(Mover):
    """A network of the n-body experiment without equivariance, whose output is the displacement."""

    def displacement(self, charge: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        return self.net(charge, position, velocity)[0]  # type: ignore[no-any-return]


def gatr(
    velocity: str = "translation",
    canonical_charges: bool = False,
    moving_frame: bool = False,
    **options: Any,
) -> nn.Module:
    inputs = dict(in_mv_channels=2, in_s_channels=1, out_s_channels=0)
    net = GATr(preset("nbody", **{**inputs, **options}))
    return GATrMover(net, velocity, canonical_charges=canonical_charges, moving_frame=moving_frame)


def gatr_e3(velocity: str = "translation", **options: Any) -> nn.Module:
    """GATr with types of channels, exactly equivariant under mirrors, too."""
    channels = parity("point", velocity if velocity in VELOCITIES else "translation")
    types: dict[str, Any] = dict(in_mv_parity=channels, out_mv_parity=parity("direction"))
    return gatr(velocity, **types, **options)


def segnn(canonical_charges: bool = False, moving_frame: bool = False, **options: Any) -> nn.Module:
    return SEGNNMover(
        SEGNN(**options), canonical_charges=canonical_charges, moving_frame=moving_frame
    )


def se3_transformer(moving_frame: bool = False, **options: Any) -> nn.Module:
    """It sees products of charges, which do not change if all are reversed."""
    net = SE3Transformer(Fiber(1, 1, 1), Fiber(2, 1, 1), **options)
    return SE3Mover(net, moving_frame=moving_frame)


def transformer(
    canonical_charges: bool = False, moving_frame: bool = False, **options: Any
) -> nn.Module:
    net = PlainNBody(Transformer(7, 3, **options))
    return PlainMover(net, canonical_charges=canonical_charges, moving_frame=moving_frame)


def mlp(
    bodies: int = BODIES,
    canonical_charges: bool = False,
    moving_frame: bool = False,
    **options: Any,
) -> nn.Module:
    net = PlainNBody(MLP(7 * bodies, 3 * bodies, **options), flatten=bodies)
    return PlainMover(net, canonical_charges=canonical_charges, moving_frame=moving_frame)


def gca_gnn(
    canonical_charges: bool = False, moving_frame: bool = False, **options: Any
) -> nn.Module:
    """As in the n-body experiment, with charges for masses; the points returned are shifts."""
    net = nbody.gca_gnn(**options)
    return PlainMover(net, canonical_charges=canonical_charges, moving_frame=moving_frame)


def gca_mlp(
    bodies: int = BODIES,
    canonical_charges: bool = False,
    moving_frame: bool = False,
    **options: Any,
) -> nn.Module:
    net = nbody.gca_mlp(bodies, **options)
    return PlainMover(net, canonical_charges=canonical_charges, moving_frame=moving_frame)


MODELS = {
    "gatr": gatr,
    "gatr_e3": gatr_e3,
    "segnn": segnn,
    "se3_transformer": se3_transformer,
    "transformer": transformer,
    "gca_gnn": gca_gnn,
    "gca_mlp": gca_mlp,
    "mlp": mlp,
}
