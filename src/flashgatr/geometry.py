"""Embed geometric objects as multivectors and extract them: table 1 of the paper, rays and poses.

Every `embed_` takes coordinates (..., d) and returns multivectors (..., 16) (poses: four of them,
(..., 4, 16)); every `extract_` is its inverse. Extraction divides by the weight w of the object
(its e123 or scalar part), which a network may bring near zero or make negative; it uses

    x / w  for |w| ≥ ε,        x · w / ε²  for |w| < ε,

which is continuous, odd in w, and has finite gradients everywhere. 16-bit numbers are divided in
float32, because 1 / ε² exceeds the range of float16. The sign of every object under mirrors is in
`object_types.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .algebra import (
    BLADES,
    E0,
    E12,
    E13,
    E23,
    E123,
    MOMENT,
    NORMAL,
    POINT,
    POINT_SIGN,
    PSEUDOSCALAR,
    ROTATION,
    ROTATION_SIGN,
    SCALAR,
)
from .constants import constant, indices
from .object_types import PARITY as PARITY
from .object_types import parity as parity
from .precision import at_least_float32, check_tensor

LINE = (E23, E13, E12)
LINE_SIGN = (1, -1, 1)
"""A line along v with moment m is m·(e01, e02, e03) + Σ_a LINE_SIGN[a] v_a LINE[a]."""

EPSILON = 1e-3
"""The ε above: the smallest weight that extraction divides by."""


def embed_scalar(value: Tensor) -> Tensor:
    """A number (..., 1), in the scalar component."""
    return _place(_coordinates(value, 1, "value"), (SCALAR,))


def extract_scalar(mv: Tensor) -> Tensor:
    """The number (..., 1) in the scalar component."""
    return _multivector(mv)[..., SCALAR, None]


def embed_pseudoscalar(value: Tensor) -> Tensor:
    """A number (..., 1) that changes sign under mirrors, in the e0123 component."""
    return _place(_coordinates(value, 1, "value"), (PSEUDOSCALAR,))


def extract_pseudoscalar(mv: Tensor) -> Tensor:
    """The number (..., 1) in the e0123 component."""
    return _multivector(mv)[..., PSEUDOSCALAR, None]


def embed_point(position: Tensor) -> Tensor:
    """A point (..., 3).

    >>> embed_point(torch.tensor([1.0, 2.0, 3.0]))[11:15]
    tensor([-3.,  2., -1.,  1.])
    """
    return _add_one(embed_direction(_coordinates(position, 3, "position")), E123)


def extract_point(mv: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """The position (..., 3) of a point, whatever its weight e123."""
    return _divide(extract_direction(mv), mv[..., E123, None], epsilon)


def embed_direction(direction: Tensor) -> Tensor:
    """A free vector (..., 3), such as a velocity: rotates with the scene, invariant to shifts."""
    return _place(_coordinates(direction, 3, "direction"), POINT, POINT_SIGN)


def extract_direction(mv: Tensor) -> Tensor:
    """The free vector (..., 3) of a multivector without a point (e123 = 0).

    If e123 is not zero, as in most outputs of a network, the result changes with shifts: read a
    free vector as the normal of a plane or as a difference of points.
    """
    return _take(mv, POINT, POINT_SIGN)


def embed_plane(normal: Tensor, position: Tensor) -> Tensor:
    """The oriented plane through `position` (..., 3) with the given normal (..., 3)."""
    normal, position = _coordinates(normal, 3, "normal"), _coordinates(position, 3, "position")
    normal, position = torch.broadcast_tensors(normal, position)
    offset = -(normal * position).sum(-1, keepdim=True)
    return _place(torch.cat([offset, normal], dim=-1), (E0, *range(BLADES)[NORMAL]))


def extract_plane(mv: Tensor, *, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """The normal (..., 3), with the length stored in the multivector, and the plane's point closest
    to the origin (..., 3).
    """
    normal = _multivector(mv)[..., NORMAL]
    wide = at_least_float32(normal)
    position = _over_square(-mv[..., E0, None] * wide, wide, epsilon)
    return normal, position.to(mv.dtype)


def embed_line(direction: Tensor, moment: Tensor) -> Tensor:
    """A line in Plücker form: direction v and moment m = (any point of the line) × v."""
    direction, moment = _coordinates(direction, 3, "direction"), _coordinates(moment, 3, "moment")
    direction, moment = torch.broadcast_tensors(direction, moment)
    oriented = direction * constant(LINE_SIGN, direction)
    return _place(torch.cat([moment, oriented], dim=-1), (*range(BLADES)[MOMENT], *LINE))


def extract_line(mv: Tensor) -> tuple[Tensor, Tensor]:
    """Direction and moment (..., 3) of a line; the moment is not projected orthogonal to the
    direction.
    """
    return _take(mv, LINE, LINE_SIGN), mv[..., MOMENT]


def embed_ray(origin: Tensor, direction: Tensor) -> Tensor:
    """The line of a ray in Plücker form; where on the line the ray starts is not stored."""
    origin, direction = _coordinates(origin, 3, "origin"), _coordinates(direction, 3, "direction")
    origin, direction = torch.broadcast_tensors(origin, direction)
    return embed_line(direction, torch.linalg.cross(origin, direction))


def extract_ray(mv: Tensor, *, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """The line's point closest to the origin, and its direction (both (..., 3))."""
    direction, moment = extract_line(mv)
    wide = at_least_float32(direction)
    point = _over_square(torch.linalg.cross(wide, at_least_float32(moment)), wide, epsilon)
    return point.to(mv.dtype), direction


