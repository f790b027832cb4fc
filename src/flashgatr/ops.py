"""Functions on multivectors (..., 16) of G(3,0,1).

    product        x y                      wedge   x ∧ y            join   (x* ∧ y*)*
    inner          ⟨x̃ y⟩₀                    reverse x̃                involute  x̂
    sandwich       u x u⁻¹ (u even), u x̂ u⁻¹ (u odd)

All are batched, broadcast over leading dimensions and differentiable. None uses a matrix product,
so neither autocast nor TF32 lowers the precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .algebra import BLADES, E123, EUCLIDEAN, GRADES, PGA, Term, grade
from .constants import constant, indices
from .precision import check_tensor

__all__ = [
    "dual",
    "equivariant_join",
    "grade_project",
    "inner",
    "inverse",
    "involute",
    "join",
    "left_contraction",
    "norm",
    "product",
    "reverse",
    "sandwich",
    "select_grade",
    "undual",
    "wedge",
]


Matrix = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


def left_matrix(terms: tuple[Term, ...]) -> Matrix:
    """Index and sign of the component of x at row k, column j of the matrix y ↦ x y."""
    index = [0] * (BLADES * BLADES)
    sign = [[0] * BLADES for _ in range(BLADES)]
    for k, i, j, s in terms:
        index[k * BLADES + j] = i
        sign[k][j] = s
    return tuple(index), tuple(tuple(row) for row in sign)


# Plain Python values, computed at import: tracers treat them as constants.
_PRODUCT, _WEDGE = left_matrix(PGA.product_terms), left_matrix(PGA.outer_terms)
_JOIN, _CONTRACTION = left_matrix(PGA.join_terms), left_matrix(PGA.contraction_terms)
_REVERSE, _INVOLUTION = PGA.reverse_sign, PGA.involution_sign
_DUAL, _UNDUAL_SIGN = PGA.dual_index, PGA.dual_sign
_DUAL_SIGN = tuple(_UNDUAL_SIGN[i] for i in _DUAL)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Geometric product x y: 192 of the 4,096 possible terms are nonzero.

    >>> e1, e2 = torch.eye(16)[2], torch.eye(16)[3]
    >>> product(e1, e2).nonzero().item()  # e12
    8
    """
    return contract(x, y, _PRODUCT)


def wedge(x: Tensor, y: Tensor) -> Tensor:
    """Outer product x ∧ y: the intersection of planes, lines and points."""
    return contract(x, y, _WEDGE)


def left_contraction(x: Tensor, y: Tensor) -> Tensor:
    """x ⌋ y: the part of x y whose grade is that of y minus that of x."""
    return contract(x, y, _CONTRACTION)


def join(x: Tensor, y: Tensor) -> Tensor:
    """(x* ∧ y*)*: the line through two points, the plane through a point and a line.

    The last * is the dual, not its inverse (they differ in the sign of odd grades). Equivariant
    under SE(3).
    """
    return contract(x, y, _JOIN)


def equivariant_join(x: Tensor, y: Tensor, reference: Tensor) -> Tensor:
    """join(x, y) times the e123 part of a reference multivector (..., 16); E(3)-equivariant."""
    _check(reference, "reference")
    return reference[..., E123, None] * join(x, y)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Invariant inner product, (..., 1): the dot product over the eight blades without e0."""
    _check(x, "x")
    _check(y, "y")
    return (_euclidean(x) * _euclidean(y)).sum(-1, keepdim=True)


def norm(x: Tensor) -> Tensor:
    """√⟨x, x⟩, (..., 1); where the norm vanishes, its gradient is zero rather than NaN."""
    squared = inner(x, x)
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), 0)


def reverse(x: Tensor) -> Tensor:
    """x̃: the order of all vector factors reversed (bivectors and trivectors change sign)."""
    _check(x, "x")
    return x * constant(_REVERSE, x)


def involute(x: Tensor) -> Tensor:
    """Grade involution x̂: odd grades change sign."""
    _check(x, "x")
    return x * constant(_INVOLUTION, x)


def dual(x: Tensor) -> Tensor:
    """Right complement: e_S ∧ dual(e_S) = e0123."""
    _check(x, "x")
    return x.index_select(-1, indices(_DUAL, x)) * constant(_DUAL_SIGN, x)


def undual(x: Tensor) -> Tensor:
    """Inverse of the dual (the left complement)."""
    _check(x, "x")
    return x.index_select(-1, indices(_DUAL, x)) * constant(_UNDUAL_SIGN, x)


def select_grade(x: Tensor, k: int) -> Tensor:
    """⟨x⟩_k: all components but those of grade k set to zero."""
    _check(x, "x")
    blades = range(BLADES)[grade(k)]
    return x * constant(tuple(int(i in blades) for i in range(BLADES)), x)


def grade_project(x: Tensor) -> Tensor:
    """All grade projections at once, (..., 5, 16)."""
    return torch.stack([select_grade(x, k) for k in range(GRADES)], dim=-2)


def inverse(u: Tensor) -> Tensor:
    """Inverse of a versor, ũ / ⟨u, u⟩; for multivectors of zero norm the result is inf or NaN."""
    return reverse(u) / inner(u, u)


def sandwich(u: Tensor, x: Tensor) -> Tensor:
    """Action of a versor u (even or odd, of any norm) on a multivector x."""
    _check(u, "u")
    _check(x, "x")
    odd = _odd_share(u) > 0.5
    x = torch.where(odd, involute(x), x)
    return product(product(u, x), inverse(u))


def _odd_share(u: Tensor) -> Tensor:
    """Share of the odd grades in Σ u_i², (..., 1): 0 for even versors, 1 for odd ones."""
    squares = u.detach() ** 2
    odd = squares[..., grade(1)].sum(-1) + squares[..., grade(3)].sum(-1)
    return (odd / squares.sum(-1)).unsqueeze(-1)


def _euclidean(x: Tensor) -> Tensor:
    return x.index_select(-1, indices(EUCLIDEAN, x))


def contract(x: Tensor, y: Tensor, matrix: Matrix) -> Tensor:
    """Σ sign x_i y_j e_k over the terms of a table from `left_matrix`.

    Computed as a 16 x 16 matrix, the left multiplication by x, times the vector y.
    """
    _check(x, "x")
    _check(y, "y")
    index, sign = matrix
    left = x.index_select(-1, indices(index, x)).reshape(*x.shape, BLADES) * constant(sign, x)
    return (left * y.unsqueeze(-2)).sum(-1)


def _check(x: Tensor, name: str) -> None:
    check_tensor(name, x)
    if x.shape[-1:] != (BLADES,):
        raise ValueError(
            f"{name} must be a multivector with last dimension {BLADES}, got shape "
            f"{tuple(x.shape)}; embed coordinates with the embed_ functions first"
        )
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}; cast it with .float()")
