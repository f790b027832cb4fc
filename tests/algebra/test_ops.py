"""Laws of the operations on multivectors of G(3,0,1).

Multivectors have small integer components, which float64 adds and multiplies exactly: polynomial
laws are checked for equality, not for closeness. Versors are products of up to four planes.
"""

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from flashgatr import geometry, ops
from flashgatr.algebra import BLADES, E0, E123, EUCLIDEAN, GRADES, NULL, PGA, PSEUDOSCALAR, grade
from flashgatr.nn import EquiLayerNorm, EquiLinear
from flashgatr.ops import (
    dual,
    equivariant_join,
    inner,
    inverse,
    involute,
    join,
    left_contraction,
    norm,
    product,
    reverse,
    sandwich,
    select_grade,
    undual,
    wedge,
)

BLADE = torch.eye(BLADES, dtype=torch.float64)

laws = settings(max_examples=50, deadline=None, derandomize=True)
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def vector(size):
    whole = st.lists(st.integers(-4, 4), min_size=size, max_size=size)
    return whole.map(lambda values: torch.tensor(values, dtype=torch.float64))


multivectors = vector(BLADES)
planes = vector(4).filter(lambda p: p[1:].any()).map(lambda p: p @ BLADE[grade(1)])


def versors(*lengths):
    """Products of as many planes as one of the lengths, not normalised."""

    def multiply(factors):
        result = factors[0]
        for factor in factors[1:]:
            result = product(result, factor)
        return result

    counts = st.sampled_from(lengths)
    return counts.flatmap(lambda n: st.lists(planes, min_size=n, max_size=n)).map(multiply)


every, even, odd = versors(1, 2, 3, 4), versors(2, 4), versors(1, 3)
grades = st.integers(0, GRADES - 1)


# Products


@laws
@given(multivectors, multivectors, multivectors)
def test_product_wedge_and_regressive_product_are_associative(x, y, z):
    def regressive(x, y):
        return undual(wedge(dual(x), dual(y)))

    for op in (product, wedge, regressive):
        assert torch.equal(op(op(x, y), z), op(x, op(y, z)))


@laws
@given(multivectors, multivectors, multivectors, st.integers(-3, 3))
def test_products_are_bilinear(x, y, z, factor):
    for op in (product, wedge, left_contraction, join, inner):
        assert torch.equal(op(x + factor * y, z), op(x, z) + factor * op(y, z))
        assert torch.equal(op(z, x + factor * y), op(z, x) + factor * op(z, y))


@laws
@given(multivectors)
def test_one_is_neutral_for_product_and_wedge_and_the_pseudoscalar_for_join(x):
    assert torch.equal(product(BLADE[0], x), x)
    assert torch.equal(wedge(x, BLADE[0]), x)
    assert torch.equal(join(BLADE[PSEUDOSCALAR], x), involute(x))  # the outer dual is no undual


@laws
@given(planes, planes)
def test_vectors_anticommute_up_to_their_inner_product(a, b):
    assert torch.equal(product(a, b) + product(b, a), 2 * inner(a, b) * BLADE[0])
    assert torch.equal(product(a, b), inner(a, b) * BLADE[0] + wedge(a, b))


@laws
@given(multivectors, multivectors)
def test_reversal_turns_products_round(x, y):
    assert torch.equal(reverse(product(x, y)), product(reverse(y), reverse(x)))
    assert torch.equal(reverse(wedge(x, y)), wedge(reverse(y), reverse(x)))
    assert torch.equal(reverse(reverse(x)), x)


@laws
@given(multivectors, multivectors)
def test_involution_is_an_automorphism(x, y):
    assert torch.equal(involute(product(x, y)), product(involute(x), involute(y)))
    assert torch.equal(involute(wedge(x, y)), wedge(involute(x), involute(y)))
    assert torch.equal(involute(involute(x)), x)


@laws
@given(multivectors)
def test_grade_projections_add_up_and_are_projections(x):
    parts = ops.grade_project(x)
    assert parts.shape == (GRADES, BLADES)
    assert torch.equal(parts.sum(-2), x)
    for k, part in enumerate(parts):
        assert torch.equal(part, select_grade(x, k))
        assert torch.equal(part[grade(k)], x[grade(k)])
        assert torch.equal(select_grade(part, k), part)


