"""Elements of E(3) as versors of Pin(3,0,1): sample, compose, invert, apply, convert; recentring.

A versor is a product of reflections, a multivector (..., 16) of norm one; u and -u are the same
motion. embed_translation, embed_rotation, embed_reflection and embed_point_reflection make versors;
the product u v is the motion "first v, then u".
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .algebra import BLADES, E123, EUCLIDEAN, NORMAL, NULL, PGA
from .batch import Sets
from .constants import constant, indices
from .geometry import (
    embed_plane,
    embed_point,
    embed_rotation,
    embed_translation,
    extract_direction,
    extract_point,
    matrix_to_quaternion,
)
from .object_types import check_parity
from .ops import inverse, product, sandwich

Kind = Literal[
    "E(3)", "SE(3)", "rotation", "translation", "reflection", "inversion", "rotoreflection"
]


def compose(*versors: Tensor) -> Tensor:
    """The motion that applies the last versor first: compose(u, v) x = u (v x).

    >>> t = embed_translation(torch.tensor([1.0, 2.0, 3.0]))
    >>> extract_point(apply(compose(t, t, t), embed_point(torch.zeros(3))))
    tensor([3., 6., 9.])
    """
    if not versors:
        raise ValueError("compose needs at least one versor")
    result = versors[0]
    for versor in versors[1:]:
        result = product(result, versor)
    return result


def apply(versor: Tensor, mv: Tensor, parity: str | None = None) -> Tensor:
    """Move multivectors (..., 16) by a versor (16) or by versors that broadcast with them.

    parity: one letter per channel of multivectors (..., C, 16), "e" (even) or "o" (odd), as
        `flashgatr.parity` gives them. Motions with a mirror also change the sign of odd channels.

    >>> mirror = embed_plane(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3))
    >>> point = embed_point(torch.tensor([[1.0, 2.0, 3.0]]))
    >>> extract_point(apply(mirror, point, "o")), apply(mirror, point, "o")[0, 14]
    (tensor([[-1.,  2.,  3.]]), tensor(1.))
    """
    moved = sandwich(versor, mv)
    if parity is None:
        return moved
    if mv.dim() < 2:
        raise ValueError(
            f"parity={parity!r} is that of channels (..., C, 16), got multivectors of shape "
            f"{tuple(mv.shape)}"
        )
    check_parity(parity, mv.shape[-2], "parity")
    odd = constant(tuple(int(letter == "o") for letter in parity), mv)[:, None] > 0
    return torch.where(odd & is_odd(versor)[..., None], -moved, moved)


def is_odd(versor: Tensor) -> Tensor:
    """Whether the motion contains a mirror: booleans (...) of versors (..., 16)."""

    def size(grades: tuple[int, ...]) -> Tensor:
        return versor.index_select(-1, indices(grades, versor)).square().sum(-1)

    return size(_ODD_GRADES) > size(_EVEN_GRADES)


def invert(versor: Tensor) -> Tensor:
    """The motion that undoes this one."""
    return inverse(versor)


def sample(
    *shape: int,
    kind: Kind = "E(3)",
    distance: float = 1.0,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """Random versors (*shape, 16).

    Rotations are uniform; shifts are normally distributed with standard deviation `distance`, and
    so are a point on each mirror plane and the centre of each inversion. A rotoreflection is a
    mirror followed by a rotation about an axis through the origin. Versors of "E(3)" are even or
    odd with equal probability, and both signs of u are equally likely. Numbers are drawn on the
    generator's own device: a CPU generator gives the same versors on every device.
    """
    source = device if generator is None else generator.device

    def normal(*size: int) -> Tensor:
        return torch.randn(*shape, *size, generator=generator, dtype=dtype, device=source)

    def chance() -> Tensor:
        return torch.rand(*shape, 1, generator=generator, dtype=dtype, device=source) < 0.5

    shift = embed_translation(distance * normal(3))
    turn = embed_rotation(torch.nn.functional.normalize(normal(4), dim=-1))
    mirror = embed_plane(torch.nn.functional.normalize(normal(3), dim=-1), distance * normal(3))
    if kind == "translation":
        versor = shift
    elif kind == "rotation":
        versor = turn
    elif kind == "reflection":
        versor = mirror
    elif kind == "inversion":
        versor = embed_point(distance * normal(3))
    elif kind == "rotoreflection":
        versor = product(turn, mirror)
    elif kind == "SE(3)":
        versor = product(shift, turn)
    elif kind == "E(3)":
        even = product(shift, turn)
        versor = torch.where(chance(), even, product(even, mirror))
    else:
        *others, last = (repr(name) for name in get_args(Kind))
        raise ValueError(f"unknown kind {kind!r}; expected {', '.join(others)} or {last}")
    versor = torch.where(chance(), versor, -versor)
    return versor if device is None else versor.to(device)


def to_matrix(versor: Tensor) -> Tensor:
    """Homogeneous matrix (..., 4, 4) of the motion: x ↦ R x + t, R orthogonal."""
    axes = torch.eye(3, dtype=versor.dtype, device=versor.device)
    planes = embed_plane(axes, torch.zeros_like(axes))
    columns = apply(versor.unsqueeze(-2), planes)[..., NORMAL]
    shift = extract_point(apply(versor, embed_point(axes.new_zeros(3))))
    top = torch.cat([columns.transpose(-1, -2), shift.unsqueeze(-1)], dim=-1)
    bottom = constant((_LAST_ROW,), versor).expand(*top.shape[:-2], 1, 4)
    return torch.cat([top, bottom], dim=-2)


def from_matrix(matrix: Tensor) -> Tensor:
    """Versor of a homogeneous matrix (..., 4, 4), or of an orthogonal one (..., 3, 3).

    An improper matrix is a rotation followed by the inversion through the origin. The sign of the
    versor is arbitrary.
    """
    if matrix.shape[-2:] not in ((3, 3), (4, 4)):
        raise ValueError(f"expected a matrix (..., 3, 3) or (..., 4, 4), got {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        raise TypeError(f"matrix must be floating point, got {matrix.dtype}; cast it with .float()")
    linear = matrix[..., :3, :3]
    error = (linear @ linear.mT - constant(_IDENTITY, linear)).abs()
    if not bool((error <= 1e-3).all()):
        raise ValueError(
            "the 3 x 3 part must be orthogonal; R Rᵀ differs from the identity by "
            f"{error.amax():.1e}; E(3) has no scaling or shear"
        )
    proper = (torch.linalg.det(linear) > 0)[..., None, None]
    turn = embed_rotation(matrix_to_quaternion(torch.where(proper, linear, -linear)))
    inversion = embed_point(linear.new_zeros(3))
    versor = torch.where(proper.squeeze(-1), turn, product(inversion, turn))
    if matrix.shape[-1] == 3:
        return versor
    if not bool(((matrix[..., 3, :] - constant(_LAST_ROW, matrix)).abs() <= 1e-3).all()):
        raise ValueError(
            "the last row of a homogeneous matrix must be (0, 0, 0, 1); the shift belongs in the "
            "last column"
        )
    return product(embed_translation(matrix[..., :3, 3]), versor)


def to_quaternion(versor: Tensor) -> Tensor:
    """Unit quaternion (i, j, k, w) of the rotation part of an even versor."""
    linear = to_matrix(versor)[..., :3, :3]
    if bool((torch.linalg.det(linear) < 0).any()):
        raise ValueError("an odd versor contains a mirror and has no quaternion; use to_matrix")
    return matrix_to_quaternion(linear)


_IDENTITY = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
_LAST_ROW = (0, 0, 0, 1)
_ODD_GRADES = tuple(i for i, grade in enumerate(PGA.grades) if grade % 2)
_EVEN_GRADES = tuple(i for i, grade in enumerate(PGA.grades) if not grade % 2)
_IS_NULL = tuple(int(i in NULL) for i in range(BLADES))


def _shift_table() -> tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]:
    """For each axis: source index and sign of the term that a unit shift adds to every component.

    A shift by v is x ↦ x - e0 (v ⌋ t), where t is the part of x without e0.
    """
    table = []
    for axis in range(3):
        source, sign = [0] * BLADES, [0.0] * BLADES
        for k, i, j, s in PGA.contraction_terms:
            if i == range(BLADES)[NORMAL][axis] and j in EUCLIDEAN:
                null = NULL[EUCLIDEAN.index(k)]
                source[null], sign[null] = j, -float(s)
        table.append((tuple(source), tuple(sign)))
    return tuple(table)


SHIFT = _shift_table()
_SHIFT_SOURCES = tuple(i for source, _ in SHIFT for i in source)
_SHIFT_SIGNS = tuple(sign for _, sign in SHIFT)


def translate(mv: Tensor, shift: Tensor) -> Tensor:
    """Translate multivectors (..., 16) by a shift (..., 3), with twelve terms instead of two
    geometric products.
    """
    moved = mv.index_select(-1, indices(_SHIFT_SOURCES, mv)).unflatten(-1, (3, BLADES))
    by = shift.unsqueeze(-1) * constant(_SHIFT_SIGNS, mv)
    return torch.add(mv, (moved * by).sum(-2))


def rescale(mv: Tensor, factor: float) -> Tensor:
    """Multiply every length by `factor`: e0 ↦ factor · e0, an automorphism of the algebra."""
    return torch.where(constant(_IS_NULL, mv) > 0, mv * factor, mv)


def centroid(mv: Tensor, sets: Sets) -> Tensor:
    """Weighted centre of the points of every sample: Σ w t / Σ w² over its items and channels.

    w is the e123 component and t the components of the point's position; the centre moves with the
    sample under all of E(3). If e123 is zero throughout a sample, or below the rounding error of
    its other components, the result is the origin.
    """
    mv = mv.detach()
    weight = mv[..., E123, None]
    moment = sets.sum((weight * extract_direction(mv)).sum(-2))
    mass = sets.sum((weight * weight).sum(-2))
    everything = sets.sum(
        mv.index_select(-1, indices(EUCLIDEAN, mv)).square().sum((-2, -1))[..., None]
    )
    noise = everything * (16 * torch.finfo(mv.dtype).eps) ** 2
    centred = mass > noise
    return torch.where(centred, moment / torch.where(centred, mass, 1), 0)


def working_center(mv: Tensor, sets: Sets) -> Tensor:
    """Each sample's centroid if the coordinates relative to it are smaller, else the origin.

    In a sample of mostly planes and lines, a small e123 component can put the centroid far away,
    where the planes and lines have large components with e0. The network's function is the same for
    either centre; the choice affects rounding only.
    """
    mv = mv.detach()
    center = centroid(mv, sets)
    moved = translate(mv, -sets.spread(center).unsqueeze(-2))

    def size(x: Tensor) -> Tensor:
        return sets.sum(x.index_select(-1, indices(NULL, x)).square().sum((-2, -1))[..., None])

    return torch.where(size(moved) <= size(mv), center, 0)
