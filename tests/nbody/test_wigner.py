"""Laws of spherical harmonics and of the coefficients that couple them."""

import math

import numpy as np
import pytest
import torch

from flashgatr.experiments.baselines.wigner import ExactConstant, SphericalHarmonics, wigner_3j

HIGHEST = 6
TRIPLES = [
    (k, j, degree)
    for k in range(4)
    for degree in range(4)
    for j in range(abs(k - degree), k + degree + 1)
]
"""Those of a network with degrees 0 to 3."""


def _harmonics(vectors):
    found = SphericalHarmonics(HIGHEST).double()(vectors)
    return [found[..., n**2 : (n + 1) ** 2] for n in range(HIGHEST + 1)]


def _directions(*shape):
    return torch.nn.functional.normalize(torch.randn(*shape, 3, dtype=torch.float64), dim=-1)


def rotation():
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    return turn * turn.det()


def rotation_of_degree(turn, degree):
    """The matrix D with Y(x Rᵀ) = Y(x) Dᵀ."""
    points = _directions(100)
    before, after = _harmonics(points)[degree], _harmonics(points @ turn.T)[degree]
    return torch.linalg.lstsq(before, after).solution.T


def test_the_harmonics_satisfy_the_addition_theorem():
    """Y(x)·Y(y) = (2ℓ + 1) / 4π · P(x·y): they are orthonormal, and each has its degree."""
    x, y = _directions(2, 50)
    for degree, (first, second) in enumerate(zip(_harmonics(x), _harmonics(y), strict=True)):
        legendre = np.polynomial.Legendre.basis(degree)((x * y).sum(-1).numpy())
        expected = (2 * degree + 1) / (4 * math.pi) * torch.from_numpy(legendre)
        torch.testing.assert_close((first * second).sum(-1), expected, rtol=0, atol=1e-13)


def test_harmonics_of_degree_one_are_vectors_and_lengths_do_not_matter():
    x = _directions(20)
    torch.testing.assert_close(_harmonics(5 * x)[1], math.sqrt(3 / (4 * math.pi)) * x)
    for near, far in zip(_harmonics(1e-6 * x), _harmonics(1e6 * x), strict=True):
        torch.testing.assert_close(near, far, rtol=0, atol=1e-13)


def test_a_zero_vector_has_harmonics_of_degree_zero_only():
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    found = SphericalHarmonics(HIGHEST).double()(x)
    assert not found[:, 1:].any()
    torch.testing.assert_close(found[:, 0], torch.full((2,), (4 * math.pi) ** -0.5).double())
    found.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("triple", [(1, 1, 1), (2, 1, 3), (2, 3, 2), (3, 6, 3), (3, 2, 2)], ids=str)
def test_coupling_commutes_with_rotations(triple):
    turn = rotation()
    turns = [rotation_of_degree(turn, degree) for degree in triple]
    x, y = (torch.randn(2 * degree + 1, dtype=torch.float64) for degree in triple[:2])
    table = wigner_3j(*triple)
    moved = torch.einsum("abc,a,b->c", table, turns[0] @ x, turns[1] @ y)
    expected = turns[2] @ torch.einsum("abc,a,b->c", table, x, y)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-12)


def test_different_couplings_of_two_degrees_are_orthogonal():
    """Σ over a, b of C[a, b, c] C'[a, b, d] is δ_cd / (2ℓ + 1) for the same degree, else zero."""
    tables = [wigner_3j(2, 3, degree).flatten(0, 1) for degree in range(1, 6)]
    for first in tables:
        for second in tables:
            same = first is second
            expected = torch.eye(first.shape[1]) if same else torch.zeros(1, 1)
            found = first.T @ second * first.shape[1]
            torch.testing.assert_close(
                found, expected.double().expand(found.shape), rtol=0, atol=1e-13
            )


def test_coefficients_and_harmonics_are_those_of_e3nn():
    o3 = pytest.importorskip("e3nn.o3")
    for triple in TRIPLES:
        expected = o3.wigner_3j(*triple, dtype=torch.float64)
        torch.testing.assert_close(wigner_3j(*triple), expected, rtol=0, atol=1e-10)
    x = torch.randn(50, 3, dtype=torch.float64)
    expected = o3.spherical_harmonics(list(range(HIGHEST + 1)), x, True, "integral")
    torch.testing.assert_close(torch.cat(_harmonics(x), -1), expected, rtol=0, atol=1e-10)


def test_constants_keep_their_digits_when_a_module_is_converted():
    values = torch.tensor([1 / 3, math.pi], dtype=torch.float64)
    constant = torch.nn.Sequential(ExactConstant(values)).half().float().double()
    assert torch.equal(constant(values), values)
    assert torch.equal(constant(torch.zeros(1)), values.float())


@pytest.mark.parametrize("triple", [(1, 1, 3), (2, 0, 1), (0, 0, -1)], ids=str)
def test_degrees_that_do_not_couple_are_refused(triple):
    with pytest.raises(ValueError, match=f"couple to degrees from .* got {triple[2]}"):
        wigner_3j(*triple)
