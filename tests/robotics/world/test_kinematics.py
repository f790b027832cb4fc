"""Forward and inverse kinematics agree on all branches, for numpy and torch alike."""

import math

import numpy as np
import pytest
import torch

from flashgatr.experiments.robotics.world import kinematics, rotations, tracking
from flashgatr.experiments.robotics.world.kinematics import BRANCHES, HOME, LIMITS


@pytest.fixture
def q():
    return np.random.default_rng(0).uniform(-1, 1, (2000, 7)) * LIMITS


def poses_differ(q, other):
    pairs = zip(kinematics.forward(q), kinematics.forward(other), strict=True)
    return max(abs(a - b).max() for a, b in pairs)


def test_the_straight_arm_is_as_long_as_its_links():
    position, rotation = kinematics.forward(np.zeros(7))
    assert np.allclose(position, (0, 0, 0.36 + 0.42 + 0.4 + 0.126))
    assert np.allclose(rotation, np.eye(3))


def test_the_skeleton_leads_from_the_base_to_the_endeffector():
    q = np.stack([np.array(HOME) + 0.1 * k for k in range(3)])
    found = kinematics.skeleton(q)
    assert found.shape == (3, 5, 3)
    assert np.array_equal(found[1], kinematics.skeleton(q[1]))
    assert np.abs(found[:, 0]).max() == 0
    assert np.allclose(found[:, -1], kinematics.forward(q)[0])
    lengths = np.linalg.norm(np.diff(found, axis=1), axis=-1)
    assert np.allclose(lengths, lengths[0])  # links do not stretch


def test_at_home_the_endeffector_points_down():
    _, rotation = kinematics.forward(np.array(HOME))
    assert np.allclose(rotation[:, 2], (0, 0, -1))


@pytest.mark.parametrize("signs", BRANCHES)
def test_every_branch_reaches_the_pose(q, signs):
    position, rotation = kinematics.forward(q)
    angle = kinematics.arm_angle(q)
    found, reached = kinematics.inverse(position, rotation, angle, np.array(signs, float))
    assert poses_differ(q, found) < 1e-10
    assert (np.sign(found[:, 1::2]) == signs).all()
    assert np.abs(tracking.turns(kinematics.arm_angle(found) - angle)).max() < 1e-6
    assert 0.5 < reached.mean() < 1  # the rest is outside the limits
    own = (kinematics.branch(q) == signs).all(-1)
    assert np.abs(found[own] - q[own]).max() < 1e-10
    assert reached[own].all()


@pytest.mark.parametrize("size", [1e9, 1e160, 1e308])
def test_places_far_away_are_not_reached_and_give_numbers(size):
    position = size * np.array([[1.0, -0.5, 1.0], [0.0, 0.0, 1.0]])
    for kind in (np.asarray, torch.from_numpy):
        given = (kind(x) for x in (position, np.eye(3), np.zeros(2), np.ones(3)))
        found, reached = kinematics.inverse(*given)
        assert np.isfinite(np.asarray(found)).all()
        assert not reached.any()


def test_any_arm_angle_reaches_the_pose(q):
    position, rotation = kinematics.forward(q)
    angle = np.random.default_rng(1).uniform(-math.pi, math.pi, len(q))
    found, _ = kinematics.inverse(position, rotation, angle, kinematics.branch(q))
    assert poses_differ(q, found) < 1e-10


def test_torch_and_numpy_compute_the_same(q):
    tensor = torch.tensor(q)
    for a, b in zip(kinematics.forward(q), kinematics.forward(tensor), strict=True):
        assert np.abs(a - b.numpy()).max() < 1e-14
    position, rotation = kinematics.forward(tensor)
    found, reached = kinematics.inverse(
        position, rotation, kinematics.arm_angle(tensor), kinematics.branch(tensor)
    )
    assert (found - tensor).abs().max() < 1e-10
    assert bool(reached.all())
    low, _ = kinematics.forward(tensor.float())
    assert low.dtype == torch.float32
    assert (low - position).abs().max() < 1e-5


def test_poses_out_of_reach_are_flagged():
    far = np.array([[2.0, 0, 0.5], [0.5, 0, 0.5], [0, 0, 0.36]])
    down = np.broadcast_to(np.diag([-1.0, 1, -1]), (3, 3, 3))
    found, reached = kinematics.inverse(far, down, np.zeros(3), np.array([1.0, -1, 1]))
    assert reached.tolist() == [False, True, False]
    assert np.isfinite(found).all()
    assert np.allclose(found[0, 3], 0)  # stretched towards it


def test_poses_beyond_the_joint_limits_are_flagged():
    q = np.array([math.pi, *HOME[1:]])
    position, rotation = kinematics.forward(q)
    found, reached = kinematics.inverse(position, rotation, np.zeros(()), kinematics.branch(q))
    assert not reached
    assert not kinematics.within_limits(found)
    assert kinematics.within_limits(kinematics.clip(found))


