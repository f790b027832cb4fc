"""Scenes are drawn as in the original environment, from disjoint and repeatable streams."""

import numpy as np
import pytest

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.world import kinematics, rotations, scenes
from flashgatr.experiments.robotics.world.scenes import Setting


def test_blocks_lie_flat_on_the_ring_apart_from_each_other():
    q, blocks = layouts.split(scenes.scenes("test"))
    assert q.shape == (200, 7)
    assert (q == kinematics.HOME).all()
    assert np.allclose(np.hypot(blocks.position[..., 0], blocks.position[..., 1]), 0.6)
    assert np.allclose(blocks.position[..., 2], 0.03)
    assert np.allclose(blocks.quaternion, (0, 0, 0, 1))
    assert not blocks.held.any()
    apart = abs(blocks.position[:, :, None, :2] - blocks.position[:, None, :, :2]).max(-1)
    assert (apart + np.eye(4) >= 0.2).all()


def test_directions_are_those_of_a_square():
    """More blocks lie towards the corners than along the axes."""
    _, blocks = layouts.split(scenes.scenes("train", 500))
    angle = np.arctan2(blocks.position[..., 1], blocks.position[..., 0])
    diagonal = abs(np.remainder(angle, np.pi / 2) - np.pi / 4) < np.pi / 8
    assert 0.53 < diagonal.mean() < 0.66  # 2 - sqrt(2) = 0.586; a circle would have 0.5


def test_sets_are_disjoint_and_repeatable():
    sizes = dict(train=100, validation=None, test=None)
    drawn = {name: scenes.scenes(name, count) for name, count in sizes.items()}
    assert [len(x) for x in drawn.values()] == [100, 50, 200]
    rows = np.concatenate(list(drawn.values()))
    assert len(np.unique(rows, axis=0)) == 350
    assert (scenes.scenes("test", 7) == drawn["test"][:7]).all()
    assert (scenes.scenes("test", 7, seed=1) != drawn["test"][:7]).any(axis=1).all()


def test_seeds_that_would_give_scenes_of_another_set_are_refused():
    """numpy reads 2**32 as 0 and 1: `predict` would draw validation scene 3 of seed 0."""
    large, small = (np.random.default_rng(x) for x in ([2**32, 3, 0], [0, 1, 3]))
    assert large.random() == small.random()
    text = "seed must be an integer from 0 to 4,294,967,295, got 4294967296"
    for name in scenes.SETS:
        with pytest.raises(ValueError, match=text):
            scenes.random_stream(name, 2**32, 0)
    scenes.random_stream("train", 2**32 - 1, 0)


def test_settings_turn_blocks_or_the_world():
    _, blocks = layouts.split(scenes.scenes("test", 20, setting=Setting(random_yaw=True)))
    assert np.abs(blocks.quaternion[..., 2]).max() > 0.5
    assert np.allclose(blocks.quaternion[..., :2], 0)
    turned, plain = (scenes.scenes("test", 20, setting=Setting(turned=x)) for x in (True, False))
    assert np.ptp(turned[:, 0]) > 2
    for a, b in zip(turned, plain, strict=True):
        assert np.allclose(layouts.rotated(b, a[0] - b[0]), a)
    upright = scenes.scenes("test", 2, setting=Setting(start="upright"))
    assert not upright[:, :7].any()
    assert (upright[:, 7:] == plain[:2, 7:]).all()


def test_bounding_boxes_of_turned_blocks_do_not_overlap():
    state = scenes.scenes("test", 50, setting=Setting(random_yaw=True))
    _, blocks = layouts.split(state)
    rotation = rotations.from_quaternion(blocks.quaternion)
    corners = np.array([[x, y, 0] for x in (-0.1, 0.1) for y in (-0.1, 0.1)])
    corners = np.einsum("ebij,cj->ebci", rotation, corners) + blocks.position[:, :, None]
    low, high = corners.min(2)[..., :2], corners.max(2)[..., :2]
    for a in range(4):
        for b in range(a):
            meet = (low[:, a] < high[:, b] - 1e-9) & (low[:, b] < high[:, a] - 1e-9)
            assert not meet.all(-1).any()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: scenes.scenes("exam"), "count must be a number of scenes"),
        (lambda: scenes.scenes("exam", 3), "unknown set 'exam'; expected one of train"),
        (lambda: scenes.scenes("train"), "count must be a number of scenes, got None"),
        (lambda: Setting(start="lying"), "start must be one of bent, upright, got 'lying'"),
        (lambda: Setting(turned=1), "turned must be true or false, got 1"),
    ],
)
def test_wrong_requests_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