def embed_translation(shift: Tensor) -> Tensor:
    """The versor that translates by `shift` (..., 3)."""
    half = _place(-0.5 * _coordinates(shift, 3, "shift"), tuple(range(BLADES)[MOMENT]))
    return _add_one(half, SCALAR)


def extract_translation(mv: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """The shift (..., 3) of a translation of any weight; its rotation part, if any, is ignored."""
    return -2 * _divide(_multivector(mv)[..., MOMENT], mv[..., SCALAR, None], epsilon)


def embed_rotation(quaternion: Tensor) -> Tensor:
    """The versor of a quaternion (..., 4), order (i, j, k, w), rotating about the origin."""
    quaternion = _coordinates(quaternion, 4, "quaternion")
    return _place(quaternion, (*ROTATION, SCALAR), (*ROTATION_SIGN, 1))


def extract_rotation(mv: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """Unit quaternion (..., 4), order (i, j, k, w); if its norm is below ε, divided by ε."""
    return _unit(_take(mv, (*ROTATION, SCALAR), (*ROTATION_SIGN, 1)), epsilon)


def embed_reflection(normal: Tensor, position: Tensor) -> Tensor:
    """The versor of the mirror in the plane through `position` (..., 3) with unit `normal`
    (..., 3).
    """
    return embed_plane(normal, position)


def extract_reflection(mv: Tensor, *, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """The mirror's normal and its point closest to the origin, as `extract_plane`."""
    return extract_plane(mv, epsilon=epsilon)


def embed_point_reflection(position: Tensor) -> Tensor:
    """The versor that inverts space through the point `position` (..., 3)."""
    return embed_point(position)


def extract_point_reflection(mv: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """The centre (..., 3) of a point reflection, as `extract_point`."""
    return extract_point(mv, epsilon=epsilon)


def embed_pose(position: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A pose as four multivectors (..., 4, 16): the point, and planes through it.

    The planes' normals are the two given directions (..., 3) and their cross product.
    """
    first, second = _coordinates(first, 3, "first"), _coordinates(second, 3, "second")
    first, second = torch.broadcast_tensors(first, second)
    normals = torch.stack([first, second, torch.linalg.cross(first, second)], dim=-2)
    return _point_and_planes(position, normals)


def extract_pose(mv: Tensor, *, epsilon: float = EPSILON) -> tuple[Tensor, Tensor, Tensor]:
    """Position and the two directions (each (..., 3)) of `embed_pose`, with their lengths."""
    point, normals = _from_point_and_planes(mv, epsilon)
    return point, normals[..., 0, :], normals[..., 1, :]


def embed_pose_quaternion(position: Tensor, quaternion: Tensor) -> Tensor:
    """A pose (..., 4, 16) from a position and a unit quaternion (i, j, k, w)."""
    matrix = quaternion_to_matrix(_coordinates(quaternion, 4, "quaternion"))
    return _point_and_planes(position, matrix.transpose(-1, -2))


def extract_pose_quaternion(mv: Tensor, *, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """Position (..., 3) and unit quaternion (..., 4), after Gram-Schmidt on the first two planes.

    Continuous up to the quaternion's sign, also at rotations by 180°.
    """
    point, normals = _from_point_and_planes(mv, epsilon)
    first = _unit(normals[..., 0, :], epsilon)
    along = (normals[..., 1, :] * first).sum(-1, keepdim=True)
    second = _unit(normals[..., 1, :] - along * first, epsilon)
    third = torch.linalg.cross(first, second)
    return point, matrix_to_quaternion(torch.stack([first, second, third], dim=-1))


def quaternion_to_matrix(quaternion: Tensor) -> Tensor:
    """Rotation matrix (..., 3, 3) of a quaternion (i, j, k, w) of any length; identity for zero."""
    q = _coordinates(quaternion, 4, "quaternion")
    i, j, k, w = _unit(q, torch.finfo(torch.float32).tiny).unbind(-1)
    rows = [
        [1 - 2 * (j * j + k * k), 2 * (i * j - k * w), 2 * (i * k + j * w)],
        [2 * (i * j + k * w), 1 - 2 * (i * i + k * k), 2 * (j * k - i * w)],
        [2 * (i * k - j * w), 2 * (j * k + i * w), 1 - 2 * (i * i + j * j)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def matrix_to_quaternion(matrix: Tensor) -> Tensor:
    """Unit quaternion (i, j, k, w) of a rotation matrix (..., 3, 3).

    The symmetric matrix 4 q qᵀ is linear in the rotation; its row with the largest diagonal entry
    is 4 q_max q, which is never small. No rotation angle needs a special case.
    """
    check_tensor("matrix", matrix)
    if matrix.shape[-2:] != (3, 3):
        raise ValueError(f"matrix must have shape (..., 3, 3), got {tuple(matrix.shape)}")
    m = matrix
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    ij, ik, jk = (
        m[..., 0, 1] + m[..., 1, 0],
        m[..., 0, 2] + m[..., 2, 0],
        m[..., 1, 2] + m[..., 2, 1],
    )
    iw, jw, kw = (
        m[..., 2, 1] - m[..., 1, 2],
        m[..., 0, 2] - m[..., 2, 0],
        m[..., 1, 0] - m[..., 0, 1],
    )
    rows = [
        [1 + xx - yy - zz, ij, ik, iw],
        [ij, 1 - xx + yy - zz, jk, jw],
        [ik, jk, 1 - xx - yy + zz, kw],
        [iw, jw, kw, 1 + xx + yy + zz],
    ]
    outer = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    best = outer.diagonal(dim1=-2, dim2=-1).detach().argmax(-1)
    row = outer.take_along_dim(best[..., None, None], dim=-2).squeeze(-2)
    return _unit(row, EPSILON)


def _point_and_planes(position: Tensor, normals: Tensor) -> Tensor:
    position = _coordinates(position, 3, "position").unsqueeze(-2)
    planes = embed_plane(normals, position)
    point = embed_point(position).expand(*planes.shape[:-2], 1, BLADES)
    return torch.cat([point, planes], dim=-2)


def _from_point_and_planes(mv: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    check_tensor("a pose", mv)
    if mv.dim() < 2 or mv.shape[-2] != 4:
        raise ValueError(
            f"a pose is four multivectors (..., 4, {BLADES}): a point and three planes; got shape "
            f"{tuple(mv.shape)}"
        )
    return extract_point(mv[..., 0, :], epsilon=epsilon), _multivector(mv)[..., 1:, NORMAL]


def _place(values: Tensor, blades: tuple[int, ...], signs: tuple[int, ...] | None = None) -> Tensor:
    """A multivector with the given values at the given blades and zeros elsewhere."""
    if signs is not None:
        values = values * constant(signs, values)
    source = [values.shape[-1]] * BLADES  # the zero appended below
    for position, blade in enumerate(blades):
        source[blade] = position
    padded = torch.nn.functional.pad(values, (0, 1))
    return padded.index_select(-1, indices(tuple(source), values))


def _take(mv: Tensor, blades: tuple[int, ...], signs: tuple[int, ...]) -> Tensor:
    return _multivector(mv).index_select(-1, indices(blades, mv)) * constant(signs, mv)


def _add_one(mv: Tensor, blade: int) -> Tensor:
    return mv + constant(tuple(int(i == blade) for i in range(BLADES)), mv)


def _divide(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / weight away from zero, x · weight / ε² near it."""
    dtype, x, weight = x.dtype, at_least_float32(x), at_least_float32(weight)
    large = weight.abs() >= epsilon
    small = x * (weight / epsilon) / epsilon
    return torch.where(large, x / torch.where(large, weight, 1), small).to(dtype)


def _unit(x: Tensor, epsilon: float) -> Tensor:
    """x / max(‖x‖, ε), with a finite gradient at zero and without overflow in the squares."""
    wide = at_least_float32(x)
    size = wide.detach().abs().amax(-1, keepdim=True).clamp(min=epsilon)
    scaled = wide / size
    squared = (scaled * scaled).sum(-1, keepdim=True)
    return (scaled * squared.maximum((epsilon / size).square()).rsqrt()).to(x.dtype)


def _over_square(x: Tensor, vector: Tensor, epsilon: float) -> Tensor:
    """x / max(‖vector‖², ε²)."""
    return x / (vector * vector).sum(-1, keepdim=True).clamp(min=epsilon**2)


def _coordinates(x: Tensor, size: int, name: str) -> Tensor:
    check_tensor(name, x)
    if x.shape[-1:] != (size,):
        raise ValueError(f"{name} must have shape (..., {size}), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}; cast it with .float()")
    return x


def _multivector(mv: Tensor) -> Tensor:
    check_tensor("a multivector", mv)
    if mv.shape[-1:] != (BLADES,):
        raise ValueError(f"a multivector must have shape (..., {BLADES}), got {tuple(mv.shape)}")
    if not mv.is_floating_point():
        raise TypeError(
            f"a multivector must be floating point, got {mv.dtype}; cast it with .float()"
        )
    return mv