@laws
@given(multivectors, multivectors, grades, grades)
def test_wedge_and_left_contraction_are_parts_of_the_product(x, y, j, k):
    x, y = select_grade(x, j), select_grade(y, k)
    parts = dict(enumerate(ops.grade_project(product(x, y))))
    nothing = torch.zeros_like(x)
    assert torch.equal(wedge(x, y), parts.get(j + k, nothing))
    assert torch.equal(left_contraction(x, y), parts.get(k - j, nothing))


@laws
@given(multivectors, multivectors)
def test_inner_is_the_scalar_part_of_reversed_x_times_y(x, y):
    assert torch.equal(inner(x, y), product(reverse(x), y)[:1])
    assert torch.equal(inner(x, y), inner(y, x))


# Dual and join


@laws
@given(multivectors)
def test_undual_undoes_dual(x):
    assert torch.equal(undual(dual(x)), x)
    assert torch.equal(dual(undual(x)), x)


@laws
@given(multivectors, grades)
def test_dual_twice_is_a_sign_per_grade(x, k):
    x = select_grade(x, k)
    assert torch.equal(dual(dual(x)), (-1) ** (k * (PGA.generators - k)) * x)


def test_blade_wedge_its_dual_is_the_pseudoscalar():
    assert torch.equal(wedge(BLADE, dual(BLADE)), BLADE[PSEUDOSCALAR].expand(BLADES, -1))
    assert torch.equal(wedge(undual(BLADE), BLADE), BLADE[PSEUDOSCALAR].expand(BLADES, -1))


@laws
@given(multivectors, multivectors)
def test_join_is_the_dual_of_the_wedge_of_duals(x, y):
    assert torch.equal(join(x, y), dual(wedge(dual(x), dual(y))))
    assert torch.equal(join(x, y), involute(undual(wedge(dual(x), dual(y)))))


def euclidean_join(x, y):
    """The paper's join of the algebra without e0, whose pseudoscalar is e123."""
    x, y = (product(part, reverse(BLADE[E123])) for part in (x, y))
    return product(wedge(x, y), BLADE[E123])


def split(x):
    """t and p, both without e0, such that x = t + e0 p."""
    t, p = torch.zeros_like(x), torch.zeros_like(x)
    t[list(EUCLIDEAN)], p[list(EUCLIDEAN)] = x[list(EUCLIDEAN)], x[list(NULL)]
    return t, p


@pytest.mark.parametrize("j", range(GRADES))
@pytest.mark.parametrize("k", range(GRADES))
def test_join_is_the_papers_euclidean_decomposition_up_to_one_sign_per_grade_pair(j, k):
    def decomposed(x, y):
        (tx, px), (ty, py) = split(x), split(y)
        real = euclidean_join(tx, py) - euclidean_join(involute(px), ty)  # - is (-1)^n, n = 3
        return real + product(BLADE[E0], euclidean_join(px, py))

    pairs = [(x, y) for x in BLADE[grade(j)] for y in BLADE[grade(k)] if join(x, y).any()]
    assert bool(pairs) == (j + k >= PGA.generators)
    sign = torch.dot(join(*pairs[0]), decomposed(*pairs[0])) if pairs else 0
    # The library applies a dual outside, not an undual, which gives (-1)^(j+k); the paper's
    # equation leaves out (-1)^(jk).
    assert sign == (-1) ** (j + k + j * k) * bool(pairs)

    @laws
    @given(multivectors, multivectors)
    def check(x, y):
        x, y = select_grade(x, j), select_grade(y, k)
        assert torch.equal(join(x, y), sign * decomposed(x, y))

    check()


# The group


@laws
@given(every, multivectors, multivectors)
def test_versors_act_as_homomorphisms_of_product_and_wedge(u, x, y):
    for op in (product, wedge):
        close(sandwich(u, op(x, y)), op(sandwich(u, x), sandwich(u, y)))


