"""Inverse kinematics along a path: joint angles that follow poses of the endeffector smoothly.

A pose leaves one joint motion open, and closed-form solutions jump where the arm is singular. So
`track` starts from the joint angles that the arm has and takes damped Newton steps to each pose,

    dq = c + Jᵀ (J Jᵀ + DAMPING² 1)⁻¹ (e - J c)

with the Jacobian J, the error e of the pose, and c, which leads joints away from their limits as
far as the pose permits. The closed form at the resulting arm angle and branch then gives the exact
solution. All episodes go through the frames together.

Joint 1 stops at 170 degrees, so a path around the robot may end in a limit that a path of poses
does not know about. The arm then swings, raised and at `SPEED`, to another solution of the same
pose and goes on from there: the rest of the path comes later, and its end is cut off.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import kinematics, rotations
from .arrays import Array, Floats, cross, namespace, norm
from .kinematics import BRANCHES, LIMITS

ITERATIONS = 4
DAMPING = 0.03
CENTRING = 0.03  # radians per frame, for a joint at its limit
TURN_LENGTH = 0.3  # metres of error that count as one radian
EXACT = 0.05  # largest change of a joint by the closed form, in radians
LOST = 0.03  # error in metres from which on another solution is looked for
SPEED = 0.25  # of the swing to it, in radians per frame
RAISED = 0.5  # radians by which joint 2 leans back halfway
PATIENCE = 10  # frames of the path after which another solution is looked for again
_ANGLES = np.linspace(-1.5, 1.5, 13)


class Track(NamedTuple):
    """Joint angles along paths; which frames of the path they are for, and which they attain."""

    q: Floats  # (E, T, 7)
    frame: npt.NDArray[np.int64]  # (E, T)
    reached: npt.NDArray[np.bool_]  # (E, T)


def track(position: Floats, rotation: Floats, start: Floats) -> Track:
    """Follow poses (E, T, 3), (E, T, 3, 3) with arms that have the joint angles `start` (E, 7).

    Where an arm cannot follow, `reached` is False and it comes as close as it can. The joint angles
    are always finite and within the limits.
    """
    for name, x in dict(position=position, rotation=rotation, start=start).items():
        if not np.isfinite(x).all():
            raise ValueError(f"{name} has entries that are not finite; a path needs finite poses")
    episodes, frames = position.shape[:2]
    q = kinematics.clip(np.asarray(start, dtype=np.float64))
    found = np.zeros((episodes, frames, len(LIMITS)))
    source = np.zeros((episodes, frames), dtype=np.int64)
    hit = np.zeros((episodes, frames), dtype=bool)
    swing: list[list[Floats]] = [[] for _ in range(episodes)]  # frames to another solution
    quiet = np.zeros(episodes, dtype=np.int64)  # frame before which none is looked for
    at, rows = np.zeros(episodes, dtype=np.int64), np.arange(episodes)
    for frame in range(frames):
        here = position[rows, at], rotation[rows, at]
        moved, reached, error = _follow(q, *here)
        for k in np.flatnonzero((error > LOST) & (at >= quiet)):
            if not swing[k]:
                swing[k] = _swing(q[k], here[0][k], here[1][k])
                quiet[k] = at[k] + PATIENCE
        for row, left in enumerate(swing):
            if left:
                moved[row] = left.pop(0)
                reached[row] = not left
        waiting = np.array([bool(left) for left in swing], dtype=bool)
        found[:, frame], hit[:, frame], q = moved, reached, moved
        source[:, frame] = np.where(waiting, np.maximum(at - 1, 0), at)
        at = np.where(waiting, at, at + 1)
    return Track(found, source, hit)


def largest_step(q: Array) -> Array:
    """The largest change of any joint between two frames of each path (..., T, 7)."""
    step = abs(q[..., 1:, :] - q[..., :-1, :])
    return namespace(q).amax(step.reshape(*q.shape[:-2], -1), axis=-1)


def turns(angle: Array) -> Array:
    """Angles moved to [-pi, pi) by whole turns."""
    return namespace(angle).remainder(angle + math.pi, 2 * math.pi) - math.pi


def _follow(
    q: Floats, position: Floats, rotation: Floats
) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    """Joint angles (E, 7) for the next pose of each episode, whether they attain it, the error."""
    limits = np.array(LIMITS)
    wanted = -CENTRING * (q / limits) ** 3
    free = np.ones_like(q)
    for _ in range(ITERATIONS):
        error, jacobian = _error(q, position, rotation)
        jacobian = jacobian * free[:, None]
        back = rotations.transpose(jacobian)
        error = error - rotations.apply(jacobian, wanted)
        square = jacobian @ back + DAMPING**2 * np.eye(6)
        step = free * wanted + (back @ np.linalg.solve(square, error[..., None]))[..., 0]
        free = free * (abs(q + step) < limits)  # joints at their limits leave the rest to others
        q = kinematics.clip(q + step)
        wanted = 0 * wanted
    exact, reached = kinematics.inverse(
        position, rotation, kinematics.arm_angle(q), kinematics.branch(q)
    )
    near = reached & (abs(exact - q) < EXACT).all(-1)
    q = np.where(near[..., None], exact, q)
    return q, near, np.where(near, 0.0, norm(_error(q, position, rotation)[0])[..., 0])


def _error(q: Floats, position: Floats, rotation: Floats) -> tuple[Floats, Floats]:
    """The error (E, 6) of a pose, position then rotation, and its Jacobian (E, 6, 7)."""
    axis, point, tip, turned = kinematics.axes(q)
    turn = sum(cross(turned[..., k], rotation[..., k]) for k in range(3)) / 2
    # Beyond a quarter turn the cross products shrink again; there one radian is asked for.
    cosine = ((turned * rotation).sum((-1, -2)) - 1) / 2
    turn = turn * np.where(cosine < 0, 1 / np.maximum(norm(turn)[..., 0], 1e-3), 1.0)[..., None]
    move = cross(axis, tip[..., None, :] - point)
    jacobian = np.concatenate([move, TURN_LENGTH * axis], axis=-1)
    error = np.concatenate([position - tip, TURN_LENGTH * turn], axis=-1)
    return error, rotations.transpose(jacobian)


def _swing(q: Floats, position: Floats, rotation: Floats) -> list[Floats]:
    """Frames that lead to the solution of a pose that is best to go on from; [] without one."""
    signs = np.array(BRANCHES, dtype=float)
    found, reached = kinematics.inverse(position, rotation, _ANGLES[:, None], signs)
    if not reached.any():
        return []
    far = abs(found - q).max(-1)
    excess = np.maximum(abs(found) / np.array(LIMITS) - 0.6, 0).sum(-1)
    other = 2.0 * (signs != kinematics.branch(q)).any(-1)
    cost = np.where(reached, far + 4 * excess + other + abs(_ANGLES)[:, None], np.inf)
    goal = found[np.unravel_index(np.argmin(cost), cost.shape)]
    count = max(1, math.ceil(float(abs(goal - q).max()) / SPEED))
    share = np.arange(1, count + 1)[:, None] / count
    path = q + share * (goal - q)
    path[:, 1] -= RAISED * np.sign(q[1]) * np.sin(math.pi * share[:, 0]) ** 2
    return list(kinematics.clip(path))
