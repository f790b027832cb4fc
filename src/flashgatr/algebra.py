"""Geometric algebras G(p,q,r), derived from their signature alone.

A basis blade is a set of generators, written as a bit mask; the product of two blades is

    e_A e_B = (-1)^(swaps needed to sort A·B) · Π_{g in A and B} g²  ·  e_{A xor B}.

Everything else (outer product, contraction, duals, join) selects terms of this rule or re-indexes
them. Blades are ordered by grade, then lexicographically, with null generators first. The basis of
the projective algebra G(3,0,1) is therefore

    1 | e0 e1 e2 e3 | e01 e02 e03 e12 e13 e23 | e012 e013 e023 e123 | e0123.

The second half of the file defines the names for G(3,0,1) that the rest of the package uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

Term = tuple[int, int, int, int]
"""(k, i, j, sign): the product of blades i and j contributes sign to blade k."""


@dataclass(frozen=True)
class Algebra:
    """G(p,q,r): p generators square to +1, q to -1, r to 0.

    >>> Algebra(3, 0, 1).names[11:15]
    ('e012', 'e013', 'e023', 'e123')
    >>> len(Algebra(3, 0, 1).product_terms), len(Algebra(3, 0, 1).join_terms)
    (192, 81)
    """

    p: int
    q: int = 0
    r: int = 0

    def __post_init__(self) -> None:
        if min(self.p, self.q, self.r) < 0 or self.generators > 9:
            raise ValueError(  # one digit per generator in a blade's name: e12 is e1 e2
                f"signature ({self.p}, {self.q}, {self.r}) must be non-negative with at most 9 "
                "generators in all"
            )

    @property
    def generators(self) -> int:
        return self.p + self.q + self.r

    @cached_property
    def squares(self) -> tuple[int, ...]:
        """Square of each generator: the null ones first, then the positive, then the negative."""
        return (0,) * self.r + (1,) * self.p + (-1,) * self.q

    @cached_property
    def blades(self) -> tuple[int, ...]:
        """Bit mask of every basis blade, by grade and then lexicographically."""
        everything = range(self.generators)
        return tuple(
            sum(1 << g for g in subset)
            for k in range(self.generators + 1)
            for subset in combinations(everything, k)
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        first = 0 if self.r else 1  # by convention, e0 is a null generator
        return tuple(
            "e" + "".join(str(g + first) for g in range(self.generators) if b >> g & 1)
            if b
            else "1"
            for b in self.blades
        )

    @cached_property
    def grades(self) -> tuple[int, ...]:
        """Grade of every blade."""
        return tuple(b.bit_count() for b in self.blades)

    def grade(self, k: int) -> slice:
        """The indices of the blades of grade k, which are contiguous."""
        if not 0 <= k <= self.generators:
            raise ValueError(f"grade {k} does not exist; expected 0 to {self.generators}")
        start = self.grades.index(k)
        return slice(start, start + self.grades.count(k))

    def blade(self, name: str) -> int:
        """Index of a blade by its name."""
        if name not in self.names:
            raise ValueError(f"unknown blade {name!r}; expected one of {', '.join(self.names)}")
        return self.names.index(name)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {b: i for i, b in enumerate(self.blades)}

    def multiply(self, i: int, j: int) -> tuple[int, int]:
        """(index, sign) of the product of blades i and j; sign 0 if both have a null generator."""
        a, b = self.blades[i], self.blades[j]
        swaps = sum((a >> (g + 1)).bit_count() for g in range(self.generators) if b >> g & 1)
        sign = -1 if swaps % 2 else 1
        for g in range(self.generators):
            if a & b & (1 << g):
                sign *= self.squares[g]
        return self._index[a ^ b], sign

    def _select(self, keep: Callable[[int, int, int], bool]) -> tuple[Term, ...]:
        """Terms of the geometric product whose grades (left, right, result) pass the test."""
        size = len(self.blades)
        products = ((i, j, *self.multiply(i, j)) for i in range(size) for j in range(size))
        g = self.grades
        return tuple(
            sorted((k, i, j, s) for i, j, k, s in products if s and keep(g[i], g[j], g[k]))
        )

    @cached_property
    def product_terms(self) -> tuple[Term, ...]:
        return self._select(lambda a, b, c: True)

    @cached_property
    def outer_terms(self) -> tuple[Term, ...]:
        return self._select(lambda a, b, c: c == a + b)

    @cached_property
    def contraction_terms(self) -> tuple[Term, ...]:
        """Left contraction: the part of grade (right - left)."""
        return self._select(lambda a, b, c: c == b - a)

    @cached_property
    def join_terms(self) -> tuple[Term, ...]:
        """dual(dual x ∧ dual y), with the dual written out."""
        index, sign = self.dual_index, self.dual_sign
        return tuple(
            sorted(
                (
                    index[k],
                    index[i],
                    index[j],
                    s * sign[index[i]] * sign[index[j]] * sign[k],
                )
                for k, i, j, s in self.outer_terms
            )
        )

    @cached_property
    def dual_index(self) -> tuple[int, ...]:
        """Index of every blade's complement (an involution)."""
        return tuple(self._index[self.blades[-1] ^ b] for b in self.blades)

    @cached_property
    def dual_sign(self) -> tuple[int, ...]:
        """Right complement: e_S* = sign · e_(complement of S) with e_S ∧ e_S* = pseudoscalar."""
        euclidean = Algebra(self.generators)  # the outer product does not depend on the metric
        return tuple(euclidean.multiply(i, d)[1] for i, d in enumerate(self.dual_index))

    @cached_property
    def reverse_sign(self) -> tuple[int, ...]:
        return tuple(-1 if k * (k - 1) // 2 % 2 else 1 for k in self.grades)

    @cached_property
    def involution_sign(self) -> tuple[int, ...]:
        return tuple(-1 if k % 2 else 1 for k in self.grades)

    @cached_property
    def inner_sign(self) -> tuple[int, ...]:
        """⟨x̃ y⟩_0 = Σ inner_sign[i] x_i y_i: the square of each blade up to reversal."""
        return tuple(self.multiply(i, i)[1] * self.reverse_sign[i] for i in range(len(self.blades)))


PGA = Algebra(3, 0, 1)
"""The projective geometric algebra of three-dimensional Euclidean space."""

BLADES = len(PGA.blades)
GRADES = PGA.generators + 1

SCALAR = PGA.blade("1")
E0 = PGA.blade("e0")
E12, E13, E23 = (PGA.blade(name) for name in ("e12", "e13", "e23"))
E012, E013, E023 = (PGA.blade(name) for name in ("e012", "e013", "e023"))
E123 = PGA.blade("e123")
PSEUDOSCALAR = PGA.blade("e0123")

NORMAL = slice(PGA.blade("e1"), PGA.blade("e3") + 1)
"""e1, e2, e3: the normal of a plane."""
MOMENT = slice(PGA.blade("e01"), PGA.blade("e03") + 1)
"""e01, e02, e03: the moment of a line, or minus half a translation."""

EUCLIDEAN = tuple(i for i in range(BLADES) if PGA.inner_sign[i])
"""The eight blades without e0; the inner product uses only these."""
NULL = tuple(PGA.multiply(E0, i)[0] for i in EUCLIDEAN)
"""e0 times each Euclidean blade, in the same order (every sign is +)."""

POINT = (E023, E013, E012)
POINT_SIGN = (-1, 1, -1)
"""A point is e123 + Σ_a POINT_SIGN[a] x_a POINT[a]."""
ROTATION = (E23, E13, E12)
ROTATION_SIGN = (-1, 1, -1)
"""A rotor is w + Σ_a ROTATION_SIGN[a] q_a ROTATION[a] for the quaternion (q, w)."""


def grade(k: int) -> slice:
    """The indices of the blades of grade k in a multivector of G(3,0,1)."""
    return PGA.grade(k)
