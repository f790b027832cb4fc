"""Predictions say where they come from, and do not replace those of another origin."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flashgatr import io
from flashgatr.experiments import cli, runs, table
from flashgatr.experiments.arteries.vessel import vtkxml
from flashgatr.experiments.arteries.vessel.formats import read as read_file
from flashgatr.experiments.arteries.vessel.origin import Origin
from flashgatr.train.settings import override, save
from flashgatr.version import __version__

from ..tubes import tube
from . import meshfiles


def make_run(folder, *changes):
    """A run that was not trained."""
    config = override(runs.defaults("arteries"), ["device=cpu", *changes])
    model = table.find("arteries").build(config.model.name, dict(config.model.options))
    folder.mkdir(parents=True)
    save(config, folder / "config.toml")
    kind = f"arteries/{config.model.name}"
    io.save(folder / "model", kind, dict(config.model.options), model.state_dict())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("trained") / "run", "model.options.num_blocks=1")


def predict(run, mesh, out, *options, inlet="0 0 0"):
    given = (run, mesh, "--inlet", inlet, "--out", out, *options)
    arguments = ["predict", "arteries", *map(str, given)]
    done = CliRunner().invoke(cli.application(), arguments)
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.fixture(scope="module")
def meshes(tmp_path_factory):
    """Two vessels whose files have the same name."""
    found = []
    for number, name in enumerate(("one", "two")):
        mesh = tube(around=12, length=6.0, index=number)
        found.append(tmp_path_factory.mktemp(name) / "vessel.stl")
        found[-1].write_bytes(meshfiles.stl(10 * mesh.position, mesh.face))
    return found


def test_the_file_says_where_it_comes_from(run, meshes, tmp_path):
    predict(run, meshes[0], tmp_path)
    weights = (run / "model" / "model.safetensors").read_bytes()
    about = vtkxml.read_about(tmp_path / "vessel.vtp")
    assert about.pop("inlet").startswith("end ")
    assert about == {
        "mesh": "vessel.stl",
        "sample": "vessel",
        "mesh_sha256": hashlib.sha256(meshes[0].read_bytes()).hexdigest(),
        "run": str(run.resolve()),
        "network_sha256": hashlib.sha256(weights).hexdigest(),
        "unit": "mm",
        "anchors": "all nodes",
        "extensions": "auto",
        "both_signs": "no",
        "flashgatr": __version__,
    }
    position, face, wss = read_file(tmp_path / "vessel.vtp", "wss")
    assert len(position) == len(wss) > face.max()


def test_a_second_mesh_of_the_same_name_keeps_the_first_ones_result(run, meshes, tmp_path):
    predict(run, meshes[0], tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    told = predict(run, meshes[1], tmp_path)
    assert "vessel.vtp is kept, a prediction for another mesh" in told
    assert "vessel-2.png" in told
    assert {name: (tmp_path / name).read_bytes() for name in first} == first
    assert not np.array_equal(*(read_file(tmp_path / x)[0] for x in ("vessel.vtp", "vessel-2.vtp")))
    for mesh in meshes:  # each finds its own place again
        assert ("is kept" in predict(run, mesh, tmp_path)) == (mesh == meshes[1])
    assert len(list(tmp_path.iterdir())) == 4
    assert (tmp_path / "vessel.vtp").read_bytes() == first["vessel.vtp"]


def test_another_network_does_not_replace_the_first_ones_result(run, meshes, tmp_path):
    other = make_run(tmp_path / "other", "model.name=transformer", "model.options.num_blocks=1")
    predict(run, meshes[0], tmp_path)
    assert "by another network" in " ".join(predict(other, meshes[0], tmp_path).split())
    assert vtkxml.read_about(tmp_path / "vessel-2.vtp")["run"] == str(other.resolve())


@pytest.mark.parametrize(
    ("options", "inlet"),
    [
        (["--both-signs"], "0 0 0"),
        (["--extensions", "keep"], "0 0 0"),
        (["--scale", "cm"], "0 0 0"),
        ([], "2"),
    ],
    ids=str,
)
def test_a_prediction_with_other_options_is_kept_and_one_with_the_same_replaced(
    run, meshes, tmp_path, options, inlet
):
    predict(run, meshes[0], tmp_path)
    first = (tmp_path / "vessel.vtp").read_bytes()
    for _ in range(2):
        told = " ".join(predict(run, meshes[0], tmp_path, *options, inlet=inlet).split())
        assert "by another network or with other options; this one is vessel-2.vtp" in told
    assert len(list(tmp_path.iterdir())) == 4
    assert (tmp_path / "vessel.vtp").read_bytes() == first


def test_predictions_of_earlier_versions_had_the_defaults(run, meshes, tmp_path):
    predict(run, meshes[0], tmp_path)
    file = tmp_path / "vessel.vtp"
    about = vtkxml.read_about(file)
    origin = Origin(**about)
    for name in ("anchors", "extensions", "both_signs"):
        del about[name]
    about["flashgatr"] = "0.0.1"
    assert origin.is_of_the_same(about)
    assert not replace(origin, both_signs="yes").is_of_the_same(about)
    assert not origin.is_of_the_same({})


def test_texts_survive_the_file_and_damaged_ones_are_none(tmp_path):
    mesh = tube(around=12, length=1.0)
    file = tmp_path / "a.vtp"
    about = {"mesh": "Gefäß & <1> 血管.stl", "empty": ""}
    content = vtkxml.write(mesh.position, mesh.face, {}, about)
    file.write_bytes(content)
    assert vtkxml.read_about(file) == about
    for damaged in (content[:300], content.replace(b"</FieldData>", b""), b"", b"<a/>"):
        file.write_bytes(damaged)
        assert vtkxml.read_about(Path(file)) == {}
    file.write_bytes(vtkxml.write(mesh.position, mesh.face, {}))
    assert vtkxml.read_about(file) == {}
