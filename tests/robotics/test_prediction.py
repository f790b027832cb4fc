"""`flashgatr predict kuka`: a film, a trajectory that says where it comes from, and a verdict."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from flashgatr.experiments.robotics import prediction
from flashgatr.experiments.robotics.planning import Episodes, expert, run
from flashgatr.experiments.robotics.prediction import Origin, Prediction
from flashgatr.experiments.robotics.world import physics, scenes

from .conftest import command, needs_physics

ORIGIN = Origin("run", "0" * 64, 3, False, "mujoco", "ddim", 2)


@pytest.fixture
def still():
    """A prediction of an episode in which nothing moved."""
    state = scenes.scenes("test", 1)
    states = np.repeat(state[:, None], 7, 1)
    zero, one = np.zeros((1, 3)), np.full((1, 3), 0.5)
    plans = np.zeros((1, 3, 128, 49))
    return Prediction(Episodes(zero, np.zeros(1), one, plans, states, state), ORIGIN)


@needs_physics
def test_a_scene_is_planned_executed_and_stored(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction.save, "__kwdefaults__", {"every": 200})
    out = tmp_path / "out"
    said = command("predict", "kuka", trained, "--seed", 3, "--out", out, "--device", "cpu")
    assert "reward after phase 3" in said
    assert "standing tower" in said
    file, film = out / "seed-3.safetensors", out / "seed-3.gif"
    assert film.read_bytes()[:6] == b"GIF89a"
    with safe_open(file, "numpy") as stored:
        assert stored.get_tensor("states").shape == (1 + 3 * 127, 39)
        assert stored.get_tensor("plans").shape == (3, 128, 49)
        assert stored.get_tensor("reward").shape == (3,)
        header = json.loads(stored.metadata()[prediction.KEY])
    assert (header["seed"], header["engine"]) == (3, "mujoco")
    # the quick sampler, and not the run's own setting
    assert (header["sampler"], header["sampling_steps"]) == ("dpm_solver", 20)
    assert len(header["network_sha256"]) == 64
    before = file.read_bytes()
    more = ("--sampler", "ddim", "--sampling-steps", 1)
    said = command("predict", "kuka", trained, "--seed", 3, "--out", out, *more)
    assert "seed-3-2.gif" in said.replace("\n", "")
    assert file.read_bytes() == before


def test_a_repeated_prediction_replaces_itself_and_no_other(still, tmp_path):
    assert prediction.save(still, tmp_path) == prediction.save(still, tmp_path)
    other = Prediction(still.episodes, Origin("run", "1" * 64, 3, False, "mujoco", "ddim", 2))
    assert prediction.save(other, tmp_path)[0].name == "seed-3-2.safetensors"


def test_files_of_others_are_never_replaced(still, tmp_path):
    (tmp_path / "seed-3.safetensors").write_bytes(b"mine")
    with pytest.raises(ValueError, match="not a prediction by this command"):
        prediction.save(still, tmp_path)
    (tmp_path / "seed-3.safetensors").unlink()
    (tmp_path / "seed-3.gif").write_bytes(b"mine")
    with pytest.raises(ValueError, match="without a prediction beside it"):
        prediction.save(still, tmp_path)
    with pytest.raises(ValueError, match="--out must be a folder"):
        prediction.require_folder(tmp_path / "seed-3.gif" / "deeper")


def test_the_verdict_says_what_was_not_reached(still):
    rows = dict(still.rows())
    assert rows["reward after phase 1"] == "0.0 of 100, the arm attains 50 % of its poses"
    assert rows["standing tower"].startswith("1 of 4 (from the lowest up: block")
    assert rows["not reached"].count("block") == 3


@needs_physics
def test_the_expert_reaches_everything():
    found = dict(Prediction(run(expert, scenes.scenes("test", 1)), ORIGIN).rows())
    assert found["standing tower"].startswith("4 of 4")
    assert "not reached" not in found


def test_wrong_requests_are_a_sentence(trained, monkeypatch):
    with pytest.raises(ValueError, match="unknown engine 'ode'"):
        prediction.predict(trained, engine="ode")
    monkeypatch.setattr(physics, "installed", lambda engine: True)
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed must be an integer from 0 to .*, got {seed}"):
            prediction.predict(trained, seed=seed)
    with pytest.raises(ValueError, match=r"sampling_steps must be an integer of at least 1, got 0"):
        prediction.predict(trained, sampling_steps=0)
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    with pytest.raises(ImportError, match=r"needs the package mujoco: pip install"):
        prediction.predict(trained)