def test_singular_poses_are_solved():
    for q in (np.zeros(7), np.array([0.3, 0, -0.2, 0, 0.1, 0, 0])):
        position, rotation = kinematics.forward(q)
        for signs in BRANCHES:
            found, _ = kinematics.inverse(
                position, rotation, kinematics.arm_angle(q), np.array(signs, float)
            )
            assert poses_differ(q, found) < 1e-7


def paths(chance, episodes, frames):
    """Straight lines in joint space, near home."""
    a, b = (np.array(HOME) + chance.uniform(-0.5, 0.5, (episodes, 7)) for _ in range(2))
    share = np.linspace(0, 1, frames)[:, None]
    return a[:, None] * (1 - share) + b[:, None] * share


def test_the_largest_step_is_that_of_each_path():
    q = np.zeros((2, 3, 7))
    q[0, 1:, 4], q[1, 2, 6] = 0.25, -0.5
    assert tracking.largest_step(q).tolist() == [0.25, 0.5]
    assert tracking.largest_step(torch.tensor(q)).tolist() == [0.25, 0.5]
    assert tracking.largest_step(q[0]) == 0.25


def test_tracking_follows_a_path_without_jumps():
    asked = paths(np.random.default_rng(2), 20, 50)
    found, frame, reached = tracking.track(*kinematics.forward(asked), asked[:, 0])
    assert reached.all()
    assert (frame == np.arange(50)).all()
    assert poses_differ(asked, found) < 1e-10
    assert np.abs(found[:, 0] - asked[:, 0]).max() < tracking.CENTRING
    assert tracking.largest_step(found).max() < 2 * tracking.largest_step(asked).max()


def test_tracking_starts_at_the_straight_arm():
    share = np.linspace(0, 1, 40)[:, None]
    asked = (share * np.array(HOME))[None]
    found = tracking.track(*kinematics.forward(asked), asked[:, 0])
    assert found.reached.all()
    assert tracking.largest_step(found.q).max() < 0.2


def test_tracking_stretches_towards_what_it_cannot_reach():
    position, rotation = kinematics.forward(np.array(HOME)[None, None])
    position = position + np.linspace(0, 1, 30)[None, :, None] * (1.0, 0, 0)
    rotation = np.broadcast_to(rotation, (1, 30, 3, 3))
    found = tracking.track(position, rotation, np.array(HOME)[None])
    assert found.reached[0, 0]
    assert not found.reached[0, -1]
    assert np.isfinite(found.q).all()
    assert kinematics.within_limits(found.q).all()


def test_tracking_swings_round_the_limit_of_joint_1():
    """A path of 290 degrees about the base is possible for poses, not for the joint."""
    angle = np.linspace(0, 1.6 * math.pi, 120)
    position, rotation = kinematics.forward(np.array(HOME))
    turn = rotations.about_z(angle)
    position, rotation = (turn @ position)[None], (turn @ rotation)[None]
    found = tracking.track(position, rotation, np.array(HOME)[None])
    assert kinematics.within_limits(found.q).all()
    assert tracking.largest_step(found.q).max() < 0.5
    frames = found.frame[0]
    assert (np.diff(frames) >= 0).all()
    assert np.diff(frames).max() == 1  # no frame is left out
    assert 80 < frames[-1] < 119  # the swing took some
    at, _ = kinematics.forward(found.q)
    late = found.reached[0]
    assert late[-10:].all()
    assert np.abs(at[0, late] - position[0, frames[late]]).max() < 1e-6


def test_poses_that_are_not_finite_are_refused():
    position, rotation = kinematics.forward(np.array(HOME)[None, None])
    with pytest.raises(ValueError, match="position has entries that are not finite"):
        tracking.track(position * np.nan, rotation, np.array(HOME)[None])


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_quaternions_and_directions_give_the_rotation_back(q, make):
    _, rotation = kinematics.forward(make(q))
    assert (
        abs(rotations.from_quaternion(rotations.to_quaternion(rotation)) - rotation).max() < 1e-12
    )
    first, second = rotation[..., 0], rotation[..., 1]
    assert abs(rotations.orthonormal(2 * first, second - 3 * first) - rotation).max() < 1e-12


def test_half_turns_have_quaternions():
    for axis in np.eye(3):
        rotation = 2 * np.outer(axis, axis) - np.eye(3)
        quaternion = rotations.to_quaternion(rotation)
        assert np.allclose(abs(quaternion), [*axis, 0])


def test_directions_without_a_plane_give_some_rotation():
    first = np.array([[0, 0, 0], [1, 0, 0], [0, 1e-12, 0], [0, 0, 3.0]])
    second = np.array([[0, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0, 0.0]])
    rotation = rotations.orthonormal(first, second)
    assert np.allclose(rotation @ rotations.transpose(rotation), np.eye(3))
    assert np.allclose(np.linalg.det(rotation), 1)
