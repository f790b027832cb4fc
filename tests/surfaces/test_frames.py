"""Tangent frames, directions and transports, against plain geometry."""

import cmath

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from flashgatr.experiments.baselines.surfaces.frames import (
    directions,
    powers,
    tangent_frames,
    transports,
    turned,
)

from .walls import motion, wall


def frames_of(seed=0):
    position, normal, _ = (torch.from_numpy(x) for x in wall(seed))
    toward = torch.arange(len(position)).roll(1)
    return position, tangent_frames(position, normal, toward), toward


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_frames_are_right_handed_and_begin_toward_the_other_node():
    position, frames, toward = frames_of()
    same(frames @ frames.mT, torch.eye(3, dtype=torch.float64).expand_as(frames))
    same(torch.linalg.det(frames), torch.ones(len(frames), dtype=torch.float64))
    offset = torch.einsum("nax,nx->na", frames, position[toward] - position)
    assert (offset[:, 0] > 0).all()
    same(offset[:, 1], torch.zeros_like(offset[:, 1]))


def test_frames_turn_with_the_surface():
    position, normal, _ = (torch.from_numpy(x) for x in wall(0))
    matrix, shift = (torch.from_numpy(x) for x in motion(1))
    _, frames, toward = frames_of()
    moved = tangent_frames(position @ matrix.T + shift, normal @ matrix.T, toward)
    same(moved, frames @ matrix.T)


@pytest.mark.parametrize("toward", [-1, 1], ids=["no node", "a node straight above"])
def test_without_a_direction_the_frame_is_still_one(toward):
    normal = torch.tensor([[0.0, 0, 1], [0, 0, 1]], dtype=torch.float64)
    frames = tangent_frames(
        2 * torch.arange(2)[:, None] * normal, normal, torch.tensor([toward, -1])
    )
    same(frames @ frames.mT, torch.eye(3, dtype=torch.float64).expand_as(frames))


def test_directions_are_angles_in_the_tangent_plane():
    frame = torch.eye(3, dtype=torch.float64)
    offset = torch.tensor([[1.0, 1, 5], [0, -2, 0], [0, 0, 3], [0, 0, 0]], dtype=torch.float64)
    expected = torch.tensor([cmath.exp(0.25j * cmath.pi), -1j, 0, 0], dtype=torch.complex128)
    same(directions(offset, frame), expected)


def test_transport_is_the_least_rotation_between_the_normals():
    _, source, _ = frames_of(0)
    _, target, _ = frames_of(1)
    found = transports(source[:, 0], source[:, 2], target)
    for t, own, other in zip(found, source.numpy(), target.numpy(), strict=True):
        axis = np.cross(own[2], other[2])
        angle = np.arccos(own[2] @ other[2])
        rotation = Rotation.from_rotvec(angle * axis / np.linalg.norm(axis))
        moved = other @ rotation.apply(own[0])
        assert abs(moved[2]) < 1e-10
        assert abs(complex(t) - complex(moved[0], moved[1])) < 1e-7


def test_transport_back_is_the_inverse():
    (_, source, _), (_, target, _) = frames_of(0), frames_of(1)
    there = transports(source[:, 0], source[:, 2], target)
    back = transports(target[:, 0], target[:, 2], source)
    same(there * back, torch.ones_like(there))


def test_between_opposite_normals_there_is_no_transport():
    frame = torch.eye(3, dtype=torch.float64)
    opposite = torch.diag(torch.tensor([1.0, -1, -1], dtype=torch.float64))
    assert transports(frame[0], frame[2], opposite) == 0
    assert transports(frame[0], frame[2], frame) == 1


def test_turning_a_frame_turns_what_is_seen_in_it_backwards():
    _, source, _ = frames_of(0)
    position, target, _ = frames_of(1)
    angle = torch.rand(len(source), dtype=torch.float64)
    spin = torch.exp(1j * angle)
    offset = position.roll(3, 0) - position
    same(directions(offset, turned(target, angle)), directions(offset, target) / spin)
    plain = transports(source[:, 0], source[:, 2], target)
    other = turned(source, angle)
    same(transports(other[:, 0], other[:, 2], target), plain * spin)
    same(transports(source[:, 0], source[:, 2], turned(target, angle)), plain / spin)


def test_the_zeroth_power_is_one():
    u = torch.tensor([0, 1j], dtype=torch.complex128)
    expected = torch.tensor([[1, 1], [0, 1j], [0, -1]], dtype=torch.complex128)
    same(torch.stack(powers(u, 2)), expected)
