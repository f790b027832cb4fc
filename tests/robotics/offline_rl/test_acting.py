"""A policy in closed loop: it sees every frame, and the expert's actions build the tower."""

import numpy as np
import pytest
import torch

from flashgatr.experiments.robotics import planning
from flashgatr.experiments.robotics.demonstrations.stream import Recipe, demonstration
from flashgatr.experiments.robotics.offline_rl import acting
from flashgatr.experiments.robotics.offline_rl.acting import LearnedPolicy, run
from flashgatr.experiments.robotics.offline_rl.learners import LEARNERS
from flashgatr.experiments.robotics.offline_rl.transitions import Transitions
from flashgatr.experiments.robotics.world import physics, scenes

from ..conftest import needs_physics

ENGINES = [
    pytest.param(
        name, marks=pytest.mark.skipif(not physics.installed(name), reason=f"{name} is missing")
    )
    for name in physics.ENGINES
]
SCENES = scenes.scenes("test", 2)


class StillWorlds:
    """Worlds without physics: arms are where they are told to be, and nothing else moves."""

    def __init__(self, engine, start, workers):
        self.states = start.copy()

    def close(self):
        pass

    def place(self, q, attach):
        self.states = self.states.copy()
        self.states[:, :7], self.states[:, 14::8] = q, attach > 0.5
        return self.states

    def settle(self, frames):
        return self.states


@pytest.mark.parametrize("engine", ENGINES)
def test_the_actions_of_demonstrations_build_their_tower(engine):
    made = [demonstration(Recipe(diversity=d), k) for k, d in enumerate((0.0, 1.0))]
    found = [Transitions.of([d]) for d in made]
    paths = [x.batch(torch.arange(len(x))).action.double().numpy() for x in found]
    actions = [np.pad(path, ((0, 384 - len(path)), (0, 0))) for path in paths]
    frames = iter(np.stack(actions, axis=1))
    start = np.stack([d.states[0] for d in made]).astype(float)
    episodes = run(lambda seen: next(frames), start, engine=engine)
    assert episodes.reward[:, -1].tolist() == episodes.strict.tolist() == [100, 100]
    assert (episodes.reached == 1).all()


def test_a_policy_sees_what_it_did_and_flags_add_up(monkeypatch):
    monkeypatch.setattr(acting, "Lockstep", StillWorlds)
    seen = []

    def policy(observations):
        seen.append(observations.copy())
        action = np.zeros((2, 11))
        action[0, 2], action[1, 8] = 0.5, 0.2  # the third joint; the flag of block 1
        return action

    episodes = run(policy, SCENES)
    moved = np.array(seen)[:, 0, 2] - SCENES[0, 2]
    np.testing.assert_allclose(moved[:10], 0.15 * np.arange(10), atol=1e-9)
    assert np.array(seen)[:5, 1, 22].tolist() == [0, 0, 0, 1, 1]  # held from 0.6 on
    assert episodes.states.shape == (2, 385, 39)
    assert episodes.plans.shape == (2, 3, 128, 11)
    assert (episodes.states[:, 0] == SCENES).all()
    assert episodes.reached[1].tolist() == [1, 1, 1]
    assert episodes.reached[0, 0] < 1  # the joint cannot turn on and on
    summary = planning.summarise(episodes)
    assert {"reward", "reward_error", "strict", "success", "reached", "scenes"} <= summary.keys()


@pytest.mark.parametrize("name", LEARNERS)
def test_an_episode_depends_on_its_scene_and_number_only(monkeypatch, name):
    monkeypatch.setattr(acting, "Lockstep", StillWorlds)
    torch.manual_seed(0)
    learner = LEARNERS[name](hidden=8)
    one, both, other = (
        run(LearnedPolicy(learner, n, seed), SCENES[:n]).plans
        for n, seed in ((1, 0), (2, 0), (2, 1))
    )
    np.testing.assert_allclose(both[:1], one, atol=1e-5)
    assert np.array_equal(both, other) == (name == "cql")  # CQL takes the mean action


def test_actions_that_are_no_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(acting, "Lockstep", StillWorlds)
    with pytest.raises(ValueError, match="the action of episode 0 has entries that are not fin"):
        run(lambda seen: np.full((2, 11), np.nan), SCENES)
    with pytest.raises(ValueError, match=r"got actions of shape \(2, 7\), expected \(2, 11\)"):
        run(lambda seen: np.zeros((2, 7)), SCENES)


@needs_physics
def test_doing_nothing_earns_nothing():
    episodes = run(lambda seen: np.zeros((1, 11)), SCENES[:1])
    assert not episodes.reward.any()
    assert not episodes.strict.any()
    assert np.abs(episodes.states - SCENES[0]).max() < 0.01
