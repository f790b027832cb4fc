"""The n-body experiment as the engine sees it."""

import numpy as np
import pytest
import torch

from flashgatr.experiments.config import ConfigError, RunConfig, override
from flashgatr.experiments.nbody.data import generate
from flashgatr.experiments.nbody.simulate import INTEGRATORS, Gravity, State, evolve, simulate
from flashgatr.experiments.nbody.task import NBodyTask, rescaled

SMALL = ["model.options.num_blocks=1", "model.options.hidden_s_channels=8"]


def _config(folder, *changes):
    return override(RunConfig(), [f"data.folder='{folder}'", *SMALL, *changes])


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("bodies=5", "scaling, got bodies"),
        ("scaling=-0.1", "from 0"),
        ("scaling=true", "from 0"),
        ("scaling=nan", "finite number"),
        ("scaling=some", "from 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, option, complaint):
    with pytest.raises(ConfigError, match=complaint):
        NBodyTask(_config(tmp_path, f"data.options.{option}"), torch.device("cpu"))


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_larger_systems_move_alike(integrator):
    """The law behind `scaling`: exact for the integrators, near-collisions included."""
    settings = Gravity(integrator=integrator)
    systems = simulate(settings, 200, np.random.default_rng(0))
    factor = torch.linspace(0.5, 2, 200, dtype=torch.float64)
    batch = tuple(torch.from_numpy(np.array(x)) for x in systems)
    mass, position, velocity, target = (x.numpy() for x in rescaled(batch, factor))
    found = evolve(State(mass, position, velocity), settings)
    moved = np.abs(target - position).max((1, 2))
    assert (np.abs(found - target).max((1, 2)) < 1e-6 * moved).mean() > 0.98
    assert np.median(np.abs(found - target).max((1, 2)) / moved) < 1e-11


def test_scaled_batches_are_other_systems_every_time(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    task = NBodyTask(_config(tmp_path, "data.options.scaling=0.2"), torch.device("cpu"))
    plain = NBodyTask(_config(tmp_path), torch.device("cpu")).batch(torch.arange(8))
    factors = []
    for _ in range(20):
        mass, position, velocity, target = task.batch(torch.arange(8))
        factor = (mass / plain[0]).mean(1) ** (1 / 3)
        torch.testing.assert_close(velocity, plain[2] * factor[:, None, None], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(position.mean(1), plain[1].mean(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            target - position, (plain[3] - plain[1]) * factor[:, None, None], rtol=1e-2, atol=1e-4
        )
        factors.append(factor)
    factors = torch.cat(factors)
    assert 1 / 1.201 < factors.min() < 0.9
    assert 1.1 < factors.max() < 1.201


def test_the_errors_of_an_equivariant_model_do_not_depend_on_where_the_systems_are(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    task = NBodyTask(_config(tmp_path), torch.device("cpu"))
    found = task.evaluate(task.model)
    assert set(found) == {"eval", "more_bodies", "translated", "eval_moved"}
    assert found["eval_moved"]["mse"] == pytest.approx(found["eval"]["mse"], rel=1e-2)


def test_a_model_for_four_bodies_is_not_evaluated_on_six(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    config = override(RunConfig(), [f"data.folder='{tmp_path}'", "model.name=mlp"])
    task = NBodyTask(config, torch.device("cpu"))
    assert "more_bodies" not in task.evaluate(task.model)
