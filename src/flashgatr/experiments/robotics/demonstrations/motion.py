"""Pieces of a demonstration: postures over a place, and motions between them.

A posture is a solution of the inverse kinematics with the endeffector pointing down. Candidates
differ in the yaw of the endeffector, the arm angle and the branch; the best one needs the least
joint travel. All but the branch of `kinematics.HOME` are a last resort: to change it, the arm has
to pass through a singular pose. Motions have the minimum-jerk profile 10 s³ - 15 s⁴ + 6 s⁵.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..world import kinematics, rotations
from ..world.arrays import Floats
from ..world.kinematics import BRANCHES, LIMITS

DOWN = np.diag([-1.0, 1.0, -1.0])
"""The endeffector points down, at yaw 0; `kinematics.HOME` has this rotation."""
YAWS = np.radians([0, 90, -90, 180])
ARM_ANGLES = np.array([0, 0.35, -0.35, 0.7, -0.7, 1.05, -1.05, 1.4, -1.4])
MARGIN = 0.04  # radians between a posture and the joint limits
SPEED = 0.07  # mean joint speed of a motion at pace 1, in radians per frame
SHORTEST, LONGEST = 14, 42  # frames of a motion
VERTICAL = 8  # frames of a descent or an ascent
_FORWARD = np.array([signs == (1, -1, 1) for signs in BRANCHES])  # the branch of HOME


class Posture(NamedTuple):
    """How the arm goes down to a place: joint angles above it, yaw, arm angle and branch."""

    above: Floats
    yaw: float
    arm_angle: float
    signs: Floats


def profile(frames: int) -> Floats:
    """The minimum-jerk profile at the end of each of `frames` frames, the last one 1."""
    s = np.arange(1, frames + 1) / frames
    return np.asarray(s**3 * (10 - 15 * s + 6 * s**2))


def travel(start: Floats, end: Floats, pace: float, detour: Floats) -> Floats:
    """Joint angles (n, 7) from one posture to another; `detour` is added halfway."""
    distance = float(abs(end - start).max())
    frames = int(np.clip(math.ceil(distance / (SPEED * pace)), SHORTEST, LONGEST))
    s = profile(frames)[:, None]
    return start + s * (end - start) + np.sin(math.pi * s) ** 2 * detour


def down_rotation(yaw: Floats) -> Floats:
    """Rotations of an endeffector that points down."""
    return np.asarray(rotations.about_z(yaw) @ DOWN)


def posture(
    now: Floats,
    place: Floats,
    above: float,
    yaw: float,
    arm_angle: float,
    noise: float,
    chance: np.random.Generator,
) -> Posture | None:
    """A posture at the height `above` from which the arm can go straight down to `place` (3).

    Candidates lie about `yaw` and `arm_angle`. The costs of all candidates get random numbers of
    size `noise`. None means that no candidate is within reach and limits.
    """
    yaws, angles = yaw + YAWS, arm_angle + ARM_ANGLES
    heights = np.linspace(place[2], above, 3)
    position = np.stack([np.array([*place[:2], z]) for z in heights])[:, None, None, None]
    rotation = down_rotation(yaws)[None, :, None, None]
    signs = np.array(BRANCHES, dtype=float)
    q, reached = kinematics.inverse(position, rotation, angles[None, None, :, None], signs)
    inside = (abs(q) <= np.array(LIMITS) - MARGIN).all(-1)
    steady = abs(q[-1] - q[0]).max(-1) < 1.2
    usable = (reached & inside).all(0) & steady
    if not usable.any():
        return None
    cost = abs(q[-1] - now).max(-1) + 0.1 * abs(q[-1] - now).sum(-1)
    cost = cost + 0.3 * abs(YAWS)[:, None, None] + 0.5 * abs(ARM_ANGLES)[None, :, None]
    cost = cost + 100.0 * ~_FORWARD + noise * chance.gumbel(size=cost.shape)
    best = np.unravel_index(np.argmin(np.where(usable, cost, np.inf)), cost.shape)
    a, b, c = (int(k) for k in best)
    return Posture(q[-1, a, b, c], float(yaws[a]), float(angles[b]), signs[c])


def vertical(place: Floats, above: float, how: Posture) -> Floats:
    """Joint angles (VERTICAL, 7) of the way straight down from the posture to `place`."""
    height = above + profile(VERTICAL) * (place[2] - above)
    position = np.stack([np.full(VERTICAL, place[0]), np.full(VERTICAL, place[1]), height], axis=-1)
    rotation = down_rotation(np.array(how.yaw))
    q, _ = kinematics.inverse(position, rotation, np.array(how.arm_angle), how.signs)
    return np.asarray(q)
