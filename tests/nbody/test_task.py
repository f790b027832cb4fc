"""The n-body experiment as the trainer sees it."""

import numpy as np
import pytest
import torch

from flashgatr.experiments.bench.data.nbody_labels import softened
from flashgatr.experiments.config import ConfigError, RunConfig, override
from flashgatr.experiments.nbody import EXPERIMENT
from flashgatr.experiments.nbody.data import DataError, generate
from flashgatr.experiments.nbody.simulate import INTEGRATORS, Gravity, State, evolve, simulate
from flashgatr.experiments.nbody.task import REGULARISER, NBodyTask, pseudo_huber, rescaled

SMALL = ["model.options.num_blocks=1", "model.options.hidden_s_channels=8"]


def _config(folder, *changes):
    return override(RunConfig(), [f"data.folder='{folder}'", *SMALL, *changes])


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("bodies=5", "scaling, huber, val and test, got bodies"),
        ("test=1", "data.options.test must be true or false, got 1"),
        ("val=no", "data.options.val must be true or false, got 'no'"),
        ("scaling=-0.1", "from 0"),
        ("scaling=true", "from 0"),
        ("scaling=nan", "finite number"),
        ("scaling=some", "from 0"),
        ("huber=-1", r"data.options.huber must be a number from 0 \(squared error\) up, got -1"),
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


def test_settings_are_compared_without_reading_the_evaluation_sets(tmp_path):
    """With data.options.test = false, the end of a run evaluates `val`, as validation does."""
    generate(tmp_path, train=8, others=16, sets=["train", "val"], workers=1)
    task = NBodyTask(_config(tmp_path, "data.options.test=false"), torch.device("cpu"))
    found = task.evaluate(task.model)
    assert set(found) == {"val"}
    assert found["val"]["mse"] == task.validate(task.model)["score"]
    with pytest.raises(DataError, match="eval"):
        NBodyTask(_config(tmp_path), torch.device("cpu"))


def test_val_is_evaluated_beside_the_evaluation_sets_if_it_chooses_among_runs(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    plain, both = (
        NBodyTask(_config(tmp_path, *changes), torch.device("cpu"))
        for changes in ([], ["data.options.val=true"])
    )
    both.model.load_state_dict(plain.model.state_dict())
    found = both.evaluate(both.model)
    assert found["val"]["mse"] == plain.validate(plain.model)["score"]
    assert {name: x for name, x in found.items() if name != "val"} == plain.evaluate(plain.model)


def test_a_model_for_four_bodies_is_not_evaluated_on_six(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    config = override(RunConfig(), [f"data.folder='{tmp_path}'", "model.name=mlp"])
    task = NBodyTask(config, torch.device("cpu"))
    assert "more_bodies" not in task.evaluate(task.model)


def test_segnn_is_evaluated_with_every_number_of_neighbours_from_three_up(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    config = override(RunConfig(), [f"data.folder='{tmp_path}'", "model.name=segnn"])
    task = NBodyTask(config, torch.device("cpu"))
    found = task.evaluate(task.model)
    assert set(found) == {"eval", "translated", "eval_moved"} | {
        "more_bodies", "more_bodies_k3", "more_bodies_k4"
    }  # fmt: skip
    assert len({found[name]["mse"] for name in found if name.startswith("more")}) == 3
    config = override(config, ["model.options.k=4"])
    few = NBodyTask(config, torch.device("cpu"))
    few.model.load_state_dict(task.model.state_dict())
    assert few.evaluate(few.model)["more_bodies"] == found["more_bodies_k4"]
    assert task.model.net.k is None


def test_huber_counts_large_errors_less(tmp_path):
    """Near zero it is the squared error; far above the knee it grows linearly.

    An error of a hundred knees counts two hundred squared knees, not ten thousand.
    """
    knee = 0.01
    found = pseudo_huber(torch.tensor([1e-8, 1.0], dtype=torch.float64), knee)
    assert abs(found[0] / 1e-8 - 1) < 1e-4
    assert abs(found[1] / (2 * knee) - 1) < 0.02
    tiny = torch.tensor([1e-9, 1e-12])  # of float32, too
    torch.testing.assert_close(pseudo_huber(tiny, 1.0), tiny)
    generate(tmp_path, train=8, others=16, workers=1)
    plain, robust = (
        NBodyTask(_config(tmp_path, *changes), torch.device("cpu"))
        for changes in ([], [f"data.options.huber={knee}"])
    )
    batch = plain.batch(torch.arange(8))
    (loss, told), (less, same) = (task.loss(task.model, batch) for task in (plain, robust))
    assert told["mse"] == same["mse"]
    assert less < loss
    prediction, regulariser = robust.model(*batch[:3])
    errors = (prediction - batch[3]).square().mean((1, 2))
    expected = pseudo_huber(errors, knee).mean() + REGULARISER * regulariser
    torch.testing.assert_close(less, expected)


def test_softened_gravity_without_softening_is_the_released_integrator():
    settings = Gravity(bodies=3)
    systems = simulate(settings, 20, np.random.default_rng(1))
    state = State(systems.mass, systems.position, systems.velocity)
    assert np.abs(softened(state, settings, 0.0) - systems.target).max() < 1e-9
    assert np.abs(softened(state, settings, 0.1) - systems.target).max() > 1e-6


def test_options_that_a_model_lacks_are_named():
    with pytest.raises(TypeError, match="the model 'transformer' has no option 'both_signs'"):
        EXPERIMENT.build("transformer", {"both_signs": True})
