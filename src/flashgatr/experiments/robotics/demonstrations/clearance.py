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
) -> bool:
    """Whether a motion collides with nothing.

    `tool` has the poses (T, 3), (T, 3, 3) of the endeffector, `held` those of the block it carries,
    and `others` the poses (n, 3), (n, 3, 3) of the blocks at rest.
    """
    position, rotation = tool
    along = -rotation[..., 2]  # from the tip back along the tool
    rod = position[:, None] + np.linspace(0.01, TOOL_LENGTH, 4)[:, None] * along[:, None]
    if rod[..., 2].min() < FLOOR or _inside(rod, others, TOOL_RADIUS):
        return False
    if held is None:
        return True
    points = held[0][:, None] + np.einsum("tij,pj->tpi", held[1], _POINTS * _HALF)
    if points[..., 2].min() < -THINNER or _inside(points, others, -NARROWER):
        return False
    resting = others[0][:, None] + np.einsum("nij,pj->npi", others[1], _POINTS * _HALF)
    flat = np.broadcast_to(resting.reshape(1, -1, 3), (len(position), resting.shape[0] * 18, 3))
    return not _inside_own(flat, held)


def _inside(points: Floats, boxes: tuple[Floats, Floats], margin: float) -> bool:
    """Whether any point (T, p, 3) is inside any box."""
    local = np.einsum(
        "nji,tpnj->tpni", boxes[1], points[:, :, None] - boxes[0]
    )  # in the frame of each box
    return bool((abs(local) < _HALF + np.array([margin, margin, 0])).all(-1).any())


def _inside_own(points: Floats, box: tuple[Floats, Floats]) -> bool:
    """Whether any point (T, p, 3) is inside the box of its frame."""
    local = rotations.apply(rotations.transpose(box[1])[:, None], points - box[0][:, None])
    return bool((abs(local) < _HALF + np.array([-NARROWER, -NARROWER, 0.0])).all(-1).any())