@laws
@given(every, multivectors)
def test_versors_keep_grades(u, x):
    close(ops.grade_project(sandwich(u, x)), sandwich(u, ops.grade_project(x)))


@laws
@given(every, every, multivectors)
def test_acting_twice_is_acting_with_the_product(u, v, x):
    close(sandwich(u, sandwich(v, x)), sandwich(product(u, v), x))


@laws
@given(every, multivectors, st.sampled_from([-2.0, 0.5, 3.0]))
def test_action_does_not_depend_on_the_weight_of_the_versor(u, x, weight):
    close(sandwich(weight * u, x), sandwich(u, x))


@laws
@given(even, odd, multivectors)
def test_sandwich_of_even_and_odd_versors(u, v, x):
    close(sandwich(u, x), product(product(u, x), inverse(u)))
    close(sandwich(v, x), product(product(v, involute(x)), inverse(v)))


def test_sandwich_takes_even_and_odd_versors_in_one_batch():
    u = torch.stack([product(BLADE[2], BLADE[3]), BLADE[2]])
    x = BLADE[2].expand(2, -1)
    assert torch.equal(sandwich(u, x), torch.stack([-BLADE[2], -BLADE[2]]))
    assert torch.equal(sandwich(u, BLADE[4].expand(2, -1)), BLADE[4].expand(2, -1))


@laws
@given(every)
def test_inverse_of_a_versor(u):
    close(product(u, inverse(u)), BLADE[0])
    close(product(inverse(u), u), BLADE[0])


@laws
@given(every, every)
def test_norm_of_a_product_of_versors_is_the_product_of_their_norms(u, v):
    close(norm(product(u, v)), norm(u) * norm(v))


def test_norm_is_not_multiplicative_beyond_versors():
    x, y = BLADE[0] + BLADE[2], BLADE[0] - BLADE[2]
    assert not product(x, y).any()
    assert norm(x) * norm(y) > 1


@laws
@given(every, multivectors, multivectors)
def test_inner_product_is_invariant(u, x, y):
    close(inner(sandwich(u, x), sandwich(u, y)), inner(x, y))


@laws
@given(even, odd, multivectors, multivectors)
def test_join_is_equivariant_under_motions_and_changes_sign_under_mirrors(u, v, x, y):
    close(join(sandwich(u, x), sandwich(u, y)), sandwich(u, join(x, y)))
    close(join(sandwich(v, x), sandwich(v, y)), -sandwich(v, join(x, y)))


def test_join_of_two_points_is_not_equivariant_under_a_mirror():
    mirror = BLADE[2]
    x, y = geometry.embed_point(torch.tensor([[1.0, 2.0, 3.0], [4.0, 6.0, 8.0]]).double())
    difference = join(sandwich(mirror, x), sandwich(mirror, y)) - sandwich(mirror, join(x, y))
    assert difference.abs().max() > 1


@laws
@given(every, multivectors, multivectors, multivectors)
def test_equivariant_join_is_equivariant_under_motions_and_reflections(u, x, y, z):
    moved = [sandwich(u, part) for part in (x, y, z)]
    close(equivariant_join(*moved), sandwich(u, equivariant_join(x, y, z)))


# Every operation: shapes, types, gradients

CALLS = {
    "dual": (dual, 1),
    "equivariant_join": (equivariant_join, 3),
    "grade_project": (ops.grade_project, 1),
    "inner": (inner, 2),
    "inverse": (inverse, 1),
    "involute": (involute, 1),
    "join": (join, 2),
    "left_contraction": (left_contraction, 2),
    "norm": (norm, 1),
    "product": (product, 2),
    "reverse": (reverse, 1),
    "sandwich": (sandwich, 2),
    "select_grade": (partial(select_grade, k=2), 1),
    "undual": (undual, 1),
    "wedge": (wedge, 2),
}
SUFFIX = {"grade_project": (GRADES, BLADES), "inner": (1,), "norm": (1,)}

every_op = pytest.mark.parametrize("name", CALLS)


def random(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*s, BLADES, generator=generator, dtype=dtype) for s in shapes]


def test_every_public_operation_is_in_the_table():
    assert set(CALLS) == set(ops.__all__)


