"""Embedding and extraction of objects invert each other, with finite gradients."""

import inspect
import math
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from flashgatr import geometry
from flashgatr.algebra import BLADES, E0, E12, E13, E23, E123, MOMENT, NORMAL, PSEUDOSCALAR, SCALAR
from flashgatr.geometry import (
    EPSILON,
    embed_direction,
    embed_line,
    embed_plane,
    embed_point,
    embed_pose,
    embed_pose_quaternion,
    embed_ray,
    embed_rotation,
    embed_translation,
    extract_direction,
    extract_plane,
    extract_point,
    extract_pose,
    extract_pose_quaternion,
    extract_ray,
    extract_rotation,
    extract_translation,
    matrix_to_quaternion,
    quaternion_to_matrix,
)

from .objects import OBJECTS, POSES, close, coordinates, dot, embed, extract, multivectors, random

every_object = pytest.mark.parametrize("name", OBJECTS)


def same_rotation(q, p, **tolerance):
    """q = ±p, compared through q qᵀ."""
    close(q[..., None] * q[..., None, :], p[..., None] * p[..., None, :], **tolerance)


# Round trips


def test_every_embedding_is_in_the_table():
    functions = {n for n, f in inspect.getmembers(geometry, inspect.isfunction) if n[0] != "_"}
    expected = {f"{verb}_{name}" for verb in ("embed", "extract") for name in OBJECTS}
    assert expected == {n for n in functions if n.startswith(("embed_", "extract_"))}


@every_object
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,), (2, 0)])
def test_embedding_what_was_extracted_gives_the_same_multivector(name, shape):
    mv = embed(name, *coordinates(name, shape))
    assert mv.shape == (*shape, *(4,) * (name in POSES), BLADES)
    close(embed(name, *extract(name, mv)), mv)


@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - {"plane", "reflection", "ray"}))
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_coordinates_come_back(name, shape):
    given = coordinates(name, shape)
    for got, expected in zip(extract(name, embed(name, *given)), given, strict=True):
        if name == "pose_quaternion" and got.shape[-1] == 4:
            same_rotation(got, expected)
        else:
            close(got, expected)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_plane_and_ray_come_back_with_their_point_next_to_the_origin(shape):
    position, vector = random(*shape, 3, seed=0), random(*shape, 3, seed=1)
    for name in ("plane", "reflection"):
        normal, nearest = extract(name, embed(name, vector, position))
        close(normal, vector)
        close(dot(nearest, normal), dot(position, normal))
        close(torch.linalg.cross(nearest, normal), torch.zeros_like(normal))
    nearest, direction = extract_ray(embed_ray(position, vector))
    close(direction, vector)
    close(torch.linalg.cross(nearest - position, vector), torch.zeros_like(vector))
    close(dot(nearest, vector), torch.zeros(shape, dtype=torch.float64))


def test_arguments_broadcast():
    five, one = random(5, 3), random(3, seed=1)
    quaternion = normalize(random(4), dim=-1)
    for embedding in (embed_plane, embed_line, embed_ray):
        close(embedding(five, one), embedding(five, one.expand(5, 3)))
        close(embedding(one, five), embedding(one.expand(5, 3), five))
    close(embed_pose(one, five, one), embed_pose(*[x.expand(5, 3) for x in (one, five, one)]))
    close(embed_pose(five, one, one), embed_pose(five, one.expand(5, 3), one.expand(5, 3)))
    close(
        embed_pose_quaternion(five, quaternion),
        embed_pose_quaternion(five, quaternion.expand(5, 4)),
    )


# Weights


@pytest.mark.parametrize("factor", [1e-3, 0.02, 3.0, 1e6, -2e-3, -1.0, -50.0])
def test_positions_do_not_depend_on_the_weight(factor):
    x, n = random(7, 3), random(7, 3, seed=1)
    q = normalize(random(7, 4), dim=-1)
    close(extract_point(factor * embed_point(x)), x)
    close(extract_translation(factor * embed_translation(x)), x)
    close(extract_rotation(factor * embed_rotation(q)), math.copysign(1, factor) * q)
    close(extract_pose(factor * embed_pose(x, n, x))[0], x)
    factor = math.copysign(max(abs(factor), 0.02), factor)  # the normals may be short themselves
    for name, vector in (("plane", 0), ("reflection", 0), ("ray", 1)):
        mv = embed(name, *coordinates(name, (7,)))
        scaled, plain = extract(name, factor * mv), extract(name, mv)
        close(scaled[vector], factor * plain[vector])
        close(scaled[1 - vector], plain[1 - vector])


