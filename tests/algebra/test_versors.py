"""The Euclidean group as versors, against 4 x 4 matrices; shifts, scales and centres."""

from functools import partial, reduce
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn.functional import normalize

from flashgatr.algebra import BLADES, E123
from flashgatr.batch import Sets, pack, pad
from flashgatr.geometry import (
    embed_direction,
    embed_plane,
    embed_point,
    embed_reflection,
    embed_rotation,
    embed_translation,
    extract_point,
    quaternion_to_matrix,
)
from flashgatr.ops import norm, product, sandwich, wedge
from flashgatr.versors import (
    Kind,
    apply,
    centroid,
    compose,
    from_matrix,
    invert,
    rescale,
    sample,
    to_matrix,
    to_quaternion,
    translate,
)

KINDS = get_args(Kind)
IMPROPER = ("reflection", "inversion", "rotoreflection")
every_kind = pytest.mark.parametrize("kind", KINDS)
close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
ONE = torch.eye(BLADES, dtype=torch.float64)[0]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(*shape, kind="E(3)", seed=0, **options):
    return sample(*shape, kind=kind, generator=torch.Generator().manual_seed(seed), **options)


def move(matrix, x):
    """R x + t for points x (..., 3)."""
    return (matrix[..., :3, :3] @ x.unsqueeze(-1)).squeeze(-1) + matrix[..., :3, 3]


def same_motion(u, v):
    """u = ±v, compared through u uᵀ."""
    close(u[..., None] * u[..., None, :], v[..., None] * v[..., None, :])


# Group


def test_composition_applies_the_last_versor_first():
    u, v, w, x = draw(20), draw(20, seed=1), draw(20, seed=2), random(20, BLADES)
    close(apply(compose(u, v, w), x), apply(u, apply(v, apply(w, x))))
    assert compose(u) is u
    with pytest.raises(ValueError, match="compose needs at least one versor"):
        compose()


@every_kind
def test_inverse_undoes_the_motion(kind):
    u, x = draw(20, kind=kind), random(20, BLADES)
    close(apply(invert(u), apply(u, x)), x)
    close(compose(invert(u), u), ONE.expand(20, -1))
    close(compose(u, invert(u)), ONE.expand(20, -1))


def test_both_signs_of_a_versor_are_the_same_motion():
    u, x = draw(20), random(20, BLADES)
    close(apply(-u, x), apply(u, x))


def test_one_versor_moves_many_multivectors_and_many_versors_move_one():
    u, x = draw(4), random(5, BLADES)
    assert apply(u[0], x).shape == (5, BLADES)
    moved = apply(u[:, None], x)
    close(moved[2, 3], apply(u[2], x[3]))
    assert apply(u, x[:0, None]).shape == (0, 4, BLADES)


# Matrices


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_products_of_reflections_are_products_of_their_matrices(count):
    normal, point = normalize(random(count, 9, 3), dim=-1), random(count, 9, 3, seed=1)
    matrices = torch.eye(4, dtype=torch.float64).repeat(count, 9, 1, 1)
    matrices[..., :3, :3] -= 2 * normal[..., None] * normal[..., None, :]
    matrices[..., :3, 3] = 2 * (normal * point).sum(-1, keepdim=True) * normal

    versor = compose(*embed_reflection(normal, point))
    matrix = reduce(torch.matmul, matrices)
    close(to_matrix(versor), matrix)
    same_motion(from_matrix(matrix), versor)
    close(torch.linalg.det(matrix), torch.full((9,), (-1.0) ** count, dtype=torch.float64))


