"""Predictions in which all nodes attend to a few anchors."""

import copy

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr import AnchoredGATr, GATr
from flashgatr.anchors import METHODS
from flashgatr.experiments import cli
from flashgatr.experiments.arteries.anchoring import AnchorChoice, anchored, predict_wall
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.orientation import turned
from flashgatr.experiments.arteries.vessel import model_input, predict, vtkxml

from .predictions import SAMPLE, make_run

FEW = AnchorChoice(64)


def test_all_nodes_as_anchors_are_full_attention(run):
    for both_signs in (False, True):
        model, _ = predict.load(run, both_signs=both_signs)
        vessel = model_input.read_vessel(SAMPLE)
        full = predict.stress(model, vessel.mesh)
        found = predict.stress(model, vessel.mesh, AnchorChoice(10**6))
        assert np.linalg.norm(found - full) < 1e-4 * np.linalg.norm(full)
        few = predict.stress(model, vessel.mesh, FEW)
        assert np.linalg.norm(few - full) > 1e-3 * np.linalg.norm(full)


def test_anchored_models_keep_their_parameters(run):
    model, _ = predict.load(run)
    before = dict(copy.deepcopy(model).state_dict())
    own = list(model.parameters())
    assert type(model.net) is GATr
    assert isinstance(anchored(model).net, AnchoredGATr)
    assert all(x is y for x, y in zip(own, model.parameters(), strict=True))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_tiles_change_nothing_but_rounding_and_report_their_progress(run):
    model, _ = predict.load(run, both_signs=True)
    mesh = model_input.read_vessel(SAMPLE).mesh
    nodes = [torch.from_numpy(np.asarray(x)) for x in (mesh.position, mesh.normal, mesh.geodesic)]
    seen = []
    whole = predict_wall(model, *nodes, FEW)
    tiled = predict_wall(model, *nodes, FEW, tile=100, progress=lambda *x: seen.append(x))
    assert (tiled - whole).norm() < 1e-5 * whole.norm()
    assert seen[-1] == (2 * mesh.nodes, 2 * mesh.nodes)
    assert seen == sorted(seen)
    assert len(seen) == 2 * -(-mesh.nodes // 100)


@pytest.mark.parametrize("method", METHODS)
def test_predictions_with_anchors_turn_with_the_mesh(method, model):
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    turn *= np.linalg.det(turn)
    mesh = model_input.read_vessel(SAMPLE).mesh
    choice = AnchorChoice(64, method, seed=3)
    before, after = (predict.stress(model, x, choice) for x in (mesh, turned(mesh, turn)))
    assert np.linalg.norm(after - before @ turn.T) < 1e-3 * np.linalg.norm(before)


def test_the_limit_of_nodes_is_that_of_full_attention_only(run, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "ATTENDED", 1000)
    found, _, (file, _) = predict.run(run, SAMPLE, tmp_path, anchors=FEW)
    assert found.mesh.nodes > 1000
    about = vtkxml.read_about(file)
    assert about["anchors"] == "64 nodes (medoids), weighted by their nodes, seed 0"


def test_predictions_with_other_anchors_are_kept(run, tmp_path):
    names = [
        predict.run(run, SAMPLE, tmp_path, anchors=choice)[2][0].stem
        for choice in (None, FEW, AnchorChoice(64, seed=1), FEW, None)
    ]
    first = names[0]
    assert names == [first, f"{first}-2", f"{first}-3", f"{first}-2", first]


@pytest.mark.parametrize("name", ["transformer", "pointnet2", "gatr_unconstrained"])
def test_models_without_a_gatr_refuse_anchors(name, tmp_path):
    folder = make_run(tmp_path / "run", f"model.name={name}")
    with pytest.raises(ArteryError, match="anchors are for models with a GATr inside"):
        predict.run(folder, SAMPLE, tmp_path, anchors=FEW)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--anchor-seed", "1"], "--anchor-seed goes with --anchors NUMBER"),
        (["--no-anchor-weights"], "--no-anchor-weights goes with --anchors NUMBER"),
        (
            ["--anchors", "8", "--anchor-method", "near"],
            "medoids, farthest, random; got method 'near'",
        ),
    ],
)
def test_options_of_anchors_are_checked(options, told, run, tmp_path):
    command = ["predict", "arteries", str(run), str(SAMPLE), "--out", str(tmp_path), *options]
    result = CliRunner().invoke(cli.application(), command)
    assert result.exit_code != 0
    assert told in str(result.exception) + result.output


def test_the_command_predicts_with_anchors(run, tmp_path):
    command = ["predict", "arteries", str(run), str(SAMPLE), "--out", str(tmp_path)]
    result = CliRunner().invoke(
        cli.application(), [*command, "--anchors", "32", "--anchor-method", "random"]
    )
    assert result.exit_code == 0, result.output
    (file,) = tmp_path.glob("*.vtp")
    assert vtkxml.read_about(file)["anchors"].startswith("32 nodes (random), weighted")
