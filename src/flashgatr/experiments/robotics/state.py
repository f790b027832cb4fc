"""The normalised state of a scene, on which the diffusion model works: 49 numbers.

    5 objects × (position, first and second column of the rotation matrix), then 4 flags

Object 0 is the end effector, objects 1 to 4 are the blocks; a flag tells whether the end effector
holds the block. Positions are relative to the robot's base and divided by one length, directions
stay as they are, flags become ±1. A rotation about the base therefore acts on normalised states
as it does on scenes, which a separate scale for every coordinate would prevent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS = 4
OBJECTS = 1 + BLOCKS
PER_OBJECT = 9
STATE = OBJECTS * PER_OBJECT + BLOCKS
HORIZON = 128
"""Frames of a planned trajectory."""
LENGTH = 0.5
"""The unit of normalised positions in metres: coordinates of blocks then have a size near 1."""
REACH = 1.6 / LENGTH
"""Normalised positions are nearer to the base than this; the outstretched arm reaches 1.35 m."""


class Parts(NamedTuple):
    """A state by kinds of numbers."""

    position: Tensor  # (..., 5, 3)
    directions: Tensor  # (..., 5, 2, 3)
    flags: Tensor  # (..., 4)


def split(state: Tensor) -> Parts:
    """The parts of states (..., 49)."""
    if state.shape[-1:] != (STATE,):
        raise ValueError(f"expected states of {STATE} numbers, (..., {STATE}), got {state.shape}")
    objects = state[..., : OBJECTS * PER_OBJECT].unflatten(-1, (OBJECTS, 3, 3))
    return Parts(objects[..., 0, :], objects[..., 1:, :], state[..., OBJECTS * PER_OBJECT :])


def join(position: Tensor, directions: Tensor, flags: Tensor) -> Tensor:
    """States (..., 49) from their parts; the inverse of `split`."""
    objects = torch.cat([position.unsqueeze(-2), directions], dim=-2)  # (..., 5, 3, 3)
    return torch.cat([objects.flatten(-3), flags], dim=-1)


def normalised(state: Tensor) -> Tensor:
    """States in metres with flags 0 and 1, normalised."""
    position, directions, flags = split(state)
    return join(position / LENGTH, directions, 2 * flags - 1)


def in_metres(state: Tensor) -> Tensor:
    """The inverse of `normalised`."""
    position, directions, flags = split(state)
    return join(position * LENGTH, directions, (flags + 1) / 2)


def rotated(state: Tensor, rotation: Tensor) -> Tensor:
    """States turned about the robot's base by rotation matrices (..., 3, 3)."""
    position, directions, flags = split(state)
    turn = rotation.mT
    return join(position @ turn, directions @ turn.unsqueeze(-3), flags)


def bounded(state: Tensor) -> Tensor:
    """Normalised states moved to the nearest one that a mean of scenes can have.

    Positions are within `REACH` of the base, directions have at most unit length, flags are from
    -1 to 1. The limits are on lengths and not on coordinates, so they commute with rotations.
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