@st.composite
def mirrors(draw):
    """One to four mirrors: any, parallel to the one before, or that one again."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    normal, point = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    kinds = draw(st.lists(st.sampled_from(["any", "parallel", "same"]), min_size=1, max_size=4))
    for i, kind in enumerate(kinds[1:], start=1):
        if kind != "any":
            normal[i] = normal[i - 1]
        if kind == "same":
            point[i] = point[i - 1]
    return embed_reflection(normalize(normal, dim=-1), 3 * point)[: len(kinds)]


@given(mirrors())
@settings(max_examples=100, deadline=None)
def test_every_motion_is_a_product_of_up_to_four_mirrors(planes):
    versor = compose(*planes)
    x = random(5, BLADES)
    close(apply(versor, x), reduce(lambda y, plane: apply(plane, y), reversed(planes), x))
    matrix = to_matrix(versor)
    assert torch.linalg.det(matrix).round() == (-1) ** len(planes)
    same_motion(from_matrix(matrix), versor)
    close(to_matrix(from_matrix(matrix)), matrix)


@every_kind
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_matrices_and_versors_turn_into_each_other(kind, shape):
    u = draw(*shape, kind=kind, distance=3.0)
    matrix = to_matrix(u)
    assert matrix.shape == (*shape, 4, 4)
    same_motion(from_matrix(matrix), u)
    close(to_matrix(from_matrix(matrix)), matrix)


def test_matrix_moves_points_as_the_versor_does():
    u, x = draw(20), random(20, 3)
    close(extract_point(apply(u, embed_point(x))), move(to_matrix(u), x))


def test_matrix_does_not_depend_on_the_weight_of_the_versor():
    u = draw(20)
    close(to_matrix(-4 * u), to_matrix(u))


def test_matrices_compose_as_versors_do():
    u, v = draw(20), draw(20, seed=1)
    close(to_matrix(compose(u, v)), to_matrix(u) @ to_matrix(v))
    close(to_matrix(invert(u)), torch.linalg.inv(to_matrix(u)))


def test_orthogonal_matrices_fix_the_origin():
    matrix = torch.linalg.qr(random(40, 3, 3)).Q
    matrix = torch.cat([matrix, -matrix])
    versor = from_matrix(matrix)
    close(to_matrix(versor)[..., :3, :3], matrix)
    close(to_matrix(versor)[..., :3, 3], torch.zeros(80, 3).double())
    assert from_matrix(matrix[:0]).shape == (0, BLADES)


def test_signed_permutations_of_the_axes_come_back():
    rows = torch.cartesian_prod(*[torch.arange(6)] * 3)
    axes = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    matrices = axes[rows]
    matrices = matrices[torch.linalg.det(matrices).abs() > 0.5]
    assert len(matrices) == 48
    close(to_matrix(from_matrix(matrices))[..., :3, :3], matrices)


def test_quaternion_of_a_motion_is_that_of_its_rotation():
    q = normalize(random(20, 4), dim=-1)
    motion = compose(embed_translation(random(20, 3)), embed_rotation(q))
    same_motion(to_quaternion(motion), q)
    close(to_matrix(motion)[..., :3, :3], quaternion_to_matrix(q))


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    "change",
    [lambda m: m[0, 0].mul_(1.01), lambda m: m[0, 1].add_(0.1), lambda m: m[:3, :3].mul_(0)],
)
def test_matrices_that_are_not_orthogonal_are_refused(size, change):
    matrix = torch.eye(size)
    change(matrix)
    with pytest.raises(ValueError, match="must be orthogonal; R Rᵀ differs from the identity by"):
        from_matrix(matrix)
    with pytest.raises(ValueError, match="must be orthogonal"):
        from_matrix(torch.stack([torch.eye(size), matrix]))


def test_matrices_that_hold_nan_are_refused():
    with pytest.raises(ValueError, match="must be orthogonal"):
        from_matrix(torch.full((3, 3), float("nan")))


def test_matrices_with_the_shift_in_the_last_row_are_refused():
    matrix = torch.eye(4)
    matrix[3, 0] = 2.0
    with pytest.raises(ValueError, match=r"last row .* \(0, 0, 0, 1\); the shift belongs in the"):
        from_matrix(matrix)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (3, 4), (5, 3)])
def test_matrices_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected a matrix \(..., 3, 3\) or \(..., 4, 4\), got"):
        from_matrix(torch.zeros(shape))


def test_matrices_of_whole_numbers_are_refused():
    with pytest.raises(TypeError, match=r"must be floating point, got torch.int64"):
        from_matrix(torch.eye(3, dtype=torch.int64))


# Sampling


@every_kind
def test_samples_have_unit_norm_and_the_right_determinant(kind):
    u = draw(200, kind=kind)
    close(norm(u), torch.ones(200, 1).double())
    determinants = set(torch.linalg.det(to_matrix(u)).round().tolist())
    improper = {name: {-1.0} for name in IMPROPER}
    assert determinants == {"E(3)": {-1.0, 1.0}, **improper}.get(kind, {1.0})


def test_samples_of_each_kind_are_of_that_kind():
    def matrix(kind):
        return to_matrix(draw(50, kind=kind))

    identity = torch.eye(4, dtype=torch.float64).expand(50, 4, 4)
    close(matrix("translation")[..., :3], identity[..., :3])
    close(matrix("rotation")[..., 3], identity[..., 3])
    close(matrix("reflection") @ matrix("reflection"), identity)
    close(matrix("inversion")[..., :3, :3], -identity[..., :3, :3])
    assert matrix("inversion")[..., :3, 3].norm(dim=-1).min() > 1e-3
    for kind in ("SE(3)", "E(3)", "rotoreflection"):
        assert (matrix(kind) @ matrix(kind) - identity).abs().amax((-2, -1)).min() > 1e-3
        assert (matrix(kind) - identity).abs().amax((-2, -1)).min() > 1e-3


def test_samples_take_either_sign():
    assert set(draw(50, kind="translation")[:, 0].tolist()) == {-1.0, 1.0}


@every_kind
def test_samples_repeat_with_the_generator(kind):
    assert torch.equal(draw(10, kind=kind, seed=3), draw(10, kind=kind, seed=3))
    assert not torch.equal(draw(10, kind=kind, seed=3), draw(10, kind=kind, seed=4))


def test_samples_take_shape_type_and_distance():
    assert draw().shape == (BLADES,)
    assert draw(2, 3).shape == (2, 3, BLADES)
    assert draw(0).shape == (0, BLADES)
    assert draw(2, dtype=torch.float32).dtype == torch.float32
    assert draw(2, device="meta").is_meta  # drawn where the generator is, then moved
    assert sample(2, device="meta").is_meta
    near, far = (draw(9, kind="translation", distance=d) for d in (1.0, 10.0))
    close(10 * to_matrix(near)[:, :3, 3], to_matrix(far)[:, :3, 3])


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match=r"unknown kind 'O\(3\)'; expected 'E\(3\)', 'SE\(3\)'"):
        draw(kind="O(3)")


# Shifts and scales


def test_translate_is_the_sandwich_with_a_translation():
    x, shift = random(20, BLADES), random(20, 3, seed=1)
    close(translate(x, shift), sandwich(embed_translation(shift), x))
    close(translate(x[0], shift), sandwich(embed_translation(shift), x[0]))
    close(translate(translate(x, shift), -shift), x)


@pytest.mark.parametrize("factor", [0.1, 2.0, 0.0])
def test_rescaling_is_an_automorphism_of_product_and_wedge(factor):
    x, y = random(20, BLADES), random(20, BLADES, seed=1)
    for op in (product, wedge):
        close(rescale(op(x, y), factor), op(rescale(x, factor), rescale(y, factor)))


def test_rescaling_multiplies_positions_and_keeps_angles():
    x, n = random(20, 3), random(20, 3, seed=1)
    close(rescale(embed_point(x), 2.5), embed_point(2.5 * x))
    close(rescale(embed_plane(n, x), 2.5), embed_plane(n, 2.5 * x))
    close(rescale(rescale(embed_point(x), 2.5), 1 / 2.5), embed_point(x))


def test_shifts_scales_and_matrices_pass_gradcheck():
    mv, shift = random(2, BLADES).requires_grad_(), random(2, 3, seed=1).requires_grad_()
    assert gradcheck(translate, (mv, shift))
    assert gradcheck(lambda mv: rescale(mv, 2.5), mv)
    angles, shifts = random(4, 3), random(4, 3, seed=1)

    def motion(angles, shifts):  # a curve inside the group, or gradients would be of no use
        skew = torch.linalg.cross(angles[:, None], torch.eye(3, dtype=angles.dtype)[None])
        turn = torch.linalg.matrix_exp(skew)
        last = torch.eye(4, dtype=angles.dtype)[3:].expand(4, 1, 4)
        return from_matrix(torch.cat([torch.cat([turn, shifts[..., None]], -1), last], -2))

    assert gradcheck(motion, (angles.requires_grad_(), shifts.requires_grad_()))


# Centres


def test_centroid_of_points_is_their_mean():
    x = random(2, 6, 3, 3)
    close(centroid(embed_point(x), Sets((2, 6))), x.mean((1, 2)))


def test_centroid_does_not_depend_on_the_sign_of_a_point():
    x, signs = random(2, 6, 3, 3), random(2, 6, 3, 1, seed=1).sign()
    close(centroid(signs * embed_point(x), Sets((2, 6))), x.mean((1, 2)))


@every_kind
def test_centroid_moves_with_the_sample(kind):
    mv, u = random(5, 6, 3, BLADES), draw(5, kind=kind, distance=3.0)
    before = centroid(mv, Sets((5, 6)))
    after = centroid(apply(u[:, None, None], mv), Sets((5, 6)))
    close(after, move(to_matrix(u), before))


def test_centroid_is_the_origin_without_points():
    mv = embed_direction(random(2, 6, 3, 3))
    assert torch.equal(centroid(mv, Sets((2, 6))), torch.zeros(2, 3).double())
    noise = random(2, 6, 3, BLADES)
    noise[..., E123] *= 1e-17
    assert torch.equal(centroid(noise, Sets((2, 6))), torch.zeros(2, 3).double())


def test_centroid_of_sets_of_unequal_size_padded_or_packed_is_that_of_each_set():
    samples = [random(n, 3, BLADES, seed=n) for n in (4, 1, 0, 6)]
    alone = torch.stack([centroid(x, Sets((len(x),))) for x in samples])
    assert not alone[2].any()

    values, mask = pad(samples)
    values[~mask] = float("nan")
    close(centroid(values, Sets(mask.shape, mask=mask)), alone)

    values, offsets = pack(samples)
    close(centroid(values, Sets(values.shape[:1], offsets=offsets)), alone)


def test_centroid_is_a_constant_for_gradients():
    mv = random(2, 6, 3, BLADES).requires_grad_()
    assert not centroid(mv, Sets((2, 6))).requires_grad


def test_a_mirror_has_no_quaternion():
    with pytest.raises(ValueError, match="mirror"):
        to_quaternion(sample(3, kind="reflection"))
    with pytest.raises(ValueError, match="mirror"):
        to_quaternion(torch.cat([sample(3, kind="rotation"), sample(1, kind="reflection")]))


def test_a_generator_of_the_cpu_is_used_for_samples_on_every_device():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert sample(3, generator=generator, device="meta").device.type == "meta"
    assert not torch.equal(generator.get_state(), before)


def test_a_small_weight_above_rounding_still_has_a_centroid():
    points, planes = random(4, 1, 3), embed_plane(random(4, 1, 3, seed=1), random(4, 1, 3, seed=2))
    mv = planes + 1e-9 * embed_point(points)
    close(centroid(mv, Sets((4,))), points.mean((0, 1)), rtol=0, atol=1e-5)
