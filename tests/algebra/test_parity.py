"""The table of types: each object's embedding moves with the sign that its type declares."""

from typing import get_args

import pytest
import torch
from torch.linalg import cross, det

from flashgatr import parity, versors
from flashgatr.geometry import (
    PARITY,
    embed_direction,
    embed_line,
    embed_plane,
    embed_point,
    embed_point_reflection,
    embed_pose,
    embed_pose_quaternion,
    embed_pseudoscalar,
    embed_ray,
    embed_reflection,
    embed_rotation,
    embed_scalar,
    embed_translation,
    matrix_to_quaternion,
)
from flashgatr.ops import join, product

from .objects import close, random

KINDS = get_args(versors.Kind)


def motions(kind, count=64):
    generator = torch.Generator().manual_seed(1)
    return versors.sample(count, kind=kind, distance=2.0, generator=generator)


class Motion:
    """What a motion does to coordinates, from its matrix alone."""

    def __init__(self, versor):
        self.versor, matrix = versor, versors.to_matrix(versor)
        self.linear, self.shift = matrix[..., :3, :3], matrix[..., :3, 3]
        self.sign = det(self.linear).round()[..., None]

    def polar(self, v):
        return (self.linear @ v[..., None])[..., 0]

    def axial(self, v):
        return self.sign * self.polar(v)

    def position(self, x):
        return self.polar(x) + self.shift

    def frame(self, quaternion):
        """The axes of a quaternion: two are moved, the third is their cross product."""
        first, second = (self.polar(a) for a in _axes(quaternion)[:2])
        return matrix_to_quaternion(torch.stack([first, second, cross(first, second)], -1))


def _axes(quaternion):
    turned = versors.to_matrix(embed_rotation(quaternion))[..., :3, :3]
    return turned.unbind(-1)


A, B, C = (random(64, 3, seed=seed) for seed in (3, 4, 5))
NUMBER = random(64, 1, seed=6)
QUATERNION = torch.nn.functional.normalize(random(64, 4, seed=7), dim=-1)


def turned_quaternion(g):
    """Conjugating a rotation by g: the vector part is axial, the real part a number."""
    return torch.cat([g.axial(QUATERNION[:, :3]), QUATERNION[:, 3:]], -1)


OBJECTS = {
    "scalar": (embed_scalar(NUMBER), lambda g: embed_scalar(NUMBER)),
    "pseudoscalar": (embed_pseudoscalar(NUMBER), lambda g: embed_pseudoscalar(g.sign * NUMBER)),
    "handed_scalar": (embed_scalar(NUMBER), lambda g: embed_scalar(g.sign * NUMBER)),
    "handed_pseudoscalar": (embed_pseudoscalar(NUMBER), lambda g: embed_pseudoscalar(NUMBER)),
    "point": (embed_point(A), lambda g: embed_point(g.position(A))),
    "point_reflection": (
        embed_point_reflection(A),
        lambda g: embed_point_reflection(g.position(A)),
    ),
    "direction": (embed_direction(A), lambda g: embed_direction(g.polar(A))),
    "axial_direction": (embed_direction(A), lambda g: embed_direction(g.axial(A))),
    "plane": (embed_plane(A, B), lambda g: embed_plane(g.polar(A), g.position(B))),
    "reflection": (embed_reflection(A, B), lambda g: embed_reflection(g.polar(A), g.position(B))),
    "axial_plane": (
        embed_plane(cross(A, B), C),
        lambda g: embed_plane(cross(g.polar(A), g.polar(B)), g.position(C)),
    ),
    "line": (
        embed_line(A, cross(B, A)),
        lambda g: embed_line(g.polar(A), cross(g.position(B), g.polar(A))),
    ),
    "ray": (embed_ray(A, B), lambda g: embed_ray(g.position(A), g.polar(B))),
    "axis": (embed_ray(A, B), lambda g: embed_ray(g.position(A), g.axial(B))),
    "translation": (embed_translation(A), lambda g: embed_translation(g.polar(A))),
    "rotation": (embed_rotation(QUATERNION), None),
    "motor": (product(embed_translation(A), embed_rotation(QUATERNION)), None),
    "pose": (
        embed_pose(A, B, C),
        lambda g: embed_pose(g.position(A), g.polar(B), g.polar(C)),
    ),
    "pose_quaternion": (
        embed_pose_quaternion(A, QUATERNION),
        lambda g: embed_pose_quaternion(g.position(A), g.frame(QUATERNION)),
    ),
}


def moved_motor(mv, g):
    """The versor of g u g⁻¹, from the matrix of that motion; u and -u are the same motion."""
    u = versors.to_matrix(mv)
    matrix = versors.to_matrix(g.versor)
    made = versors.from_matrix(matrix @ u @ torch.linalg.inv(matrix))
    found = versors.apply(g.versor, mv)
    return made * (made * found).sum(-1, keepdim=True).sign()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARITY)
def test_motions_move_every_object_with_the_sign_of_its_type(name, kind):
    g = Motion(motions(kind))
    mv, moved = OBJECTS[name]
    expected = moved_motor(mv, g) if moved is None else moved(g)
    mv, expected = (x if x.dim() == 3 else x[:, None] for x in (mv, expected))
    found = versors.apply(g.versor[:, None], mv, PARITY[name])
    close(found, expected)


@pytest.mark.parametrize("name", PARITY)
def test_the_other_type_is_wrong(name):
    g = Motion(motions("reflection"))
    mv = OBJECTS[name][0]
    mv = mv if mv.dim() == 3 else mv[:, None]
    other = PARITY[name].translate(str.maketrans("eo", "oe"))
    right, wrong = (versors.apply(g.versor[:, None], mv, p) for p in (PARITY[name], other))
    assert (right - wrong).abs().amax() > 1


@pytest.mark.parametrize("kind", ["rotation", "reflection", "inversion", "rotoreflection"])
def test_a_quaternion_is_moved_by_moving_its_axial_part(kind):
    """About the origin, g u g⁻¹ has the axial vector part of u moved by g, and the same real part.

    The matrix of a motion does not tell u from -u, so only this shows that rotations are even.
    """
    generator = torch.Generator().manual_seed(1)
    g = Motion(versors.sample(64, kind=kind, distance=0.0, generator=generator))
    mv, expected = (embed_rotation(x)[:, None] for x in (QUATERNION, turned_quaternion(g)))
    close(versors.apply(g.versor[:, None], mv, PARITY["rotation"]), expected)


def test_products_multiply_types_and_joins_also_change_them():
    u = motions("E(3)")
    x, y = random(64, 16, seed=8), random(64, 16, seed=9)
    sign = torch.where(versors.is_odd(u), -1.0, 1.0)[:, None]
    gx, gy = versors.apply(u, x), versors.apply(u, y)
    close(product(gx, gy), versors.apply(u, product(x, y)))
    close(join(gx, gy), sign * versors.apply(u, join(x, y)))


def test_parity_gives_the_letters_of_objects_in_order():
    assert parity("point", "plane", "pose", "scalar") == "oe" + "oeeo" + "e"
    assert parity() == ""


def test_wrong_names_letters_and_lengths_are_named():
    with pytest.raises(ValueError, match="unknown object 'sphere'; expected one of scalar"):
        parity("sphere")
    u, mv = motions("E(3)")[0], random(2, 16)
    with pytest.raises(ValueError, match="must be a string of the letters"):
        versors.apply(u, mv, "ox")
    with pytest.raises(ValueError, match="one letter for each of 2 multivector channels"):
        versors.apply(u, mv, "o")
    with pytest.raises(ValueError, match="is that of channels"):
        versors.apply(u, mv[0], "o")
