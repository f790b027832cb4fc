"""The planning loop: with the expert it stacks blocks, at rest it does not; plans by diffusion."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from flashgatr.experiments.bench import find
from flashgatr.experiments.bench.data import kuka_harness
from flashgatr.experiments.robotics import layouts, planning
from flashgatr.experiments.robotics.diffusion import Schedule
from flashgatr.experiments.robotics.layouts import GEOMETRIC, HORIZON
from flashgatr.experiments.robotics.normalised import Scale
from flashgatr.experiments.robotics.planning import DiffusionPlanner, Episodes, expert, rest, run
from flashgatr.experiments.robotics.sampling import ddim
from flashgatr.experiments.robotics.world import physics
from flashgatr.experiments.robotics.world.scenes import scenes

SCHEDULE = Schedule.cosine()
SCENES = scenes("test", 3)
needs_physics = pytest.mark.skipif(
    not physics.installed("mujoco"), reason="the engine mujoco is not installed"
)


class Memory(nn.Module):
    """The perfect denoiser of one trajectory per batch entry."""

    def __init__(self, target):
        super().__init__()
        self.target = nn.Parameter(target)

    def forward(self, x, t, clamp):
        signal, sigma = (y[t][:, None, None].to(x) for y in (SCHEDULE.signal, SCHEDULE.noise))
        return (x - signal * self.target) / sigma


def idle(states, seeds):
    """Rest, as a plan in the joint layout."""
    return np.repeat(states[:, None], HORIZON, 1)


@needs_physics
def test_the_expert_stacks_everything_through_the_geometric_layout():
    found = run(expert, SCENES[:2])
    assert found.reward[:, -1].tolist() == found.strict.tolist() == [100, 100]
    assert (np.diff(found.reward, axis=1) >= 0).all()
    assert found.states.shape == (2, 1 + 3 * 127, 39)
    assert (found.states[:, 0] == SCENES[:2]).all()
    assert found.plans.shape == (2, 3, 128, 49)
    assert found.reached.min() > 0.9


@needs_physics
@pytest.mark.parametrize("planner", [rest, idle])
def test_rest_scores_nothing_in_either_layout(planner):
    found = run(planner, SCENES[:1], phases=1)
    assert not found.reward.any()
    assert not found.strict.any()
    assert found.reached.tolist() == [[1]]


@needs_physics
def test_an_episode_depends_on_its_scene_and_number_only():
    together, alone = run(expert, SCENES, phases=1), run(expert, SCENES[:1], phases=1)
    assert np.array_equal(together.states[:1], alone.states)
    assert np.array_equal(together.reward[:1], alone.reward)


@needs_physics
def test_planners_see_flags_as_they_are_or_cleared():
    def hold(states, seeds):
        seen.append(states[0, 14])
        plans = idle(states, seeds)
        plans[:, 1:, 14] = 1
        return plans

    for clear, expected in ((False, [0, 1, 1]), (True, [0, 0, 0])):
        seen = []
        run(hold, SCENES[:1], clear_flags=clear)
        assert seen == expected


@needs_physics
def test_wrong_plans_are_refused():
    with pytest.raises(ValueError, match=r"got plans of shape \(3, 39\), expected \(3, 128, 49\)"):
        run(lambda states, seeds: states, SCENES)
    with pytest.raises(ValueError, match="the plan of episode 0 has entries that are not finite"):
        run(lambda *a: idle(*a) * np.nan, SCENES)


def test_plans_of_a_denoiser_are_its_trajectories_in_metres():
    wanted = torch.from_numpy(expert(SCENES, [0, 1, 2]))
    planner = DiffusionPlanner(Memory(Scale().normalize(wanted)), ddim(SCHEDULE, 5))
    found = planner(SCENES, [5, 6, 7])
    assert found.shape == (3, HORIZON, GEOMETRIC)
    np.testing.assert_allclose(found[:, 1:], wanted[:, 1:], atol=1e-6)
    np.testing.assert_allclose(found[:, 0], layouts.to_geometric(SCENES), atol=1e-6)


def test_batches_do_not_change_plans():
    """Noise has a seed per plan; with eta = 1 it matters in every step."""
    plan = ddim(SCHEDULE, 3, eta=1.0)
    denoiser = Memory(torch.zeros(1, HORIZON, GEOMETRIC))
    denoiser.forward = lambda x, t, clamp: 0.9 * x
    whole = DiffusionPlanner(denoiser, plan)(SCENES, [1, 2, 3])
    parts = DiffusionPlanner(denoiser, plan, batch=2)(SCENES, [1, 2, 3])
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("steps", [planning.WORTH_COMPILING - 1, planning.WORTH_COMPILING])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("compiled", [False, True])
def test_plans_of_many_steps_compile_on_a_gpu_if_training_did(steps, device, compiled):
    planner = DiffusionPlanner(None, ddim(SCHEDULE, steps), compiled=compiled)
    expected = compiled and device == "cuda" and steps == planning.WORTH_COMPILING
    assert planner.compiles_on(torch.device(device)) == expected


class Halved(nn.Module):
    def forward(self, x):
        return x / 2


class OneBlock(nn.Module):
    """A denoiser with something to compile."""

    def __init__(self):
        super().__init__()
        self.weight, self.blocks = nn.Parameter(torch.ones(1)), nn.ModuleList([Halved()])

    def forward(self, x, t, clamp):
        return self.blocks[0](x)


@pytest.mark.parametrize("wanted", [False, True])
def test_all_plans_are_sampled_with_one_compiled_copy_or_with_none(wanted, monkeypatch):
    """Its blocks run compiled even where a trainer lets compiled blocks run eagerly."""
    denoiser, copied, graphs = OneBlock(), [], []

    def recorder(model):
        copied.append(model)
        found = copy.deepcopy(model)
        found.blocks[0].compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
        return found

    monkeypatch.setattr(planning, "compiled_copy", recorder)
    monkeypatch.setattr(DiffusionPlanner, "compiles_on", lambda planner, device: wanted)
    planner = DiffusionPlanner(denoiser, ddim(SCHEDULE, 2), batch=2)
    torch._dynamo.reset()
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):  # phases
            planner(SCENES, [1, 2, 3])
    assert copied == [denoiser] * wanted
    assert bool(graphs) == wanted


def test_a_summary_has_means_and_errors():
    reward = np.array([[0, 100.0], [0, 50]])
    strict, reached = np.array([100.0, 0]), np.ones((2, 2))
    found = planning.summarise(Episodes(reward, strict, reached, None, None, None))
    assert found["reward"] == 75
    assert found["reward_error"] == pytest.approx(25)
    assert (found["success"], found["reward_phase_1"], found["scenes"]) == (50, 0, 2)


def test_random_plans_are_those_of_their_seeds_and_within_reach():
    one, other = planning.noise(SCENES[:2], [1, 2]), planning.noise(SCENES[:1], [2])
    assert one.shape == (2, HORIZON, GEOMETRIC)
    np.testing.assert_array_equal(one[1], other[0])
    assert np.linalg.norm(layouts.objects(one).position, axis=-1).max() <= 1.6 + 1e-9


@needs_physics
def test_the_harness_has_a_row_for_the_expert_and_for_doing_nothing(monkeypatch, capsys):
    monkeypatch.setattr(physics, "installed", lambda engine: engine == "mujoco")
    kuka_harness.run(1, keep=False)
    rows = [
        line.split("│")[1:] for line in capsys.readouterr().out.splitlines() if "mujoco" in line
    ]
    found = {(row[0].strip(), row[2].strip()): row[3].strip() for row in rows}
    for turned in ("yes", "no"):
        assert found["expert", turned] == "100.0 ± 0.0"
        assert found["do nothing", turned] == "0.0 ± 0.0"
        assert ("noise", turned) in found


def test_the_harness_without_an_engine_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    find("kuka-harness")()
    assert "flashgatr[robotics]" in capsys.readouterr().out
