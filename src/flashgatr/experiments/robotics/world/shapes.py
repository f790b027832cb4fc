"""Polygons for pictures: boxes, tubes and balls, and the arm and blocks made of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .. import layouts
from . import kinematics, rotations
from .arrays import Floats
from .scenes import SIDE, THICKNESS

COLORS = np.array(
    [[232, 93, 76], [46, 157, 142], [64, 99, 170], [242, 184, 64]], dtype=float
)  # of the blocks: coral, teal, blue, amber
ARM, JOINT, TOOL = np.array([[226, 228, 232], [242, 125, 45], [70, 74, 82]], dtype=float)
AROUND = 28  # faces around a tube or a ball


class Faces(NamedTuple):
    """Quadrilaterals with outward normals and colours."""

    corners: Floats  # (n, 4, 3)
    normal: Floats  # (n, 3)
    color: Floats  # (n, 3)


def join(parts: list[Faces]) -> Faces:
    """All faces together."""
    return Faces(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def box(center: Floats, rotation: Floats, half: Floats, color: Floats) -> Faces:
    """A box."""
    corners, normals = np.zeros((6, 4, 3)), np.zeros((6, 3))
    for face in range(6):
        axis, side = face % 3, 1.0 if face < 3 else -1.0
        corners[face, :, axis] = side
        corners[face, :, (axis + 1) % 3] = (-1, 1, 1, -1)
        corners[face, :, (axis + 2) % 3] = (-1, -1, 1, 1)
        normals[face, axis] = side
    where = (corners * half) @ rotation.T + center
    return Faces(where, normals @ rotation.T, np.tile(color, (6, 1)))


def tube(start: Floats, end: Floats, radii: tuple[float, float], color: Floats) -> Faces:
    """A tube or cone between two points, with a flat cap at its end."""
    along = (end - start) / np.linalg.norm(end - start)
    across = np.cross(along, np.eye(3)[np.argmin(abs(along))])
    across /= np.linalg.norm(across)
    angle = np.linspace(0, 2 * math.pi, AROUND + 1)
    ring = np.cos(angle)[:, None] * across + np.sin(angle)[:, None] * np.cross(along, across)
    grid = np.stack([start + radii[0] * ring, end + radii[1] * ring])
    outward = (ring[:-1] + ring[1:]) / np.linalg.norm(ring[:-1] + ring[1:], axis=-1, keepdims=True)
    middle = np.broadcast_to(end, (AROUND, 3))
    cap = np.stack([middle, grid[1, :-1], grid[1, 1:], middle], axis=1)
    corners = np.concatenate([_grid_faces(grid), cap])
    normal = np.concatenate([outward, np.broadcast_to(along, (AROUND, 3))])
    return Faces(corners, normal, np.tile(color, (len(corners), 1)))


def ball(center: Floats, radius: float, color: Floats) -> Faces:
    """A ball."""
    angle = np.linspace(0, 2 * math.pi, AROUND + 1)
    height = np.linspace(0, math.pi, AROUND // 2 + 1)[:, None]
    unit = np.stack(
        [
            np.sin(height) * np.cos(angle),
            np.sin(height) * np.sin(angle),
            np.cos(height) + 0 * angle,
        ],
        axis=-1,
    )
    corners = _grid_faces(center + radius * unit)
    return Faces(corners, _grid_faces(unit).mean(1), np.tile(color, (len(corners), 1)))


def world(state: Floats) -> Faces:
    """The arm and the blocks of a state (39)."""
    q, blocks = layouts.split(state)
    base, shoulder, elbow, wrist, tip = kinematics.skeleton(q)
    foot, flange = np.array([0, 0, 0.12]), wrist + (tip - wrist) * 0.75
    arm = [
        tube(base, foot, (0.14, 0.10), TOOL),
        tube(foot, shoulder, (0.085, 0.08), ARM),
        ball(shoulder, 0.09, JOINT),
        tube(shoulder, elbow, (0.075, 0.065), ARM),
        ball(elbow, 0.078, JOINT),
        tube(elbow, wrist, (0.063, 0.05), ARM),
        ball(wrist, 0.06, JOINT),
        tube(wrist, flange, (0.048, 0.045), ARM),
        tube(flange, tip, (0.045, 0.045), TOOL),
    ]
    turned = rotations.from_quaternion(blocks.quaternion)
    half = np.array([SIDE / 2, SIDE / 2, THICKNESS / 2])
    boxes = [
        box(position, rotation, half, color)
        for position, rotation, color in zip(blocks.position, turned, COLORS, strict=True)
    ]
    return join([*arm, *boxes])


def _grid_faces(grid: Floats) -> Floats:
    """The quadrilaterals (n, 4, 3) of a grid of points (a, b, 3)."""
    quads = np.stack([grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]], axis=2)
    return np.asarray(quads.reshape(-1, 4, 3))
