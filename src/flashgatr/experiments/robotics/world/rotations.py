"""Rotation matrices (..., 3, 3), quaternions (..., 4) of x, y, z, w, and pairs of directions.

A pair of directions is the first two columns of a rotation matrix. `orthonormal` maps any two
vectors to a rotation matrix by Gram-Schmidt. All functions take numpy arrays or torch tensors.
"""

from __future__ import annotations

from .arrays import Array, cross, namespace, norm, unit


def matrix(columns: tuple[Array, Array, Array]) -> Array:
    """The matrix with these columns."""
    return namespace(columns[0]).stack(list(columns), axis=-1)


def about_z(angle: Array) -> Array:
    """Rotation matrices about the vertical axis."""
    xp = namespace(angle)
    c, s, zero = xp.cos(angle), xp.sin(angle), xp.zeros_like(angle)
    x, y = xp.stack([c, s, zero], axis=-1), xp.stack([-s, c, zero], axis=-1)
    return matrix((x, y, cross(x, y)))


def orthonormal(first: Array, second: Array) -> Array:
    """The rotation whose first column is along `first` and whose second lies in the plane of both.

    Vectors of length zero and parallel vectors have no plane; any direction that completes the
    rotation is taken for them.
    """
    xp = namespace(first)
    x = xp.where(norm(first) > 1e-9, unit(first), _axis(first, 0))
    y = second - (second * x).sum(-1)[..., None] * x
    fallback = cross(x, xp.where(abs(x[..., :1]) < 0.8, _axis(x, 0), _axis(x, 1)))
    y = unit(xp.where(norm(y) > 1e-9, unit(y), fallback))
    return matrix((x, y, cross(x, y)))


def to_quaternion(rotation: Array) -> Array:
    """The unit quaternion of a rotation, with w >= 0.

    Of four formulas that divide by 2x, 2y, 2z or 2w, the one with the largest divisor is used.
    """
    xp = namespace(rotation)
    r = rotation
    a, b, c = r[..., 0, 0], r[..., 1, 1], r[..., 2, 2]
    x, y, z = (
        r[..., 2, 1] - r[..., 1, 2],
        r[..., 0, 2] - r[..., 2, 0],
        r[..., 1, 0] - r[..., 0, 1],
    )
    xy, xz, yz = (r[..., i, j] + r[..., j, i] for i, j in ((0, 1), (0, 2), (1, 2)))
    rows = xp.stack(
        [
            xp.stack([1 + a - b - c, xy, xz, x], axis=-1),
            xp.stack([xy, 1 - a + b - c, yz, y], axis=-1),
            xp.stack([xz, yz, 1 - a - b + c, z], axis=-1),
            xp.stack([x, y, z, 1 + a + b + c], axis=-1),
        ],
        axis=-2,
    )  # row k is 4 q_k q
    size = xp.stack([rows[..., k, k] for k in range(4)], axis=-1)
    best = size.argmax(-1)[..., None]
    q = unit(sum(rows[..., k, :] * (best == k) for k in range(4)))
    return xp.where(q[..., 3:] < 0, -q, q)


def from_quaternion(quaternion: Array) -> Array:
    """The rotation of a quaternion of any length but zero."""
    x, y, z, w = (unit(quaternion)[..., k] for k in range(4))
    xp = namespace(quaternion)
    first = xp.stack([1 - 2 * (y * y + z * z), 2 * (x * y + z * w), 2 * (x * z - y * w)], axis=-1)
    second = xp.stack([2 * (x * y - z * w), 1 - 2 * (x * x + z * z), 2 * (y * z + x * w)], axis=-1)
    return matrix((first, second, cross(first, second)))


def transpose(rotation: Array) -> Array:
    """The inverse of a rotation."""
    return namespace(rotation).swapaxes(rotation, -1, -2)


def apply(rotation: Array, vector: Array) -> Array:
    """Rotate vectors."""
    return (rotation @ vector[..., None])[..., 0]


def _axis(like: Array, k: int) -> Array:
    """The k-th basis vector, in the shape of `like`."""
    xp = namespace(like)
    return xp.stack([xp.ones_like(like[..., 0]) * float(k == i) for i in range(3)], axis=-1)
