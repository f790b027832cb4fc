"""Kinematics of the Kuka LBR iiwa 14 R820, in closed form.

    R = Rz(q1) Ry(q2) Rz(q3) Ry(-q4) Rz(q5) Ry(q6) Rz(q7)

The axes of joints 1-3 meet in the shoulder, those of 5-7 in the wrist; the elbow is joint 4. A
pose of the endeffector fixes the wrist, and the elbow then moves on a circle about the line from
shoulder to wrist. The arm angle is the place on that circle, measured from its top. Given pose and
arm angle, the signs of joints 2, 4 and 6 select one of eight solutions, a branch.

Lengths are in metres, angles in radians. Functions take numpy arrays or torch tensors with any
leading axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from . import rotations
from .arrays import Array, constant, cross, namespace, norm, unit

SHOULDER, UPPER, FORE, TOOL = 0.360, 0.420, 0.400, 0.126
"""Height of the shoulder; shoulder to elbow; elbow to wrist; wrist to endeffector."""
LIMITS = tuple(math.radians(angle) for angle in (170, 120, 170, 120, 170, 120, 175))
"""Joint k moves within plus and minus LIMITS[k]."""
NEAREST, FARTHEST = UPPER - FORE, UPPER + FORE
"""Metres between shoulder and wrist."""
_FAR = 1e6
"""Metres. Squares of larger coordinates could overflow; the arm reaches none of them."""
BRANCHES = tuple((a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1))
"""Signs of joints 2, 4 and 6."""
HOME = (0.0, 0.35, 0.0, -1.55, 0.0, math.pi - 1.9, 0.0)
"""The pose before an episode: bent, away from singularities, the endeffector pointing down."""


class Solution(NamedTuple):
    """Joint angles of a pose, and whether they attain it: within reach and within the limits."""

    q: Array
    reached: Array


def forward(q: Array) -> tuple[Array, Array]:
    """Position (..., 3) and rotation (..., 3, 3) of the endeffector."""
    *_, wrist, rotation = _chain(q)
    return wrist + TOOL * rotation[..., 2], rotation


def skeleton(q: Array) -> Array:
    """Base, shoulder, elbow, wrist and endeffector (..., 5, 3), for pictures."""
    _, _, shoulder, elbow, wrist, rotation = _chain(q)
    tip = wrist + TOOL * rotation[..., 2]
    return namespace(q).stack([0 * tip, shoulder, elbow, wrist, tip], axis=-2)


def _chain(q: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Rotations after joints 3 and 5, shoulder, elbow, wrist, and rotation after joint 7."""
    zero = 0 * q[..., 0]
    upper = _zyz(q[..., 0], q[..., 1], q[..., 2])
    fore = upper @ _zyz(zero, -q[..., 3], q[..., 4])
    shoulder = 0 * upper[..., 2] + constant((0, 0, SHOULDER), q)
    elbow = shoulder + UPPER * upper[..., 2]
    wrist = elbow + FORE * fore[..., 2]
    return upper, fore, shoulder, elbow, wrist, fore @ _zyz(zero, q[..., 5], q[..., 6])


def axes(q: Array) -> tuple[Array, Array, Array, Array]:
    """Axes of the seven joints and a point on each (..., 7, 3); then what `forward` gives."""
    xp = namespace(q)
    zero = 0 * q[..., 0]
    first = _zyz(q[..., 0], zero, zero)
    upper, fore, shoulder, elbow, wrist, last = _chain(q)
    axis = [first[..., 2], first[..., 1], upper[..., 2], -upper[..., 1]]
    axis += [fore[..., 2], fore[..., 1], last[..., 2]]
    points = [shoulder] * 3 + [elbow] + [wrist] * 3
    tip = wrist + TOOL * last[..., 2]
    return xp.stack(axis, axis=-2), xp.stack(points, axis=-2), tip, last


def arm_angle(q: Array) -> Array:
    """The arm angle of joint angles, in (-pi, pi]; 0 where the elbow is on top."""
    xp = namespace(q)
    upper, _, shoulder, _, wrist, _ = _chain(q)
    along, up, side = _circle(wrist - shoulder)
    axis = upper[..., 1]  # of the elbow
    toward = xp.where(q[..., 3:4] < 0, -1.0, 1.0) * cross(axis, along)
    return xp.arctan2((toward * side).sum(-1), (toward * up).sum(-1))


def branch(q: Array) -> Array:
    """The signs of joints 2, 4 and 6 (..., 3); zero counts as positive."""
    return namespace(q).where(q[..., 1::2] < 0, -1.0, 1.0)


