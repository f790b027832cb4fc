"""The product tables, against an independent implementation and against the paper's counts."""

import warnings

import pytest

from flashgatr.algebra import BLADES, E0, E123, EUCLIDEAN, NULL, PGA, PSEUDOSCALAR, Algebra, grade

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import clifford

SIGNATURES = [(3, 0, 1), (2, 0, 0), (3, 0, 0), (1, 3, 0), (2, 0, 1)]


def layout(signature):
    algebra = Algebra(*signature)
    first = 0 if algebra.r else 1
    return algebra, clifford.Cl(*signature, firstIdx=first)[0]


def table(terms):
    found = {(k, i, j): s for k, i, j, s in terms}
    assert len(found) == len(terms)
    return found


def dense(theirs):
    """Their table [left, result, right] as {(result, left, right): sign}, zeros left out."""
    array = theirs.todense()
    return {(k, i, j): array[i, k, j] for i, k, j in zip(*array.nonzero(), strict=True)}


@pytest.mark.parametrize("signature", SIGNATURES)
def test_blades_are_those_of_clifford_in_the_same_order(signature):
    algebra, reference = layout(signature)
    assert algebra.squares == tuple(reference.sig)
    assert ("", *algebra.names[1:]) == tuple(reference.names)
    assert algebra.grades == tuple(reference.gradeList)


@pytest.mark.parametrize("signature", SIGNATURES)
def test_product_tables_are_those_of_clifford(signature):
    algebra, reference = layout(signature)
    assert table(algebra.product_terms) == dense(reference.gmt)
    assert table(algebra.outer_terms) == dense(reference.omt)
    assert table(algebra.contraction_terms) == dense(reference.lcmt)


def test_number_of_terms_in_the_projective_algebra():
    counts = [len(t) for t in (PGA.product_terms, PGA.outer_terms, PGA.join_terms)]
    assert counts == [192, 81, 81]


def test_dual_of_the_projective_algebra_is_the_published_table():
    signs = [1, -1, 1, -1, 1, 1, -1, 1, 1, -1, 1, -1, 1, -1, 1, 1]
    assert list(PGA.dual_index) == list(reversed(range(BLADES)))
    assert [PGA.dual_sign[i] for i in PGA.dual_index] == signs


@pytest.mark.parametrize("signature", SIGNATURES)
def test_dual_is_the_right_complement(signature):
    algebra = Algebra(*signature)
    wedge = table(algebra.outer_terms)
    top = len(algebra.blades) - 1
    for blade, (other, sign) in enumerate(zip(algebra.dual_index, algebra.dual_sign, strict=True)):
        assert wedge[top, blade, other] == sign


@pytest.mark.parametrize("signature", SIGNATURES)
def test_inner_sign_is_the_scalar_part_of_reversed_blade_times_blade(signature):
    algebra, reference = layout(signature)
    squares = dense(reference.gmt)
    for i, (k, sign) in enumerate(zip(algebra.grades, algebra.inner_sign, strict=True)):
        assert sign == (-1) ** (k * (k - 1) // 2) * squares.get((0, i, i), 0)


def test_null_blades_are_e0_times_the_euclidean_ones_with_sign_plus():
    assert sorted((*EUCLIDEAN, *NULL)) == list(range(BLADES))
    for euclidean, null in zip(EUCLIDEAN, NULL, strict=True):
        assert PGA.multiply(E0, euclidean) == (null, 1)
    assert PGA.multiply(E0, E123) == (PSEUDOSCALAR, 1)
    assert PGA.multiply(E0, E0)[1] == 0


def test_grades_cut_the_blades_into_consecutive_slices():
    assert [i for k in range(5) for i in range(BLADES)[grade(k)]] == list(range(BLADES))
    assert [len(range(BLADES)[grade(k)]) for k in range(5)] == [1, 4, 6, 4, 1]


def test_names_are_unique_in_the_largest_algebra():
    algebra = Algebra(9)
    assert len(set(algebra.names)) == len(algebra.blades) == 512


def test_an_algebra_is_a_value():
    assert Algebra(3, 0, 1) == PGA
    assert len({Algebra(3, 0, 1), PGA, Algebra(2, 0, 1)}) == 2


@pytest.mark.parametrize("signature", [(-1, 0, 0), (3, -1, 0), (3, 0, -1), (10, 0, 0), (3, 3, 4)])
def test_bad_signatures_are_refused(signature):
    with pytest.raises(ValueError, match=r"signature .* must be non-negative with at most 9"):
        Algebra(*signature)


@pytest.mark.parametrize("k", [-1, 5])
def test_missing_grades_are_refused(k):
    with pytest.raises(ValueError, match=f"grade {k} does not exist; expected 0 to 4"):
        grade(k)


@pytest.mark.parametrize("name", ["e4", "e10", "", "e", "E0"])
def test_unknown_blades_are_refused(name):
    with pytest.raises(ValueError, match=f"unknown blade '{name}'; expected one of 1, e0, e1"):
        PGA.blade(name)
