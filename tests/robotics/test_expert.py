"""The expert builds a tower of four in every scene, in less than 128 frames per stack."""

import numpy as np
import pytest

from flashgatr.experiments.bench.data import kuka_expert
from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.demonstrations import clearance, expert, motion, stream
from flashgatr.experiments.robotics.demonstrations.expert import PlanError, demonstrate
from flashgatr.experiments.robotics.demonstrations.stream import Recipe, demonstration
from flashgatr.experiments.robotics.world import (
    kinematics,
    physics,
    rewards,
    rotations,
    scenes,
    tracking,
)
from flashgatr.experiments.robotics.world.scenes import Setting

COUNT = 8
HORIZON = layouts.HORIZON


@pytest.fixture(scope="module")
def plans():
    """Demonstrations of every diversity, in double precision."""
    made = {}
    for diversity in (0, 0.5, 1):
        for k in range(COUNT):
            chance = scenes.random_stream("train", 0, k)
            made[diversity, k] = demonstrate(scenes.draw(chance), chance, diversity)
    return made


def test_every_plan_ends_with_a_standing_tower(plans):
    for states, ends in plans.values():
        assert rewards.strict(states[-1]) == 100
        assert rewards.original(states) == 100
        assert [rewards.strict(states[end]) for end in ends] == pytest.approx(
            [100 / 3, 200 / 3, 100]
        )


def test_a_stack_takes_less_than_a_window(plans):
    lengths = [length for _, ends in plans.values() for length in np.diff([0, *ends])]
    assert 60 < np.mean(lengths) < 110
    assert max(lengths) < HORIZON
    assert all(ends[-1] == len(states) - 1 for states, ends in plans.values())


def test_joints_move_smoothly_within_their_limits(plans):
    for states, _ in plans.values():
        assert kinematics.within_limits(states[:, :7]).all()
        assert tracking.largest_step(states[:, :7]) < 0.3


def test_blocks_move_only_while_held_and_rigidly(plans):
    for states, _ in plans.values():
        q, blocks = layouts.split(states)
        assert blocks.held.sum(-1).max() == 1
        moved = abs(np.diff(blocks.position, axis=0)).max(-1) > 1e-12
        assert not moved[blocks.held[1:] < 0.5].any()
        tip, turned = kinematics.forward(q)
        for k in range(4):
            held = blocks.held[:, k] > 0.5
            seen = np.einsum("tji,tj->ti", turned[held], blocks.position[held, k] - tip[held])
            if len(seen):
                assert np.ptp(seen, axis=0).max() < 1e-9
                assert np.allclose(seen.mean(0), (0, 0, 0.04))  # 1 cm gap, half a block


def test_without_diversity_the_plan_follows_the_blocks_not_their_numbers():
    scene = scenes.scenes("test", 1)[0]
    order = [2, 0, 3, 1]
    q, blocks = layouts.split(scene)
    other = layouts.join(q, layouts.Blocks(*(x[order] for x in blocks)))
    a, _ = demonstrate(scene, np.random.default_rng(0), 0)
    b, _ = demonstrate(other, np.random.default_rng(1), 0)
    assert np.allclose(a[:, :7], b[:, :7])


