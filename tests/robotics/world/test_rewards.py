"""The original reward has all its quirks; the strict one wants a tower that stands."""

import numpy as np
import pytest

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.layouts import Blocks
from flashgatr.experiments.robotics.world import rewards, rotations
from flashgatr.experiments.robotics.world.rewards import Original

APART = [[0.6, 0, 0.03], [0, 0.6, 0.03], [-0.6, 0, 0.03], [0, -0.6, 0.03]]


def state(places=(), held=()):
    """Blocks apart from each other, except those in `places`: block, x, y, z."""
    position = np.array(APART)
    for block, *place in places:
        position[block] = place
    flags = np.array([float(k in held) for k in range(4)])
    quaternion = np.tile([0.0, 0, 0, 1], (4, 1))
    return layouts.join(np.zeros(7), Blocks(position, quaternion, flags))


def on(top, bottom, level=1, shift=0.0):
    x, y, _ = APART[bottom]
    return top, x + shift, y, 0.03 + 0.06 * level


TOWER = state([on(1, 0), on(2, 0, 2), on(3, 0, 3)])


def score(*states):
    reward = Original()
    for x in states:
        reward.update(x)
    return reward.score


def test_blocks_apart_are_worth_nothing():
    assert score(state()) == rewards.strict(state()) == 0


def test_each_level_of_a_tower_is_a_third():
    assert score(state([on(1, 0)])) == pytest.approx(100 / 3)
    assert score(state([on(1, 0), on(2, 0, 2)])) == pytest.approx(200 / 3)
    assert score(TOWER) == rewards.strict(TOWER) == 100


def test_two_towers_of_two_are_worth_one():
    x = state([on(1, 0), on(3, 2)])
    assert score(x) == rewards.strict(x) == pytest.approx(100 / 3)
    assert sorted(map(len, rewards.towers(x))) == [2, 2]


def test_the_original_is_generous_with_distances():
    """Below 0.2 m sideways and anywhere above 0.05 m counts, also in the air."""
    for shift, height, worth in ((0.199, 0.5, 1), (0.201, 0.5, 0), (0, 0.081, 1), (0, 0.079, 0)):
        x = state([(1, 0.6 + shift, 0, height)])
        assert score(x) == pytest.approx(worth * 100 / 3)
    assert rewards.strict(state([(1, 0.6, 0, 0.5)])) == 0


def test_the_original_remembers_what_it_saw():
    assert score(TOWER, state()) == 100
    assert rewards.strict(state()) == 0


def test_one_block_over_three_others_in_turn_is_full_score():
    seen = [state([(3, *APART[k][:2], 0.5)]) for k in range(3)]
    assert score(*seen) == 100


def test_a_held_block_counts_only_at_the_end_of_a_phase():
    x = state([(1, 0.6, 0, 0.5)], held=[1])
    reward = Original()
    assert reward.update(x) == 0
    assert reward.end_phase(x) == pytest.approx(100 / 3)
    assert reward.end_phase(x) == 0
    assert rewards.original(np.stack([state(), x, x]), phases=1) == pytest.approx(100 / 3)


def test_a_held_lower_block_does_not_matter():
    """The original looks at the upper block's flag only."""
    assert score(state([(1, 0.6, 0, 0.5)], held=[0])) == pytest.approx(100 / 3)


def test_a_reward_is_the_increase_of_the_score():
    reward = Original()
    first, second = state([on(1, 0)]), state([on(1, 0), on(2, 0, 2)])
    gained = [reward.update(x) for x in (state(), first, first, second, state())]
    assert gained == pytest.approx([0, 100 / 3, 0, 100 / 3, 0])


def test_conditional_pairs_count_in_their_order():
    goal = ((1, 0), (2, 1), (3, 2))
    reward = Original(goal)
    assert reward.next_pair == (1, 0)
    assert reward.update(state([on(2, 0)])) == 0  # another pair
    assert reward.update(state([on(1, 0)])) == pytest.approx(100 / 3)
    assert reward.next_pair == (2, 1)
    assert reward.update(state([on(3, 2)])) == 0  # too early
    assert reward.update(TOWER) == pytest.approx(200 / 3)  # (2, 1), then (3, 2), in one pass
    assert (reward.score, reward.next_pair) == (100, (3, 2))
    assert reward.update(TOWER) == 0


def test_one_pass_over_the_pairs_may_need_another_state():
    """The original scans the pairs once, in order of the upper block."""
    reward = Original(((3, 2), (1, 0)))
    both = state([on(1, 0), on(3, 2)])
    assert [reward.update(both) for _ in range(3)] == [50, 50, 0]


def test_goals_can_be_built():
    chance = np.random.default_rng(0)
    sizes = set()
    for _ in range(200):
        pairs = rewards.conditional_goal(chance)
        assert len({k for pair in pairs for k in pair}) == 4
        assert [top for top, _ in pairs[:-1]] == [bottom for _, bottom in pairs[1:]]
        pairs = rewards.rearrangement_goal(chance)
        sizes.add(len(pairs))
        for k, (top, bottom) in enumerate(pairs):
            assert top != bottom
            assert all(top not in pair for pair in pairs[:k])  # nothing is on it, nor was it moved
            assert all(bottom != other for _, other in pairs[:k])
    assert sizes == {2, 3}


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        ((3, 0.6 + 0.09, 0, 0.21), 100),
        ((3, 0.6 + 0.11, 0, 0.21), 200 / 3),  # its centre is not above the block below
        ((3, 0.6, 0, 0.225), 200 / 3),  # in the air
        ((0, 0.6, 0, 0.045), 0),  # the lowest one is in the air
    ],
)
def test_a_standing_tower_is_centred_and_in_contact(change, worth):
    block, *place = change
    x = TOWER.copy()
    x[7 + 8 * block : 10 + 8 * block] = place
    assert rewards.strict(x) == pytest.approx(worth)


def test_held_and_tilted_blocks_do_not_stand():
    x = TOWER.copy()
    x[14 + 8 * 3] = 1
    assert rewards.strict(x) == pytest.approx(200 / 3)
    x = TOWER.copy()
    tilt = np.array([[1, 0, 0], [0, 0.9, -0.43589], [0, 0.43589, 0.9]])
    x[10 + 8 * 2 : 14 + 8 * 2] = rotations.to_quaternion(tilt)
    assert rewards.strict(x) == pytest.approx(100 / 3)
    x[10 + 8 * 2 : 14 + 8 * 2] = (1, 0, 0, 0)  # upside down is flat, too
    assert rewards.strict(x) == 100


def test_towers_are_listed_from_below():
    assert rewards.towers(TOWER) == [[0, 1, 2, 3]]
    assert rewards.towers(state([on(0, 2), on(1, 2, 2)])) == [[2, 0, 1], [3]]
