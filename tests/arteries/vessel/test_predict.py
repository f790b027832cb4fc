"""From a mesh file to the stress on its wall."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flashgatr.experiments import runs
from flashgatr.experiments.arteries import EXPERIMENT
from flashgatr.experiments.arteries.data.preparation import prepare_folder
from flashgatr.experiments.arteries.data.shards import read_shard
from flashgatr.experiments.arteries.data.wall import prepare
from flashgatr.experiments.arteries.inference import predict_meshes
from flashgatr.experiments.arteries.vessel import model_input
from flashgatr.experiments.arteries.vessel import predict as prediction

from .predictions import SAMPLE, difference, predicted

PRETRAINED = Path(__file__).parents[3] / "pretrained" / "arteries"


def test_the_network_that_comes_with_the_source_knows_flows_of_another_solver():
    """It learned from the published vessels. These are synthetic, their stress is our own
    solver's, their meshes are coarser.
    """
    net = prediction.load(PRETRAINED)[0]
    told = runs.read_results(PRETRAINED)["results"]["test"]
    assert told["epsilon_mean"] < 6
    assert told["meshes"] == 100
    for number in (3, 5):
        found = prediction.predict_vessel(
            net, model_input.read_vessel(SAMPLE.parent / f"sample_000{number}.hdf5")
        )
        assert found.errors.epsilon < 14  # 12.0 and 13.3


def test_published_vessels_are_seen_as_in_training(raw):
    mesh, ours = prepare(raw), model_input.read_vessel(SAMPLE).mesh
    assert ours.inlet_diameter == mesh.inlet_diameter
    for name in ("position", "normal", "geodesic", "mask", "face", "wss"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(mesh, name))


def test_training_and_prediction_see_the_same_bits_of_a_published_sample(run, model, tmp_path):
    """Once through preparation and a shard, once as the file that `flashgatr predict` reads."""
    prepare_folder(SAMPLE.parent, tmp_path / "data", workers=1)
    (shard,) = (tmp_path / "data").glob("*.safetensors")
    (trained,) = (mesh for mesh in read_shard(shard) if mesh.name == SAMPLE.stem)
    result, _, _ = prediction.run(run, SAMPLE, tmp_path / "out", device="cpu")
    seen = result.vessel.mesh
    assert (seen.name, seen.index) == (trained.name, trained.index)
    assert seen.inlet_diameter == trained.inlet_diameter
    for name in ("position", "normal", "geodesic", "mask", "wss", "face"):
        mine, theirs = getattr(seen, name), getattr(trained, name)
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes(), name
    (stress,) = predict_meshes(model, [trained], torch.device("cpu"))
    assert result.wss.tobytes() == stress.numpy().tobytes()


def test_prediction_does_not_import_the_training_task(run, tmp_path):
    program = f"""
import sys
from typer.testing import CliRunner
from flashgatr.experiments import cli
arguments = ["predict", "arteries", {str(run)!r}, {str(SAMPLE)!r}, "--out", {str(tmp_path)!r}]
result = CliRunner().invoke(cli.application(), arguments, catch_exceptions=False)
assert result.exit_code == 0, result.output
assert "flashgatr.experiments.arteries.vessel.predict" in sys.modules
print([name for name in sys.modules if name.startswith("flashgatr") and name.endswith(".task")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert "arteries.task" not in done.stdout
    assert (tmp_path / "sample_0001.vtp").exists()


@pytest.mark.parametrize("kind", ["vtp", "stl", "ply"])
def test_the_format_of_the_file_changes_nothing(kind, model, raw, inlet, expected, tmp_path):
    again = predicted(model, tmp_path, raw.position, raw.face, inlet, kind)
    assert again.mesh.nodes == expected.mesh.nodes
    assert difference(again, expected) < 1e-4


def test_the_order_of_nodes_and_faces_changes_nothing(model, raw, inlet, expected, tmp_path):
    draw = np.random.default_rng(0)
    order = draw.permutation(raw.nodes)
    face = np.argsort(order)[draw.permutation(raw.face)]
    assert difference(predicted(model, tmp_path, raw.position[order], face, inlet), expected) < 1e-3


def test_predictions_turn_and_move_with_the_mesh(model, raw, expected, tmp_path):
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    turn *= np.linalg.det(turn)

    def place(x):
        return x.astype(np.float64) @ turn.T + [100.0, -200.0, 50.0]

    moved = place(raw.position)
    inlet = " ".join(map(str, moved[raw.inlet].mean(axis=0)))
    again = predicted(model, tmp_path, moved, raw.face, inlet)
    assert difference(again, expected, turn, place) < 1e-3


def test_both_signs_make_predictions_turn_with_mirrors(run, raw, tmp_path):
    both, _ = prediction.load(run, both_signs=True)
    mirror = np.diag([1.0, -1.0, 1.0])
    position = raw.position.astype(np.float64) @ mirror
    inlet = " ".join(map(str, position[raw.inlet].mean(axis=0)))
    here = prediction.predict_vessel(both, model_input.read_vessel(SAMPLE))
    there = predicted(both, tmp_path, position, raw.face[:, ::-1], inlet)
    assert difference(there, here, mirror, lambda x: x @ mirror) < 1e-3
    assert both.both_signs  # test_models.py has a model that needs it
    assert not prediction.load(run)[0].both_signs


def test_both_signs_are_left_out_of_networks_with_types(run, monkeypatch):
    """They are exact under mirrors in one pass."""
    typed = EXPERIMENT.build("gatr_e3", dict(num_blocks=1))
    monkeypatch.setattr(prediction.runs, "load_model", lambda config: typed)
    assert not prediction.load(run, both_signs=True)[0].both_signs


@pytest.mark.parametrize("scale", ["mm", "auto"])
def test_a_mesh_in_millimetres_is_the_same_vessel(scale, model, raw, inlet, expected, tmp_path):
    inlet = " ".join(str(10 * float(x)) for x in inlet.split())
    position = 10 * raw.position.astype(np.float64)
    again = predicted(model, tmp_path, position, raw.face, inlet, scale=scale)
    assert again.vessel.unit == "mm"
    told = any("taken to be mm" in note for note in again.vessel.notes)
    assert told == (scale == "auto")
    assert difference(again, expected, place=lambda x: 10 * x) < 1e-4
