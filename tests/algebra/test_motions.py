"""The group acts on objects as it acts on coordinates."""

import pytest
import torch
from torch.nn.functional import normalize

from flashgatr.geometry import (
    embed_direction,
    embed_plane,
    embed_point,
    embed_point_reflection,
    embed_pose,
    embed_pseudoscalar,
    embed_ray,
    embed_reflection,
    embed_rotation,
    embed_scalar,
    embed_translation,
    extract_line,
    extract_plane,
    extract_point,
    extract_pose,
    extract_translation,
    quaternion_to_matrix,
)
from flashgatr.ops import join
from flashgatr.versors import apply, compose, invert

from .objects import close, coordinates, dot, embed, random


def motion():
    """A versor with its rotation matrix and shift, made without the library's to_matrix."""
    quaternion, shift = normalize(random(8, 4, seed=10), dim=-1), random(8, 3, seed=11)
    versor = compose(embed_translation(shift), embed_rotation(quaternion))
    return versor, quaternion_to_matrix(quaternion), shift


def turn(matrix, x):
    return (matrix @ x.unsqueeze(-1)).squeeze(-1)


def test_points_turn_and_shift():
    versor, matrix, shift = motion()
    x = random(8, 3)
    close(apply(versor, embed_point(x)), embed_point(turn(matrix, x) + shift))


def test_directions_only_turn():
    versor, matrix, _ = motion()
    x = random(8, 3)
    close(apply(versor, embed_direction(x)), embed_direction(turn(matrix, x)))


def test_planes_turn_their_normal_and_contain_the_moved_point():
    versor, matrix, shift = motion()
    normal, point = random(8, 3), random(8, 3, seed=1)
    got, nearest = extract_plane(apply(versor, embed_plane(normal, point)))
    close(got, turn(matrix, normal))
    close(dot(nearest - turn(matrix, point) - shift, got), torch.zeros(8).double())


def test_lines_pass_through_both_moved_points():
    versor, matrix, shift = motion()
    a, b = random(8, 3), random(8, 3, seed=1)
    moved_a, moved_b = (turn(matrix, x) + shift for x in (a, b))
    close(apply(versor, embed_ray(a, b - a)), embed_ray(moved_a, moved_b - moved_a))
    direction, moment = extract_line(apply(versor, embed_ray(a, b - a)))
    close(direction, moved_b - moved_a)
    close(moment, torch.linalg.cross(moved_b, direction))


def test_poses_turn_and_shift():
    versor, matrix, shift = motion()
    given = coordinates("pose", (8,))
    moved = extract_pose(apply(versor[:, None], embed_pose(*given)))
    close(moved[0], turn(matrix, given[0]) + shift)
    close(moved[1], turn(matrix, given[1]))
    close(moved[2], turn(matrix, given[2]))


@pytest.mark.parametrize("name", ["translation", "rotation", "reflection", "point_reflection"])
def test_versors_move_by_conjugation(name):
    versor, _, _ = motion()
    inner, point = embed(name, *coordinates(name, (8,))), embed_point(random(8, 3, seed=5))
    conjugated = apply(versor, apply(inner, apply(invert(versor), point)))
    close(apply(apply(versor, inner), point), conjugated)


def test_translations_turn_but_do_not_shift():
    versor, matrix, _ = motion()
    x = random(8, 3)
    close(extract_translation(apply(versor, embed_translation(x))), turn(matrix, x))


def mirror():
    normal, position = normalize(random(8, 3, seed=10), dim=-1), random(8, 3, seed=11)

    def flip(x):
        return x - 2 * dot(normal, x)[:, None] * normal

    return embed_reflection(normal, position), flip, lambda x: position + flip(x - position)


def test_mirrors_turn_a_point_into_minus_the_mirrored_point():
    versor, _, image = mirror()
    x = random(8, 3)
    close(apply(versor, embed_point(x)), -embed_point(image(x)))
    close(extract_point(apply(versor, embed_point(x))), image(x))


def test_mirrors_turn_a_line_into_minus_the_mirrored_line_and_a_plane_into_the_mirrored_plane():
    versor, flip, image = mirror()
    x, v = random(8, 3), random(8, 3, seed=1)
    close(apply(versor, embed_ray(x, v)), -embed_ray(image(x), flip(v)))
    close(apply(versor, embed_plane(v, x)), embed_plane(flip(v), image(x)))


def test_mirrors_keep_scalars_and_flip_pseudoscalars():
    versor, _, _ = mirror()
    value = random(8, 1)
    close(apply(versor, embed_scalar(value)), embed_scalar(value))
    close(apply(versor, embed_pseudoscalar(value)), -embed_pseudoscalar(value))


def test_point_reflection_inverts_through_the_point():
    centre, x = random(8, 3), random(8, 3, seed=1)
    moved = apply(embed_point_reflection(centre), embed_point(x))
    close(extract_point(moved), 2 * centre - x)


def test_line_through_two_points_is_their_join_up_to_weight():
    a, b = random(8, 3), random(8, 3, seed=1)
    line = join(embed_point(a), embed_point(b))
    close(line, embed_ray(a, b - a))
    close(join(2 * embed_point(a), -3 * embed_point(b)), -6 * line)


def test_plane_through_three_points_is_their_join_up_to_weight():
    a, b, c = (random(8, 3, seed=seed) for seed in range(3))
    plane = join(join(embed_point(a), embed_point(b)), embed_point(c))
    close(plane, -embed_plane(torch.linalg.cross(b - a, c - a), a))
