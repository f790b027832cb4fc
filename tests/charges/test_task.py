"""The benchmark as the trainer sees it: options, augmentation, symmetries of the models."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr.experiments import runs
from flashgatr.experiments.charges import EXPERIMENT
from flashgatr.experiments.charges.data import DataError, describe, generate, simulate
from flashgatr.experiments.charges.options import Options
from flashgatr.experiments.charges.simulate import STANDARD, State, draw, evolve
from flashgatr.experiments.charges.task import ChargesTask, rotated, with_reversed
from flashgatr.experiments.cli import application
from flashgatr.train.settings import ConfigError, override
from flashgatr.versors import sample, to_matrix

CPU = torch.device("cpu")
SMALL = {
    "gatr": dict(num_blocks=1, hidden_s_channels=8, hidden_mv_channels=4, num_heads=2),
    "segnn": dict(hidden_channels=8, num_layers=1),
    "se3_transformer": dict(hidden_channels=4, num_layers=1, max_degree=1),
    "transformer": dict(hidden_channels=16, num_blocks=1, num_heads=2),
    "gca_gnn": dict(hidden_channels=4, message_channels=4, mlp_channels=4),
    "gca_mlp": dict(hidden=8),
    "mlp": dict(hidden=16),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("charges")
    for name in ("charges", "gravity"):
        settings = replace(STANDARD[name], input_step=50, horizons=(10, 1000))
        generate(made, settings, train=16, others=8)
    return made


def _config(folder, *changes, model="segnn"):
    options = [f"model.options.{key}={value}" for key, value in SMALL[model].items()]
    given = [f"data.folder='{folder}'", "data.train_samples=16", f"model.name={model}", *options]
    return override(runs.defaults("charges"), [*given, *changes])


def _batch(*shape, dtype=torch.float64):
    charge = (torch.rand(*shape, dtype=dtype) - 0.5).sign()
    return charge, *torch.randn(2, *shape, 3, dtype=dtype)


@pytest.mark.parametrize("model", SMALL)
def test_models_predict_positions_and_learn_them(folder, model):
    task = ChargesTask(_config(folder, model=model), CPU)
    batch = task.batch(torch.arange(task.samples))
    assert task.model(*batch[:3]).shape == batch.target.shape
    optimizer = torch.optim.Adam(task.model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss, told = task.loss(task.model, batch)
        assert torch.equal(loss, told["mse"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gatr", {}),
        ("gatr", dict(velocity="direction", canonical_charges=True)),
        ("segnn", dict(charge_as_node_scalar=True)),
        ("se3_transformer", {}),
    ],
    ids=str,
)
def test_equivariant_models_move_with_the_system(model, options):
    net = EXPERIMENT.build(model, {**SMALL[model], **options}).double()
    charge, position, velocity = _batch(3, 5)
    motion = to_matrix(sample(kind="SE(3)"))
    turn, shift = motion[:3, :3], motion[:3, 3]
    out = net(charge, position, velocity)
    moved = net(charge, position @ turn.T + shift, velocity @ turn.T)
    torch.testing.assert_close(moved, out @ turn.T + shift, rtol=0, atol=1e-10)
    assert (out - position).abs().max() > 1e-3


def test_the_se3_transformer_cannot_tell_reversed_charges():
    charge, position, velocity = _batch(4, 5, dtype=torch.float32)
    net = EXPERIMENT.build("se3_transformer", SMALL["se3_transformer"])
    charges = (charge, -charge, torch.ones_like(charge))
    same, reversed_, other = (net(x, position, velocity) for x in charges)
    assert torch.equal(same, reversed_)
    assert not torch.equal(same, other)


@pytest.mark.parametrize("model", [name for name in SMALL if name != "se3_transformer"])
def test_canonical_charges_make_a_model_blind_to_their_reversal(model):
    charge, position, velocity = _batch(4, 5, dtype=torch.float32)
    seeing = dict(charge_as_node_scalar=True) if model == "segnn" else {}
    plain, blind = (
        EXPERIMENT.build(model, {**SMALL[model], **seeing, "canonical_charges": flag})
        for flag in (False, True)
    )
    reversed_, same = (net(-charge, position, velocity) for net in (plain, blind))
    assert torch.equal(same, blind(charge, position, velocity))
    assert not torch.equal(reversed_, plain(charge, position, velocity))


@pytest.mark.parametrize("model", SMALL)
def test_models_with_a_moving_frame_move_with_it(model):
    """As the law does: velocities changed by u change positions by T u, whatever the forces."""
    net = EXPERIMENT.build(model, {**SMALL[model], "moving_frame": True}).double()
    with pytest.raises(ValueError, match="moving_frame needs its duration"):
        net(*_batch(3, 5))
    net.duration = 1.5
    charge, position, velocity = _batch(3, 5)
    change = torch.randn(3, 1, 3, dtype=torch.float64)
    found = net(charge, position, velocity + change)
    expected = net(charge, position, velocity) + 1.5 * change
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    plain = EXPERIMENT.build(model, SMALL[model]).double()
    found = plain(charge, position, velocity + change)
    assert (found - plain(charge, position, velocity) - 1.5 * change).abs().max() > 1e-3
    with pytest.raises(TypeError, match="moving_frame must be True or False, got 1"):
        EXPERIMENT.build(model, {**SMALL[model], "moving_frame": 1})


@pytest.mark.parametrize("horizon", [10, 1000])
def test_the_frame_moves_for_as_long_as_the_horizon(folder, horizon):
    changes = [f"data.options.horizon={horizon}", "model.options.moving_frame=true"]
    task = ChargesTask(_config(folder, *changes), CPU)
    batch = task.batch(torch.arange(4))
    change = torch.ones(3)
    moved = task.predict(task.model, batch._replace(velocity=batch.velocity + change))
    expected = task.predict(task.model, batch) + horizon / 1000 * change
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", STANDARD)
def test_the_simulated_law_does_not_change_in_a_moving_frame(name):
    """Even where forces are limited, because they depend on differences of positions only."""
    settings = replace(STANDARD[name], input_step=20, horizons=(100,))
    state = draw(settings, 20, np.random.RandomState(0))
    change = np.array([0.3, -0.2, 0.1])
    plain = simulate(state, settings)
    moved = simulate(state._replace(velocity=state.velocity + change), settings)
    np.testing.assert_allclose(moved.velocity, plain.velocity + change, atol=1e-9)
    np.testing.assert_allclose(moved.target, plain.target + 0.12 * change, atol=1e-9)


def test_settings_are_compared_without_reading_the_test_systems(folder, tmp_path):
    for file in folder.glob("charges_*"):
        if not file.name.startswith("charges_test"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="there is no test set"):
        ChargesTask(_config(tmp_path), CPU)
    task = ChargesTask(_config(tmp_path, "data.options.test=false"), CPU)
    found = task.evaluate(task.model)
    assert list(found) == ["val"]
    assert found["val"]["mse"] == pytest.approx(task.validate(task.model)["score"])


def test_a_network_for_five_bodies_takes_five():
    with pytest.raises(ValueError, match="made for 5 bodies and cannot take 4"):
        EXPERIMENT.build("mlp", SMALL["mlp"])(*_batch(2, 4, dtype=torch.float32))


def test_augmentation_reverses_all_charges_of_a_system_and_turns_it(folder):
    plain = ChargesTask(_config(folder), CPU).batch(torch.arange(16))
    changes = ["data.options.flip_charges=true", "data.options.rotate=true"]
    task = ChargesTask(_config(folder, *changes), CPU)
    signs = set()
    for _ in range(3):
        batch = task.batch(torch.arange(16))
        sign = batch.charge / plain.charge
        assert (sign == sign[:, :1]).all()
        signs |= set(sign[:, 0].tolist())
        for x, y in zip(batch[1:], plain[1:], strict=True):
            assert not torch.allclose(x, y, atol=0.1)
            torch.testing.assert_close(x @ x.mT, y @ y.mT, rtol=1e-4, atol=1e-4)
    assert signs == {-1.0, 1.0}
    turned = rotated(plain, torch.tensor([0.0, 0, 0, 2]).expand(16, 4))
    assert all(torch.equal(x, y) for x, y in zip(turned, plain, strict=True))


def _systems(name, count, horizon):
    settings = replace(STANDARD[name], horizons=(horizon,))
    systems = simulate(draw(settings, count, np.random.RandomState(0)), settings)
    chosen = systems._replace(target=systems.target[:, 0], leaving=systems.leaving[:, 0])
    return settings, {key: torch.from_numpy(x) for key, x in chosen._asdict().items()}


def _ends(settings, systems, horizon):
    state = State(*(systems[key].numpy() for key in ("charge", "position", "velocity")))
    return torch.from_numpy(evolve(state, settings, [horizon])[0].position)


@pytest.mark.parametrize("name", STANDARD)
def test_reversed_systems_obey_the_same_law(name):
    """Close encounters, which amplify rounding, are the exception."""
    settings, systems = _systems(name, 60, 400)
    both = with_reversed(systems)
    assert all(torch.equal(x, both[key][:60]) for key, x in systems.items())
    back = {key: x[60:] for key, x in both.items()}
    errors = (_ends(settings, back, 400) - systems["position"]).abs().amax((1, 2))
    assert torch.equal(back["target"], systems["position"])
    assert (errors < 1e-9).double().mean() > 0.9
    again = with_reversed(back)
    assert all(torch.equal(again[key][60:], x) for key, x in systems.items())


def test_training_takes_reversed_systems_on_request(folder):
    task = ChargesTask(_config(folder, "data.options.reverse_time=true"), CPU)
    assert task.samples == 32
    assert len(task._val["target"]) == 8
    plain = ChargesTask(_config(folder), CPU)
    assert task.data_hash != plain.data_hash
    there, back = plain.batch(torch.arange(16)), task.batch(torch.arange(16, 32))
    assert torch.equal(back.position, there.target)
    assert torch.equal(back.target, there.position)
    assert torch.equal(task.batch(torch.arange(16)).position, there.position)


def test_horizon_and_force_choose_the_data(folder):
    near, far = (
        ChargesTask(_config(folder, f"data.options.horizon={horizon}"), CPU).batch(torch.arange(16))
        for horizon in (10, 1000)
    )
    assert torch.equal(near.position, far.position)
    assert (near.target - near.position).abs().max() < 0.2 < (far.target - far.position).abs().max()
    gravity = ChargesTask(_config(folder, "data.options.force=gravity"), CPU)
    assert (gravity.batch(torch.arange(4)).charge == 1).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["force=springs"],
            "data.options.force must be one of 'charges', 'gravity', got 'springs'",
        ),
        (["clip=none"], "data.options.clip must be one of"),
        (["horizon=0"], "data.options.horizon must be an integer of at least 1, got 0"),
        (["flip_charges=1"], "data.options.flip_charges must be true or false"),
        (["force=gravity", "flip_charges=true"], "flip_charges needs charges"),
        (["reverse_time=1"], "data.options.reverse_time must be true or false"),
        (["bodies=4"], "bodies"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(folder, options, text):
    with pytest.raises(ConfigError, match=text):
        ChargesTask(_config(folder, *(f"data.options.{x}" for x in options)), CPU)
    with pytest.raises(DataError, match="has targets 10, 1000 steps after the input"):
        assert ChargesTask(_config(folder, "data.options.horizon=1500"), CPU).samples
    with pytest.raises(DataError, match="no test set of charges_norm"):
        ChargesTask(_config(folder, "data.options.clip=norm"), CPU)
    with pytest.raises(ValueError, match="velocity must be one of translation, direction"):
        EXPERIMENT.build("gatr", {"velocity": "speed"})


def test_the_test_set_is_read_for_evaluation_only(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    task = ChargesTask(_config(tmp_path), CPU)
    (tmp_path / "charges_test.safetensors").write_bytes(b"damaged")
    assert task.samples == 16
    assert set(task.validate(task.model)) == {"score", "median", "trimmed"}
    with pytest.raises(DataError, match=r"charges_test.safetensors is damaged"):
        task.evaluate(task.model)


def test_a_run_ends_with_results_on_the_test_set(folder, tmp_path):
    config = _config(folder, f"folder='{tmp_path / 'run'}'", "train.steps=2")
    results = runs.train(config)["results"]
    assert set(results) == {"test"}
    assert results["test"]["systems"] == 8
    assert set(EXPERIMENT.metrics) <= set(results["test"])
    told = EXPERIMENT.about(config, results["test"])
    assert told == dict(train_samples=16, horizon=1000, force="charges", clip="coordinate")
    gravity = override(config, ["data.options.force=gravity", "data.options.horizon=1500"])
    assert EXPERIMENT.about(gravity, {}) == dict(train_samples=16, horizon=1500, force="gravity")


def test_options_name_the_data():
    found = [
        Options(force=f, clip=c).data
        for f in ("charges", "gravity")
        for c in ("coordinate", "norm")
    ]
    assert found == ["charges", "charges_norm", "gravity", "gravity"]


def test_the_command_makes_the_sets(tmp_path):
    options = ["--train", "2", "--others", "2", "--input-step", "1", "--folder", str(tmp_path)]
    for more, name in (
        ([], "charges"),
        (["--clip", "norm"], "charges_norm"),
        (["--force", "gravity"], "gravity"),
    ):
        done = CliRunner().invoke(application(), ["data", "charges", *options, *more])
        assert done.exit_code == 0, done.output
        assert f"{name}_train.safetensors: 2 systems" in done.output.replace("\n", "")
        assert describe(tmp_path, name)["test"].settings.input_step == 1


@pytest.mark.parametrize(
    "wrong",
    [["--force", "springs"], ["--clip", "nrom"], ["--clip", "none"], ["--clip", "Coordinate"]],
)
def test_the_command_refuses_unknown_forces_and_limits(tmp_path, wrong):
    options = ["--train", "2", "--others", "2", "--input-step", "1", "--folder", str(tmp_path)]
    done = CliRunner().invoke(application(), ["data", "charges", *options, *wrong])
    assert wrong[1] in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_report_shows_predictions_without_a_network_beside_the_runs(folder, tmp_path):
    runs.train(_config(folder, f"folder='{tmp_path / 'run'}'", "train.steps=1"))
    done = CliRunner().invoke(
        application(), ["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    page = next((tmp_path / "out").glob("*.html")).read_text()
    assert "Other predictions" in page
    assert "affine map" in page
    assert "published: Multivector Neurons" in page
