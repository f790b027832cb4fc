"""Demonstrations as transitions: what is seen, done and earned in every frame."""

import numpy as np
import pytest
import torch

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.demonstrations.stream import (
    Demonstration,
    Recipe,
    demonstration,
)
from flashgatr.experiments.robotics.offline_rl.transitions import (
    ACTION,
    JOINT_STEP,
    Transitions,
    change_of,
    observed,
)
from flashgatr.experiments.robotics.world import rewards, scenes


@pytest.fixture
def hand_made():
    """Five frames: take block 1, carry it over block 0, release it there, move on."""
    states = np.repeat(scenes.scenes("test", 1), 5, axis=0)
    q, blocks = layouts.split(states)
    q[:, 0] += [0.0, 0.1, 0.1, 0.25, -0.05]
    blocks.held[1:3, 1] = 1
    blocks.position[2:, 1] = blocks.position[0, 0] + [0, 0, 0.06]
    blocks.quaternion[3, 2] *= -1
    return Demonstration(layouts.join(q, blocks).astype(np.float32), np.zeros(3, dtype=np.int64))


def test_a_hand_made_demonstration_has_these_transitions(hand_made):
    found = Transitions.of([hand_made, hand_made])
    assert len(found) == 10
    batch = found.batch(torch.arange(5, 10))
    first = batch.action[:, 0] * JOINT_STEP
    torch.testing.assert_close(first, torch.tensor([0.1, 0, 0.15, -0.3, 0]), rtol=0, atol=1e-6)
    assert batch.action[:, 8].tolist() == [1, 0, -1, 0, 0]  # the flag of block 1
    assert not batch.action[:, [*range(1, 7), 7, 9, 10]].any()
    assert batch.reward.tolist() == [0, 0, 1, 0, 0]  # released, not while it is carried
    assert torch.equal(batch.following[:-1], batch.observation[1:])
    assert torch.equal(batch.following[-1], batch.observation[-1])


def test_both_quaternions_of_a_rotation_look_the_same(hand_made):
    seen = observed(hand_made.states)
    _, blocks = layouts.split(seen)
    assert (blocks.quaternion[..., 3] >= 0).all()
    assert np.array_equal(seen[3, 23:31], seen[2, 23:31])
    tensor = observed(torch.from_numpy(hand_made.states))
    assert np.array_equal(tensor.numpy(), seen)


def test_steps_of_demonstrations_fit_the_scale_and_earn_three():
    made = [demonstration(Recipe(diversity=d), k) for k, d in enumerate((0.0, 0.5, 1.0, 1.0))]
    found = Transitions.of(made)
    assert found.reward.sum() == 3 * len(made)
    assert set(found.reward.tolist()) == {0, 1}
    batch = found.batch(torch.arange(len(found)))
    assert 0.3 < batch.action[:, :7].abs().max() < 0.95  # nothing was cut off
    assert set(batch.action[:, 7:].flatten().tolist()) == {-1, 0, 1}
    change = torch.from_numpy(change_of(batch.action.double().numpy()))
    expected = (batch.following - batch.observation)[:, [*range(7), 14, 22, 30, 38]]
    torch.testing.assert_close(change.float(), expected, rtol=0, atol=1e-6)
    assert change.shape[-1] == ACTION


def test_every_frame_is_scored_as_the_original_does():
    states = demonstration(Recipe(), 1).states.astype(float)
    original = rewards.Original()
    steps = [original.update(state) for state in states]
    assert np.allclose(np.cumsum(steps), rewards.heights(states) * 100 / 3)