@pytest.mark.parametrize(
    ("extraction", "weight", "parts"),
    [(extract_point, E123, embed_direction), (extract_translation, SCALAR, embed_line)],
)
def test_extraction_is_odd_and_continuous_where_the_weight_vanishes(extraction, weight, parts):
    x = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    base = parts(x) if parts is embed_direction else parts(torch.zeros_like(x), -x / 2)
    half = torch.linspace(0, 5 * EPSILON, 20_001, dtype=torch.float64)
    w = torch.cat([-half.flip(0)[:-1], half])
    mv = base.repeat(len(w), 1)
    mv[:, weight] = w
    got = extraction(mv)
    assert torch.equal(got, -got.flip(0))
    steepest = x.abs() / EPSILON**2
    assert (got.diff(dim=0).abs() <= 1.001 * steepest * w.diff()[:, None]).all()
    large = w.abs() >= EPSILON
    close(got[large], x / w[large, None])


def test_epsilon_is_the_weight_below_which_extraction_stops_dividing():
    x = random(3)
    mv = 0.1 * embed_point(x)
    close(extract_point(mv, epsilon=0.05), x)
    close(extract_point(mv, epsilon=0.2), x * (0.1 / 0.2) ** 2)


# Rotations


def axes():
    signs = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    grid = torch.cartesian_prod(signs, signs, signs)
    grid = grid[grid.any(-1)]
    near = grid + 1e-9 * random(*grid.shape)
    return normalize(torch.cat([grid, near, random(100, 3)]), dim=-1)


def quaternions(angle):
    axis = axes()
    half = torch.full((len(axis), 1), angle / 2, dtype=torch.float64)
    return torch.cat([half.sin() * axis, half.cos()], dim=-1)


ANGLES = [0.0, 1e-9, 0.5, math.pi / 2, math.pi - 1e-9, math.pi, math.pi + 1e-9, -math.pi]


@pytest.mark.parametrize("angle", ANGLES)
def test_quaternion_turns_by_the_angle_about_the_axis(angle):
    axis, zero = axes(), torch.zeros(len(axes()), dtype=torch.float64)
    x, y, z = axis.unbind(-1)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).reshape(-1, 3, 3)
    expected = torch.eye(3).double() + math.sin(angle) * skew + (1 - math.cos(angle)) * skew @ skew
    close(quaternion_to_matrix(quaternions(angle)), expected)
    close(quaternion_to_matrix(-3 * quaternions(angle)), expected)


@pytest.mark.parametrize("angle", ANGLES)
def test_rotations_come_back_up_to_sign_at_no_and_half_turns_too(angle):
    q = quaternions(angle)
    same_rotation(matrix_to_quaternion(quaternion_to_matrix(q)), q)
    position, got = extract_pose_quaternion(embed_pose_quaternion(random(len(q), 3), q))
    close(position, random(len(q), 3))
    same_rotation(got, q)
    close(extract_rotation(embed_rotation(q)), q)
    loose = dict(rtol=1e-5, atol=1e-5)
    single = extract_pose_quaternion(embed_pose_quaternion(position.float(), q.float()))[1]
    same_rotation(single, q.float(), **loose)


def test_a_skewed_and_stretched_pose_has_the_quaternion_of_its_first_plane_and_their_span():
    q = quaternions(0.5)
    mv = embed_pose_quaternion(random(len(q), 3), q)
    point, first, second, third = mv.unbind(-2)
    skewed = torch.stack([point, 3 * first, 0.4 * second - 2 * first, random(BLADES) + third], -2)
    same_rotation(extract_pose_quaternion(skewed)[1], q)


@pytest.mark.parametrize("angle", [0.0, math.pi])
def test_gradients_of_a_quaternion_are_finite_at_no_and_half_turns(angle):
    q = quaternions(angle)
    mv = embed_pose_quaternion(torch.zeros(len(q), 3).double(), q).requires_grad_()
    extract_pose_quaternion(mv)[1].sum().backward()
    assert mv.grad.isfinite().all()


# Gradients


@every_object
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_on_degenerate_multivectors(name, dtype):
    mv = multivectors(name, 6, dtype=dtype)
    mv[0] = 0
    mv[1] *= 1e-30
    mv[2, ..., [SCALAR, E123]] = 0
    mv[3, ..., NORMAL] = 0
    mv[4, ..., [SCALAR, E12, E13, E23]] = 0
    if name in POSES:
        mv[5, 2] = mv[5, 1]  # two parallel planes
    mv.requires_grad_()
    values = extract(name, mv)
    sum(x.sum() for x in values).backward()
    assert all(x.isfinite().all() for x in values)
    assert mv.grad.isfinite().all()


