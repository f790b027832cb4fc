"""Spherical harmonics and the Wigner 3j coefficients that couple features of different degrees.

A feature of degree ℓ has 2ℓ + 1 components, which a rotation mixes; degree 1 is a vector (x, y, z).
The conventions are those of e3nn: y is the polar axis, harmonics are real and orthonormal on the
sphere (‖Y_ℓ‖² = (2ℓ + 1) / 4π in every direction), and the squares of the coefficients of three
degrees add up to one. The coefficients come from Racah's formula, whose sum is exact. The harmonics
follow from them, one degree after the other, by coupling with the direction r̂:

    Y_{ℓ+1} = (2ℓ + 3) / √(ℓ + 1) · Σ C[ℓ, 1, ℓ+1] Y_ℓ r̂
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from math import factorial

import torch
from torch import Tensor, nn


@cache
def wigner_3j(first: int, second: int, third: int) -> Tensor:
    """The coefficients C of three degrees, (2ℓ₁ + 1, 2ℓ₂ + 1, 2ℓ₃ + 1), in float64.

    If x and y have the degrees ℓ₁ and ℓ₂, then Σ C[a, b, c] x_a y_b has the degree ℓ₃.

    >>> (wigner_3j(1, 1, 0)[..., 0] * 3**0.5).float()  # the dot product of vectors
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    if min(first, second, third) < 0 or not abs(first - second) <= third <= first + second:
        raise ValueError(
            f"degrees {first} and {second} couple to degrees from {abs(first - second)} to "
            f"{first + second}, got {third}"
        )
    with torch.inference_mode(False), torch.device("cpu"):
        table = torch.zeros(2 * first + 1, 2 * second + 1, 2 * third + 1, dtype=torch.complex128)
        for a in range(-first, first + 1):
            for b in range(max(-second, -third - a), min(second, third - a) + 1):
                value = _clebsch_gordan(first, a, second, b, third)
                table[first + a, second + b, third + a + b] = value
        bases = (_complex_basis(degree) for degree in (first, second))
        table = torch.einsum("ia,jb,kc,ijk->abc", *bases, _complex_basis(third).conj(), table)
        return table.real / math.sqrt(2 * third + 1)


def _clebsch_gordan(j1: int, m1: int, j2: int, m2: int, j3: int) -> float:
    """⟨j₁ m₁ j₂ m₂ | j₃ m₁ + m₂⟩ by Racah's formula."""
    m3 = m1 + m2
    lowest, highest = max(0, j2 - j3 - m1, j1 - j3 + m2), min(j1 + j2 - j3, j1 - m1, j2 + m2)
    total = Fraction(0)
    for k in range(lowest, highest + 1):
        below = (k, j1 + j2 - j3 - k, j1 - m1 - k, j2 + m2 - k, j3 - j2 + m1 + k, j3 - j1 - m2 + k)
        total += Fraction((-1) ** k, math.prod(factorial(n) for n in below))
    above = [j3 + j1 - j2, j3 - j1 + j2, j1 + j2 - j3]
    above += [j1 + m1, j1 - m1, j2 + m2, j2 - m2, j3 + m3, j3 - m3]
    size = Fraction(
        (2 * j3 + 1) * math.prod(factorial(n) for n in above), factorial(j1 + j2 + j3 + 1)
    )
    return float(total) * math.sqrt(size)


def _complex_basis(degree: int) -> Tensor:
    """The complex harmonics (rows, m = -ℓ to ℓ) in terms of the real ones (columns).

    The phase (-i)^ℓ makes the coefficients of every triple real.
    """
    basis = torch.zeros(2 * degree + 1, 2 * degree + 1, dtype=torch.complex128)
    basis[degree, degree] = 1
    for m in range(1, degree + 1):
        row = torch.zeros(2 * degree + 1, 2, dtype=torch.float64)  # real and imaginary parts
        row[degree + m, 0], row[degree - m, 1] = math.sqrt(0.5), -math.sqrt(0.5)
        basis[degree - m] = torch.view_as_complex(row)
        basis[degree + m] = (-1) ** m * basis[degree - m].conj()
    return (-1j) ** degree * basis


class ExactConstant(nn.Module):
    """A table of numbers that keeps the digits of float64 when its module is converted.

    The buffer holds the bits of the numbers as integers, which `.to(dtype)` leaves as they are.
    """

    bits: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("bits", values.double().view(torch.int64), persistent=False)

    def forward(self, like: Tensor) -> Tensor:
        """The numbers in the dtype of `like`."""
        return self.bits.view(torch.float64).to(like.dtype)


class SphericalHarmonics(nn.Module):
    """Y_0 to Y_L of the directions of vectors: (..., 3) to (..., (L + 1)²).

    A zero vector has no direction; its harmonics of degree 1 and more are zero, and its gradients
    finite. The sums are not matrix products, so TF32 and autocast do not round them.

    >>> SphericalHarmonics(1)(torch.tensor([0.0, 2.0, 0.0])) * (4 * torch.pi) ** 0.5
    tensor([1.0000, 0.0000, 1.7321, 0.0000])
    """

    def __init__(self, highest: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(
            ExactConstant((2 * n + 3) / math.sqrt(n + 1) * wigner_3j(n, 1, n + 1).flatten(0, 1))
            for n in range(highest)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        direction = vectors / length(vectors, zero=1)
        harmonic = torch.full_like(vectors[..., :1], 1 / math.sqrt(4 * math.pi))
        found = [harmonic]
        for step in self.steps:
            pairs = (harmonic.unsqueeze(-1) * direction.unsqueeze(-2)).flatten(-2)
            harmonic = (pairs.unsqueeze(-1) * step(pairs)).sum(-2)
            found.append(harmonic)
        return torch.cat(found, dim=-1)


def length(vectors: Tensor, zero: float = 0.0) -> Tensor:
    """‖v‖ of (..., 3) as (..., 1); for zero vectors, the value `zero` with the gradient zero."""
    squared = vectors.square().sum(-1, keepdim=True)
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1).sqrt(), zero)