def test_diversity_gives_other_orders_and_motions():
    scene = scenes.scenes("test", 1)[0]
    made = [demonstrate(scene, np.random.default_rng(k), 1)[0] for k in range(8)]
    assert len({len(states) for states in made}) > 4
    assert len({tuple(rewards.towers(states[-1])[0]) for states in made}) > 3
    assert len({rewards.towers(states[-1])[0][0] for states in made}) > 1
    yaw = [layouts.to_geometric(states[len(states) // 2])[3:5] for states in made]
    assert np.ptp(yaw, axis=0).max() > 0.5


@pytest.mark.parametrize(
    "setting", [Setting(start="upright"), Setting(random_yaw=True), Setting(turned=True)]
)
def test_all_kinds_of_scenes_are_solved(setting):
    for k in range(3):
        made = demonstration(Recipe(diversity=0.5, setting=setting), k)
        assert rewards.strict(made.states[-1].astype(float)) == 100


def test_the_expert_goes_on_from_anywhere(plans):
    """Three phases of 127 frames from the middle of things, as an evaluation asks for them."""
    states, _ = plans[1, 3]
    for start in (30, 60, 110):
        done = demonstrate(states[start], np.random.default_rng(0), 0)[0]
        assert rewards.strict(done[-1]) == 100
        assert (done[0] == states[start]).all()


def test_plans_of_the_oracle_are_windows(plans):
    begin, end = (plans[0, 0][0][k] for k in (0, -1))
    made = stream.oracle(np.stack([begin, end]))
    assert made.shape == (2, HORIZON, 39)
    assert (made[:, 0] == np.stack([begin, end])).all()
    assert (made[1] == end).all()  # all is done: it stays


@pytest.mark.slow
def test_two_thousand_demonstrations_have_a_plan():
    """At the diversity that is used; every stack fits into a window."""
    made = kuka_expert.planned(Recipe(), 2000)
    assert None not in made
    assert max(kuka_expert.stack_lengths(made)) < HORIZON
    assert all(rewards.strict(d.states[-1].astype(float)) == 100 for d in made)


@pytest.mark.slow
@pytest.mark.parametrize("engine", physics.ENGINES)
def test_nearly_all_replays_end_with_a_tower(engine):
    if not physics.installed(engine):
        pytest.skip(f"{engine} is missing")
    made = list(stream.stream(Recipe(), 300, workers=1))
    assert len(stream.failures(made, engine)) <= 3


def test_collisions_are_seen():
    flat = np.eye(3)[None]
    others = np.array([[0.5, 0, 0.03]]), flat
    tool = np.array([[0.5, 0.3, 0.3]]), np.diag([-1.0, 1, -1])[None]

    def block(x, z):
        return np.array([[x, 0, z]]), flat

    assert clearance.clear(tool, None, others)
    low = np.array([[0.5, 0, 0.07]]), tool[1]  # a centimetre above the block
    assert clearance.clear(low, None, others)
    assert not clearance.clear(low, None, others, margin=0.03)
    assert not clearance.clear((low[0] - 0.02, low[1]), None, others)
    assert clearance.clear(tool, block(0.5, 0.09), others)  # on top of it
    assert clearance.clear(tool, block(0.7, 0.03), others)  # beside it
    assert not clearance.clear(tool, block(0.72, 0.03), others, margin=0.03)
    assert clearance.clear(tool, block(0.74, 0.03), others, margin=0.03)
    assert not clearance.clear(tool, block(0.55, 0.05), others)
    assert not clearance.clear(tool, block(0.69, 0.03), others)
    assert not clearance.clear(tool, block(0.8, -0.01), others)  # in the table


def test_a_motion_through_a_block_is_not_added_to_a_plan():
    scene = scenes.scenes("test", 1)[0]
    q, blocks = layouts.split(scene)
    plan = expert._Plan(q, blocks.position, rotations.from_quaternion(blocks.quaternion), None)
    through = np.repeat(_posture_over(blocks.position[0] - [0, 0, 0.02])[None], 3, 0)
    assert not plan.go(through, None)
    assert (plan.length, plan.held) == (0, None)
    assert plan.q is q
    above = np.repeat(_posture_over(blocks.position[0] + [0, 0, 0.3])[None], 3, 0)
    assert plan.go(above, None)
    assert plan.length == 3
    assert (plan.q == above[-1]).all()


def _posture_over(place):
    found = motion.posture(
        kinematics.HOME, place, place[2], 0.0, 0.0, 0.0, np.random.default_rng(0)
    )
    return found.above


def test_the_arm_makes_a_detour_of_at_most_a_quarter_of_a_radian(monkeypatch):
    asked = []

    def travel(start, end, pace, detour):
        asked.append(detour)
        return real(start, end, pace, detour)

    real = motion.travel
    monkeypatch.setattr(motion, "travel", travel)
    for number in range(6):
        demonstration(Recipe(diversity=1.0), number)
    largest = abs(np.array(asked)).max(axis=0)
    bounds = np.array([0.25, 0.2, 0.25, 0.2, 0.25, 0.2, 0.25])
    assert (largest <= bounds).all()
    assert (largest > 0.75 * bounds).all()


def test_arm_angles_are_tried_on_both_sides():
    assert (np.sort(-motion.ARM_ANGLES) == np.sort(motion.ARM_ANGLES)).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({7: 1.5, 8: 0}, r"^block 0 at \(1.5, 0, 0.03\) is out of the arm's reach$"),
        ({14: 1, 22: 1}, "^blocks 0 and 1 are held; the expert carries one at a time$"),
        ({10: 0.5, 11: 0, 12: 0, 13: 0.75**0.5}, "^block 0 is tilted by 60 degrees; the expert"),
        ({7: 0, 8: 0}, r"in 20 attempts; in the last one, there is no way to stack block \d at"),
    ],
    ids=str,
)
def test_a_state_without_a_plan_is_answered_by_what_is_in_the_way(change, text):
    scene = scenes.scenes("test", 1)[0]
    scene[list(change)] = list(change.values())
    with pytest.raises(PlanError, match=text):
        demonstrate(scene, np.random.default_rng(0))
    assert (stream.oracle(scene[None])[0] == scene).all()  # the arm stays


def test_a_block_just_out_of_reach_can_be_the_lowest_one():
    """The arm cannot lift it, but it can put others on it."""
    scene = scenes.scenes("test", 1)[0]
    place = scene[7:9]
    scene[7:9] = 0.809 * place / np.linalg.norm(place)
    found, _ = demonstrate(scene, np.random.default_rng(0))
    assert rewards.strict(found[-1]) == 100
    assert (found[:, 7:10] == scene[7:10]).all()


def test_lists_are_states():
    scene = scenes.scenes("test", 1)[0]
    found, _ = demonstrate(scene.tolist(), np.random.default_rng(0), 0)
    assert (found == demonstrate(scene, np.random.default_rng(0), 0)[0]).all()


def test_wrong_requests_are_refused():
    scene = scenes.scenes("test", 1)[0]
    with pytest.raises(ValueError, match="diversity must be from 0 to 1, got 2"):
        demonstrate(scene, np.random.default_rng(0), 2)
    for wrong, text in (
        (scene * np.nan, "the state has entries that are not finite"),
        (["above"], "a state is an array of numbers"),
        (scene[:38], r"got a state of shape \(38,\), expected \(39,\)"),
        (np.where(np.isin(np.arange(39), range(10, 14)), 0, scene), "quaternion is zero"),
    ):
        with pytest.raises(ValueError, match=text):
            demonstrate(wrong, np.random.default_rng(0))
    with pytest.raises(ValueError, match="seed must be an integer from 0 to 4,294,967,295, got -1"):
        Recipe(seed=-1)
    with pytest.raises(ValueError, match="diversity must be a number from 0 to 1, got 'high'"):
        Recipe(diversity="high")
