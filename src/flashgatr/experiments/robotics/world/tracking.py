"""Inverse kinematics along a path: joint angles that follow poses of the endeffector smoothly.

A pose leaves one joint motion open, and closed-form solutions jump where the arm is singular. So
`track` starts from the joint angles that the arm has and takes damped Newton steps to each pose,

    dq = c + Jᵀ (J Jᵀ + DAMPING² 1)⁻¹ (e - J c)

with the Jacobian J, the error e of the pose, and c, which leads joints away from their limits as
far as the pose permits. The closed form at the resulting arm angle and branch then gives the exact
solution. All episodes go through the frames together.
"""

from __future__ import annotations

import math

from . import kinematics, rotations
from .arrays import Array, constant, cross, namespace, norm
from .kinematics import LIMITS, Solution

ITERATIONS = 4
DAMPING = 0.03
CENTRING = 0.03  # radians per frame, for a joint at its limit
TURN_LENGTH = 0.3  # metres of error that count as one radian
EXACT = 0.05  # largest change of a joint by the closed form, in radians


def track(position: Array, rotation: Array, start: Array) -> Solution:
    """Joint angles (E, T, 7) for poses (E, T, 3), (E, T, 3, 3), from `start` (E, 7) on.

    Where the arm cannot follow, `reached` (E, T) is False and the arm comes as close as it can. The
    joint angles are always finite and within the limits.
    """
    xp = namespace(position)
    for name, x in dict(position=position, rotation=rotation, start=start).items():
        if not bool(xp.isfinite(x).all()):
            raise ValueError(f"{name} has entries that are not finite; a path needs finite poses")
    q = kinematics.clip(start)
    found, hit = [], []
    for frame in range(position.shape[1]):
        q, reached = _follow(q, position[:, frame], rotation[:, frame])
        found.append(q)
        hit.append(reached)
    return Solution(xp.stack(found, axis=1), xp.stack(hit, axis=1))


def largest_step(q: Array) -> Array:
    """The largest change of any joint between two frames of each path (..., T, 7)."""
    step = abs(q[..., 1:, :] - q[..., :-1, :])
    return namespace(q).amax(step.reshape(*q.shape[:-2], -1), axis=-1)


def turns(angle: Array) -> Array:
    """Angles moved to [-pi, pi) by whole turns."""
    return namespace(angle).remainder(angle + math.pi, 2 * math.pi) - math.pi


def _follow(q: Array, position: Array, rotation: Array) -> Solution:
    """Joint angles (E, 7) for the next pose of each episode."""
    xp = namespace(q)
    damping = DAMPING**2 * constant([[float(i == j) for j in range(6)] for i in range(6)], q)
    wanted = -CENTRING * (q / constant(LIMITS, q)) ** 3
    for _ in range(ITERATIONS):
        error, jacobian = _error(q, position, rotation)
        back = rotations.transpose(jacobian)
        error = error - rotations.apply(jacobian, wanted)
        step = back @ xp.linalg.solve(jacobian @ back + damping, error[..., None])
        q = kinematics.clip(q + wanted + step[..., 0])
        wanted = 0 * wanted
    exact, reached = kinematics.inverse(
        position, rotation, kinematics.arm_angle(q), kinematics.branch(q)
    )
    near = reached & (abs(exact - q) < EXACT).all(-1)
    return Solution(xp.where(near[..., None], exact, q), near)


def _error(q: Array, position: Array, rotation: Array) -> tuple[Array, Array]:
    """The error (E, 6) of a pose, position then rotation, and its Jacobian (E, 6, 7)."""
    xp = namespace(q)
    at, turned = kinematics.forward(q)
    axis, origin = kinematics.axes(q)
    scale = TURN_LENGTH
    shift = position - at
    turn = sum(cross(turned[..., k], rotation[..., k]) for k in range(3)) / 2
    # Far from the pose the cross products shrink again, so a rotation is limited by its trace.
    cosine = ((turned * rotation).sum(-1).sum(-1)[..., None] - 1) / 2
    turn = turn * xp.where(cosine < 0, 1 / xp.clip(norm(turn), 1e-3, None), 1.0)
    move = cross(axis, at[..., None, :] - origin)
    jacobian = xp.concatenate([move, scale * axis], axis=-1)
    return xp.concatenate([shift, scale * turn], axis=-1), rotations.transpose(jacobian)
