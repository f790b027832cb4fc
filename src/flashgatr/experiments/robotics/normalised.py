"""States as networks see them: the scale, bounds and rotations of geometric states.

Positions are relative to the robot's base and divided by one length, directions are as they are,
flags are -1 and 1. A rotation about the base acts on normalised states as it does on scenes. A
separate scale or a bound for every coordinate would prevent this, so bounds are on lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layouts import from_objects, objects
from .world.arrays import Array


@dataclass(frozen=True)
class Scale:
    """The scale in which networks see geometric states.

    Positions are divided by one length, so that rotations about the robot's base, the origin, stay
    rotations. Directions keep their length of 1; flags 0 and 1 become -1 and 1.
    """

    length: float = 0.5

    def __post_init__(self) -> None:
        if not self.length > 0:
            raise ValueError(f"length must be positive, got {self.length!r}")

    def normalize(self, state: Array) -> Array:
        """A geometric state (..., 49) as networks see it."""
        position, directions, flags = objects(state)
        return from_objects(position / self.length, directions, 2 * flags - 1)

    def restore(self, state: Array) -> Array:
        """The inverse of `normalize`."""
        position, directions, flags = objects(state)
        return from_objects(position * self.length, directions, (flags + 1) / 2)


REACH = 1.6 / Scale().length
"""Normalised positions are nearer to the base than this; the outstretched arm reaches 1.35 m."""


def rotated(state: Tensor, rotation: Tensor) -> Tensor:
    """States turned about the robot's base by rotation matrices (..., 3, 3)."""
    position, directions, flags = objects(state)
    turn = rotation.mT
    turned: Tensor = from_objects(position @ turn, directions @ turn.unsqueeze(-3), flags)
    return turned


def about_vertical(angle: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) about the z axis."""
    c, s, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [c, -s, zero, s, c, zero, zero, zero, torch.ones_like(angle)]
    return torch.stack(rows, dim=-1).view(*angle.shape, 3, 3)


def mirrored(state: Tensor) -> Tensor:
    """States mirrored in the plane y = 0, as `layouts.mirrored` mirrors scenes: frames become
    M R M, so the first directions are mirrored, and the second ones mirrored and reversed.
    """
    position, directions, flags = objects(state)
    mirror = position.new_tensor([1.0, -1.0, 1.0])
    first, second = directions.unbind(-2)
    directions = torch.stack([first * mirror, second * -mirror], dim=-2)
    found: Tensor = from_objects(position * mirror, directions, flags)
    return found


def bounded(state: Tensor) -> Tensor:
    """Normalised states moved to the nearest one that a mean of scenes can have.

    Positions are within `REACH` of the base, directions have at most unit length, flags are from
    -1 to 1. Limits on lengths commute with rotations; limits on coordinates would not.
    """
    position, directions, flags = objects(state)
    found: Tensor = from_objects(
        _shortened(position, REACH), _shortened(directions, 1.0), flags.clamp(-1, 1)
    )
    return found


def released(state: Tensor) -> Tensor:
    """Normalised states in which no block is held."""
    position, directions, flags = objects(state)
    free: Tensor = from_objects(position, directions, torch.full_like(flags, -1))
    return free


def _shortened(x: Tensor, largest: float) -> Tensor:
    """Vectors (..., 3) with their lengths limited."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    factor: Tensor = largest / length.clamp(min=largest)
    return x * factor
