"""The planning loop: with the expert it stacks blocks, at rest it does not; plans by diffusion."""

import numpy as np
import pytest
import torch
from torch import nn

from flashgatr.experiments.robotics import layouts, planning
from flashgatr.experiments.robotics.diffusion import Schedule
from flashgatr.experiments.robotics.layouts import GEOMETRIC, HORIZON, Scale
from flashgatr.experiments.robotics.planning import DiffusionPlanner, Episodes, expert, rest, run
from flashgatr.experiments.robotics.sampling import ddim
from flashgatr.experiments.robotics.state import split
from flashgatr.experiments.robotics.world import physics
from flashgatr.experiments.robotics.world.scenes import scenes

SCHEDULE = Schedule.cosine()
needs_physics = pytest.mark.skipif(
    not physics.installed("mujoco"), reason="the engine mujoco is not installed"
)


class Memory(nn.Module):
    """The perfect denoiser of one trajectory per batch entry."""

    def __init__(self, target):
        super().__init__()
        self.target = nn.Parameter(target)
        self.seen = []

    def forward(self, x, t, clamp):
        self.seen.append(x[:, 0].clone())
        signal, sigma = (y[t][:, None, None].to(x) for y in (SCHEDULE.signal, SCHEDULE.noise))
        return (x - signal * self.target) / sigma


@needs_physics
def test_the_expert_stacks_blocks_and_rest_does_not():
    start = scenes("test", 2)
    done = planning.summarise(run(expert, start))
    assert done["reward"] == 100
    assert done["reached"] > 0.99
    assert planning.summarise(run(rest, start, phases=1))["reward"] == 0


@needs_physics
def test_an_episode_depends_on_its_scene_and_number_only():
    start = scenes("test", 3)
    together, alone = run(expert, start, phases=1), run(expert, start[:1], phases=1)
    assert np.array_equal(together.states[:1], alone.states)
    assert np.array_equal(together.reward[:1], alone.reward)


def test_plans_of_a_denoiser_are_its_trajectories_in_metres():
    start = np.asarray(scenes("test", 3))
    wanted = torch.from_numpy(expert(start, [0, 1, 2]))
    target = Scale().normalize(wanted)
    planner = DiffusionPlanner(Memory(target), ddim(SCHEDULE, 5))
    found = planner(start, [5, 6, 7])
    assert found.shape == (3, HORIZON, GEOMETRIC)
    np.testing.assert_allclose(found[:, 1:], wanted[:, 1:], atol=1e-6)
    np.testing.assert_allclose(found[:, 0], layouts.to_geometric(start), atol=1e-6)


def test_the_denoiser_is_not_told_what_is_held():
    plan = expert(np.asarray(scenes("test", 1)), [0])
    path = layouts.to_joint(plan, np.asarray(scenes("test", 1))[:, :7]).state
    now = path[:, path[0, :, 14::8].max(-1).argmax()]  # the first frame with a block in hand
    assert now[0, 14::8].max() == 1
    for release in (True, False):
        memory = Memory(Scale().normalize(torch.from_numpy(plan)))
        DiffusionPlanner(memory, ddim(SCHEDULE, 2), release=release)(now, [0])
        assert split(memory.seen[0]).flags.max().item() == (-1 if release else 1)


def test_batches_do_not_change_plans():
    """Noise has a seed per plan; with eta = 1 it matters in every step."""
    start, plan = np.asarray(scenes("test", 3)), ddim(SCHEDULE, 3, eta=1.0)
    denoiser = Memory(torch.zeros(1, HORIZON, GEOMETRIC))
    denoiser.forward = lambda x, t, clamp: 0.9 * x
    whole = DiffusionPlanner(denoiser, plan)(start, [1, 2, 3])
    parts = DiffusionPlanner(denoiser, plan, batch=2)(start, [1, 2, 3])
    np.testing.assert_array_equal(whole, parts)


def test_a_summary_has_means_and_errors():
    reward = np.array([[0, 100.0], [0, 50]])
    found = planning.summarise(
        Episodes(reward, np.array([100.0, 0]), np.ones((2, 2)), np.zeros((2, 4, 39)))
    )
    assert found["reward"] == 75
    assert found["reward_error"] == pytest.approx(25)
    assert (found["success"], found["reward_phase_1"], found["episodes"]) == (0.5, 0, 2)


@needs_physics
def test_plans_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"must return plans of shape \(1, 128, 49\)"):
        run(lambda states, seeds: np.zeros((1, 5, 49)), np.asarray(scenes("test", 1)))