def inverse(position: Array, rotation: Array, angle: Array, signs: Array) -> Solution:
    """Joint angles for a pose, an arm angle (...) and a branch (..., 3), broadcast together.

    A wrist beyond reach is moved to the nearest one within it, and `reached` is then False. It is
    also False outside the joint limits; `q` is not clipped to them.
    """
    xp = namespace(position)
    position = xp.clip(position, -_FAR, _FAR)
    line = _to_wrist(position, rotation)
    distance = norm(line)[..., 0]
    bent = (distance**2 - UPPER**2 - FORE**2) / (2 * UPPER * FORE)  # cosine of joint 4
    within = _is_reached(distance)
    elbow = xp.arccos(xp.clip(bent, -1.0, 1.0)) * signs[..., 1]
    distance = xp.clip(distance, NEAREST, FARTHEST)
    forward_part = (distance**2 + UPPER**2 - FORE**2) / (2 * UPPER * distance)
    sideways = xp.clip(1 - forward_part**2, 0.0, None) ** 0.5
    along, up, side = _circle(line)
    toward = up * xp.cos(angle)[..., None] + side * xp.sin(angle)[..., None]
    z = along * forward_part[..., None] + toward * sideways[..., None]
    y = cross(along, toward) * signs[..., 1:2]
    y, z = y + 0 * z, z + 0 * y
    upper = rotations.matrix((cross(y, z), y, z))
    q1, q2, q3 = _angles_of(upper, signs[..., 0])
    fore = upper @ _zyz(0 * elbow, -elbow, 0 * elbow)
    q5, q6, q7 = _angles_of(rotations.transpose(fore) @ rotation, signs[..., 2])
    same = 0 * (q1 + q5)  # every angle in the broadcast shape
    q = xp.stack([x + same for x in (q1, q2, q3, elbow, q5, q6, q7)], axis=-1)
    return Solution(q, within & within_limits(q))


def within_reach(position: Array, rotation: Array) -> Array:
    """Whether the wrist of a pose is within reach; joint limits may still forbid the pose."""
    return _is_reached(norm(_to_wrist(position, rotation))[..., 0])


def _to_wrist(position: Array, rotation: Array) -> Array:
    """From the shoulder to the wrist of a pose of the endeffector."""
    return position - TOOL * rotation[..., 2] - constant((0, 0, SHOULDER), position)


def _is_reached(distance: Array) -> Array:
    return (distance >= NEAREST - 1e-9) & (distance <= FARTHEST + 1e-9)


def within_limits(q: Array) -> Array:
    """Whether all joints are within their limits."""
    return (abs(q) <= constant(LIMITS, q) + 1e-9).all(-1)


def clip(q: Array) -> Array:
    """Joint angles moved to the nearest within the limits."""
    xp, limits = namespace(q), constant(LIMITS, q)
    return xp.minimum(xp.maximum(q, -limits), limits)


def _circle(line: Array) -> tuple[Array, Array, Array]:
    """The frame of the elbow's circle: along the line to the wrist, to the circle's top, sideways.

    A vertical line has no top; the direction away from the x axis is taken for it.
    """
    xp = namespace(line)
    along = unit(line)
    x, y, z = along[..., 0], along[..., 1], along[..., 2]
    flat = xp.hypot(x, y)[..., None]
    ahead = xp.stack([x, y, 0 * x], axis=-1) / xp.clip(flat, 1e-9, None)
    ahead = xp.where(flat > 1e-9, ahead, constant((1.0, 0.0, 0.0), line))
    side = xp.stack([ahead[..., 1], -ahead[..., 0], 0 * x], axis=-1)
    up = xp.stack([-z * ahead[..., 0], -z * ahead[..., 1], flat[..., 0]], axis=-1)
    return along, unit(up), side


def _zyz(a: Array, b: Array, c: Array) -> Array:
    """Rz(a) Ry(b) Rz(c)."""
    xp = namespace(a)
    ca, sa, cb, sb, cc, sc = xp.cos(a), xp.sin(a), xp.cos(b), xp.sin(b), xp.cos(c), xp.sin(c)
    x = xp.stack([ca * cb * cc - sa * sc, sa * cb * cc + ca * sc, -sb * cc], axis=-1)
    y = xp.stack([-ca * cb * sc - sa * cc, -sa * cb * sc + ca * cc, sb * sc], axis=-1)
    z = xp.stack([ca * sb, sa * sb, cb], axis=-1)
    return rotations.matrix((x, y, z))


def _angles_of(rotation: Array, sign: Array) -> tuple[Array, Array, Array]:
    """The angles of `_zyz`; `sign` is that of the middle one.

    The second and third follow from the first, so that they are right for any first angle where the
    rotation leaves it open (middle angle 0).
    """
    xp = namespace(rotation)
    a = xp.arctan2(sign * rotation[..., 1, 2], sign * rotation[..., 0, 2])
    ca, sa = xp.cos(a), xp.sin(a)
    b = xp.arctan2(
        ca * rotation[..., 0, 2] + sa * rotation[..., 1, 2], rotation[..., 2, 2] + 0 * ca
    )
    c = xp.arctan2(
        ca * rotation[..., 1, 0] - sa * rotation[..., 0, 0],
        ca * rotation[..., 1, 1] - sa * rotation[..., 0, 1],
    )
    return a, b, c
