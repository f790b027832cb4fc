"""Normalised geometric states as tensors: their parts, bounds and rotations.

Networks see states in the geometric layout as `layouts.Scale` normalises them: positions relative
to the robot's base and divided by one length, directions as they are, flags -1 and 1. A rotation
about the base acts on normalised states as it does on scenes. A separate scale or a bound for every
coordinate would prevent this, so bounds are on lengths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .layouts import GEOMETRIC, OBJECTS, PER_OBJECT, Scale

REACH = 1.6 / Scale().length
"""Normalised positions are nearer to the base than this; the outstretched arm reaches 1.35 m."""


class Parts(NamedTuple):
    """A state by kinds of numbers."""

    position: Tensor  # (..., 5, 3)
    directions: Tensor  # (..., 5, 2, 3)
    flags: Tensor  # (..., 4)


def split(state: Tensor) -> Parts:
    """The parts of states (..., 49)."""
    if state.shape[-1:] != (GEOMETRIC,):
        raise ValueError(
            f"expected states of {GEOMETRIC} numbers, (..., {GEOMETRIC}), got {state.shape}"
        )
    objects = state[..., : OBJECTS * PER_OBJECT].unflatten(-1, (OBJECTS, 3, 3))
    return Parts(objects[..., 0, :], objects[..., 1:, :], state[..., OBJECTS * PER_OBJECT :])


def join(position: Tensor, directions: Tensor, flags: Tensor) -> Tensor:
    """States (..., 49) from their parts; the inverse of `split`."""
    objects = torch.cat([position.unsqueeze(-2), directions], dim=-2)  # (..., 5, 3, 3)
    return torch.cat([objects.flatten(-3), flags], dim=-1)


def rotated(state: Tensor, rotation: Tensor) -> Tensor:
    """States turned about the robot's base by rotation matrices (..., 3, 3)."""
    position, directions, flags = split(state)
    turn = rotation.mT
    return join(position @ turn, directions @ turn.unsqueeze(-3), flags)


def bounded(state: Tensor) -> Tensor:
    """Normalised states moved to the nearest one that a mean of scenes can have.

    Positions are within `REACH` of the base, directions have at most unit length, flags are from
    -1 to 1. Limits on lengths commute with rotations; limits on coordinates would not.
    """
    position, directions, flags = split(state)
    return join(_shortened(position, REACH), _shortened(directions, 1.0), flags.clamp(-1, 1))


def released(state: Tensor) -> Tensor:
    """Normalised states in which no block is held."""
    position, directions, flags = split(state)
    return join(position, directions, torch.full_like(flags, -1))


def _shortened(x: Tensor, largest: float) -> Tensor:
    """Vectors (..., 3) with their lengths limited."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    factor: Tensor = largest / length.clamp(min=largest)
    return x * factor
