"""Episodes: the expert gets the full score, an idle planner none, wrong plans a sentence."""

import numpy as np
import pytest

from flashgatr.experiments.robotics import layouts
from flashgatr.experiments.robotics.demonstrations import stream
from flashgatr.experiments.robotics.world import episodes, physics, scenes

pytestmark = pytest.mark.skipif(not physics.installed("mujoco"), reason="mujoco is missing")
SCENES = scenes.scenes("test", 2)


def expert(states, phase):
    return layouts.to_geometric(stream.oracle(states, seed=phase))


def idle(states, phase):
    return np.repeat(states[:, None], layouts.HORIZON, 1)


def test_the_expert_stacks_everything_through_the_geometric_layout():
    found = episodes.evaluate(expert, SCENES)
    assert found.original.tolist() == found.strict.tolist() == [100, 100]
    assert (np.diff(found.phases, axis=1) >= 0).all()
    assert found.states.shape == (2, 1 + 3 * 127, 39)
    assert (found.states[:, 0] == SCENES).all()
    assert found.reached.min() > 0.9


def test_an_idle_planner_scores_nothing():
    found = episodes.evaluate(idle, SCENES)
    assert not found.original.any()
    assert not found.strict.any()
    assert found.reached.tolist() == [1, 1]


def test_planners_see_flags_as_they_are_or_cleared():
    def hold(states, phase):
        seen.append(states[0, 14])
        plans = idle(states, phase)
        plans[:, 1:, 14] = 1
        return plans

    for clear, expected in ((False, [0, 1, 1]), (True, [0, 0, 0])):
        seen = []
        episodes.evaluate(hold, SCENES[:1], clear_flags=clear)
        assert seen == expected


def test_wrong_plans_are_refused():
    with pytest.raises(ValueError, match=r"got plans of shape \(2, 39\), expected \(2, 128, 49\)"):
        episodes.evaluate(lambda states, phase: states, SCENES)
    with pytest.raises(ValueError, match="the plan of episode 0 has entries that are not finite"):
        episodes.evaluate(lambda *a: idle(*a) * np.nan, SCENES)
