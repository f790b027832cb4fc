"""Do blocks and endeffector of a planned motion keep clear of the other blocks?

Blocks are boxes and the endeffector a rod along its axis. A point of a rod or box that lies inside
another box is a collision. Boxes are made a little smaller, so that blocks that touch, side by side
or on top of each other, do not collide.
"""

from __future__ import annotations

import numpy as np

from ..world import rotations
from ..world.arrays import Floats
from ..world.scenes import SIDE, THICKNESS

NARROWER, THINNER = 0.0005, 0.004
TOOL_RADIUS, TOOL_LENGTH = 0.05, 0.10
FLOOR = 0.02  # lowest height of the endeffector in metres
_GRID = np.array([-1.0, 0.0, 1.0])
_POINTS = np.array([[x, y, z] for x in _GRID for y in _GRID for z in (-1.0, 1.0)])
_HALF = np.array([SIDE / 2, SIDE / 2, THICKNESS / 2 - THINNER])


def clear(
    tool: tuple[Floats, Floats],
    held: tuple[Floats, Floats] | None,
    others: tuple[Floats, Floats],
    margin: float = 0.0,
) -> bool:
    """Whether a motion keeps a distance of `margin` from everything, or touches at most.

    `tool` has the poses (T, 3), (T, 3, 3) of the endeffector, `held` those of the block it carries,
    and `others` the poses (n, 3), (n, 3, 3) of the blocks at rest.
    """
    position, rotation = tool
    along = -rotation[..., 2]  # from the tip back along the tool
    rod = position[:, None] + np.linspace(0, TOOL_LENGTH, 5)[:, None] * along[:, None]
    around = np.array([TOOL_RADIUS, TOOL_RADIUS, margin])
    if rod[..., 2].min() < FLOOR or _inside(rod, others, around):
        return False
    if held is None:
        return True
    around = np.array([margin - NARROWER, margin - NARROWER, margin])
    points = held[0][:, None] + np.einsum("tij,pj->tpi", held[1], _POINTS * _HALF)
    if points[..., 2].min() < -THINNER or _inside(points, others, around):
        return False
    resting = others[0][:, None] + np.einsum("nij,pj->npi", others[1], _POINTS * _HALF)
    local = rotations.apply(
        rotations.transpose(held[1])[:, None], resting.reshape(-1, 3) - held[0][:, None]
    )  # in the frame of the held block
    return not (abs(local) < _HALF + around).all(-1).any()


def _inside(points: Floats, boxes: tuple[Floats, Floats], around: Floats) -> bool:
    """Whether any point (T, p, 3) is inside any box that is larger by `around` on each side."""
    local = np.einsum("nji,tpnj->tpni", boxes[1], points[:, :, None] - boxes[0])
    return bool((abs(local) < _HALF + around).all(-1).any())