@every_object
def test_gradients_are_right_where_extraction_is_smooth(name):
    given = [x.requires_grad_() for x in coordinates(name, (2,))]
    assert torch.autograd.gradcheck(partial(embed, name), given)
    mv = multivectors(name, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda mv: extract(name, mv), mv)


# Blades


def test_each_object_lives_on_its_own_blades():
    def blades(name):
        return set(embed(name, *coordinates(name, ())).nonzero().flatten().tolist())

    moment = set(range(BLADES)[MOMENT])
    assert blades("scalar") == {SCALAR}
    assert blades("pseudoscalar") == {PSEUDOSCALAR}
    assert blades("point") == blades("direction") | {E123}
    assert blades("plane") == {E0, *range(BLADES)[NORMAL]}
    assert blades("line") == moment | {E12, E13, E23}
    assert blades("translation") == moment | {SCALAR}
    assert blades("rotation") == {SCALAR, E12, E13, E23}


def test_extraction_ignores_other_blades():
    x = random(3)
    other = torch.full((BLADES,), 7.0, dtype=torch.float64)
    mv = embed_point(x)
    close(extract_point(torch.where(mv != 0, mv, other)), x)
    close(extract_direction(torch.where(mv != 0, mv, other)), x)


# Errors


@every_object
def test_coordinates_of_the_wrong_size_or_type_are_refused(name):
    for place, size in enumerate(OBJECTS[name]):
        given = coordinates(name, (5,))
        good = given[place]
        given[place] = torch.zeros(5, size + 1)
        with pytest.raises(ValueError, match=rf"^\w+ must have shape \(..., {size}\), got \(5, "):
            embed(name, *given)
        given[place] = good.long()
        with pytest.raises(TypeError, match=r"^\w+ must be floating point, got torch.int64; cast"):
            embed(name, *given)


@every_object
def test_multivectors_of_the_wrong_size_or_type_are_refused(name):
    mv = multivectors(name, 5)
    with pytest.raises(ValueError, match=r"^a multivector must have shape \(..., 16\), got"):
        extract(name, mv[..., :-1])
    with pytest.raises(TypeError, match=r"^a multivector must be floating point, got torch.int64"):
        extract(name, mv.long())


@pytest.mark.parametrize("name", POSES)
@pytest.mark.parametrize("shape", [(BLADES,), (3, BLADES), (4, 1, BLADES)])
def test_a_pose_that_is_not_four_multivectors_is_refused(name, shape):
    with pytest.raises(ValueError, match="a pose is four multivectors"):
        extract(name, torch.zeros(shape))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 4)])
def test_a_rotation_matrix_of_the_wrong_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"matrix must have shape \(..., 3, 3\), got"):
        matrix_to_quaternion(torch.zeros(shape))


EXTRACTIONS = [
    extract_point, extract_plane, extract_ray, extract_translation, extract_rotation,
    extract_pose_quaternion,
]  # fmt: skip


@pytest.mark.parametrize("extract", EXTRACTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 300.0])
def test_half_precision_has_finite_results_and_gradients(extract, scale):
    generator = torch.Generator().manual_seed(0)
    mv = (scale * torch.randn(4, 16, generator=generator)).half().requires_grad_()
    out = extract(mv)
    out = out if isinstance(out, tuple) else (out,)
    assert all(x.dtype == torch.float16 and x.isfinite().all() for x in out)
    sum(x.sum() for x in out).backward()
    assert mv.grad.isfinite().all()
    exact = extract(mv.detach().double())
    for x, y in zip(out, exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(x.detach().double(), y, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 300), (torch.float32, 1e20)])
def test_large_rotors_come_back_as_unit_quaternions(dtype, size):
    q = torch.nn.functional.normalize(torch.tensor([1.0, -2.0, 3.0, 0.5]), dim=-1)
    found = extract_rotation(embed_rotation((size * q).to(dtype)))
    torch.testing.assert_close(found.float(), q, rtol=1e-3, atol=1e-3)


def test_a_zero_quaternion_turns_nothing():
    q = torch.zeros(4, requires_grad=True)
    assert torch.equal(quaternion_to_matrix(q), torch.eye(3))
    pose = embed_pose_quaternion(torch.ones(3), q)
    assert pose.isfinite().all()
    pose.square().sum().backward()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_pose_has_four_multivectors(count):
    for read in (extract_pose, extract_pose_quaternion):
        with pytest.raises(ValueError, match="a pose is four multivectors"):
            read(torch.zeros(2, count, 16))