@every_op
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (2, 3)])
def test_leading_dimensions_are_kept(name, shape):
    op, arity = CALLS[name]
    assert op(*random(*[shape] * arity)).shape == (*shape, *SUFFIX.get(name, (BLADES,)))


@every_op
def test_leading_dimensions_broadcast(name):
    op, arity = CALLS[name]
    args = random((2, 1), (3,), (2, 3))[:arity]
    together = op(*args)
    lead = torch.broadcast_shapes(*[x.shape for x in args])
    one_by_one = op(*[x.expand(lead).reshape(-1, BLADES) for x in args])
    torch.testing.assert_close(together.reshape(one_by_one.shape), one_by_one)


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_type_is_kept(name, dtype):
    op, arity = CALLS[name]
    assert op(*random(*[()] * arity, dtype=dtype)).dtype == dtype


@every_op
def test_wrong_last_dimension_or_type_is_refused_wherever_it_stands(name):
    op, arity = CALLS[name]
    for place in range(arity):
        args = random(*[(3,)] * arity)
        good = args[place]
        args[place] = good[:, :-1]
        with pytest.raises(ValueError, match=r"must be a multivector .* 16, got shape \(3, 15\)"):
            op(*args)
        args[place] = good.long()
        with pytest.raises(TypeError, match=r"must be floating point, got torch.int64"):
            op(*args)
        args[place] = good.numpy()
        with pytest.raises(TypeError, match=r"must be a tensor, got ndarray; .* torch\.tensor\("):
            op(*args)


@every_op
def test_gradients_are_right(name):
    op, arity = CALLS[name]
    args = [x.requires_grad_() for x in random(*[(2,)] * arity)]
    assert torch.autograd.gradcheck(op, args)


@pytest.mark.parametrize("x", [torch.zeros(3, BLADES), BLADE[[E0, PSEUDOSCALAR]].float()])
def test_gradient_of_norm_is_zero_where_norm_vanishes(x):
    x = x.clone().requires_grad_()
    norm(x).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


# Values of the authors' code

GOLDEN = load_file(Path(__file__).parents[1] / "goldens" / "primitives.safetensors")
exact = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("key", "op", "arguments"),
    [
        ("geometric_product", product, ["x", "y"]),
        ("outer_product", wedge, ["x", "y"]),
        ("equivariant_join", equivariant_join, ["x", "y", "ref"]),
        ("inner_product", inner, ["x", "y"]),
        ("dual", dual, ["x"]),
        ("reverse", reverse, ["x"]),
        ("grade_involute", involute, ["x"]),
        ("grade_project", ops.grade_project, ["x"]),
        ("norm", norm, ["x"]),
        ("embed_point", geometry.embed_point, ["points"]),
        ("embed_oriented_plane", geometry.embed_plane, ["normals", "points"]),
        ("embed_reflection", geometry.embed_reflection, ["normals", "points"]),
        ("embed_translation", geometry.embed_translation, ["points"]),
        ("embed_rotation", geometry.embed_rotation, ["quaternions_ijkw"]),
        ("embed_pluecker_ray", geometry.embed_ray, ["points", "normals"]),
    ],
)
def test_values_are_those_of_the_authors(key, op, arguments):
    exact(op(*[GOLDEN[name] for name in arguments]), GOLDEN[key])


def test_linear_layer_is_that_of_the_authors():
    coefficients = GOLDEN["linear_coeffs"]
    layer = EquiLinear(*coefficients.shape[1::-1], bias=False).double()
    layer.weight.data = coefficients
    exact(layer(GOLDEN["linear_in"])[0], GOLDEN["linear_out"])


def test_layer_norm_is_that_of_the_authors():
    mv = GOLDEN["layer_norm_in"]
    exact(EquiLayerNorm()(mv, mv.new_zeros(*mv.shape[:-2], 0))[0], GOLDEN["layer_norm_out"])


def test_the_norm_of_a_small_multivector_is_small_rather_than_zero():
    x = 1e-8 * torch.randn(3, BLADES, dtype=torch.float64)
    torch.testing.assert_close(norm(x), 1e-8 * norm(1e8 * x))
    assert (norm(x) > 0).all()
