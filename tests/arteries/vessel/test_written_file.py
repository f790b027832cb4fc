"""What the command writes and prints for a mesh in millimetres that is turned and placed
elsewhere, read back from its file.
"""

import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr import io
from flashgatr.experiments import cli, runs
from flashgatr.experiments.arteries.vessel.formats import read as read_file

from . import meshfiles
from .predictions import make_run, predicted

SHIFT = [300.0, -200.0, 50.0]  # mm


@pytest.fixture(scope="module")
def turn():
    found = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    return found * np.linalg.det(found)


@pytest.fixture(scope="module")
def placed(raw, turn, tmp_path_factory):
    """The mesh file, its nodes in millimetres, and the option for its inlet."""
    position = 10 * raw.position.astype(np.float64) @ turn.T + SHIFT
    file = tmp_path_factory.mktemp("mesh") / "moved.vtp"
    labels = {"wss_reference": raw.wss.astype(np.float64) @ turn.T}
    file.write_bytes(meshfiles.vtk(position, raw.face, fields=labels))
    return file, position, " ".join(map(str, position[raw.inlet].mean(axis=0)))


def invoke(run, file, inlet, out):
    arguments = ["predict", "arteries", *map(str, (run, file, "--inlet", inlet, "--out", out))]
    return CliRunner().invoke(cli.application(), arguments)


@pytest.fixture(scope="module")
def written(run, placed, tmp_path_factory):
    """What the command printed, and the nodes and arrays of the file that it wrote."""
    file, _, inlet = placed
    out = tmp_path_factory.mktemp("out")
    done = invoke(run, file, inlet, out)
    assert done.exit_code == 0, done.exception
    found = out / "moved.vtp"
    names = ("wss", "wss_magnitude", "geodesic", "inside", "wss_reference", "wss_error")
    return done.output, read_file(found)[0], {x: read_file(found, x)[2] for x in names}


@pytest.fixture(scope="module")
def in_place(model, raw, inlet, tmp_path_factory):
    """The prediction on the same mesh in centimetres, neither turned nor moved."""
    folder = tmp_path_factory.mktemp("in_place")
    return predicted(model, folder, raw.position, raw.face, inlet)


@pytest.fixture(scope="module")
def common(written, placed, in_place, raw):
    """Rows of the written file, and of the prediction in place, that belong to the same node."""
    mine = [np.linalg.norm(placed[1] - x, axis=1).argmin() for x in written[1]]
    theirs = [np.linalg.norm(raw.position - x, axis=1).argmin() for x in in_place.position]
    _, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
    assert len(here) > 0.97 * max(len(mine), len(theirs))
    return here, there


def test_nodes_stay_where_the_mesh_has_them(written, placed, common, in_place, turn):
    """In the unit and at the place of the mesh, each node one of the file's."""
    _, position, _ = written
    distances = np.linalg.norm(position[:, None] - placed[1], axis=-1)
    assert distances.min(axis=1).max() < 1e-9
    here, there = common
    before = 10 * in_place.position[there] @ turn.T + SHIFT
    np.testing.assert_allclose(position[here], before, rtol=0, atol=1e-9)


def test_arrays_are_those_of_the_mesh_in_place_and_vectors_turn(
    written, common, in_place, raw, turn
):
    """Stress in dyn/cm² and distances in cm, whatever the unit of the mesh."""
    here, there = common
    found = {name: x[here] for name, x in written[2].items()}
    before = in_place.wss[there] @ turn.T
    assert np.linalg.norm(found["wss"] - before) < 1e-3 * np.linalg.norm(before)
    labels = raw.wss[in_place.vessel.origin[in_place.vessel.origin >= 0]][there]
    np.testing.assert_allclose(found["wss_reference"], labels @ turn.T, atol=1e-4)
    distance = in_place.mesh.geodesic[there]  # rounding decides which of two equal edges is used
    np.testing.assert_allclose(found["geodesic"][:, 0], distance, rtol=1e-2)
    assert (found["inside"][:, 0] == in_place.mesh.mask[there]).mean() > 0.99


def test_magnitude_and_error_are_lengths_of_the_vectors_in_the_file(written):
    wss, reference = (written[2][name].astype(np.float64) for name in ("wss", "wss_reference"))
    for name, vectors in (("wss_magnitude", wss), ("wss_error", wss - reference)):
        length = np.sqrt((vectors**2).sum(axis=1))
        np.testing.assert_allclose(written[2][name][:, 0], length, rtol=1e-5)


def test_the_printed_mean_and_maximum_are_those_of_the_nodes_inside(written):
    output, _, arrays = written
    magnitude, inside = arrays["wss_magnitude"][:, 0], arrays["inside"][:, 0] == 1
    for name, of in (("mean", np.mean), ("largest", np.max)):
        (told,) = re.findall(rf"{name} \|wss\| inside\W+([\d.e+]+) dyn", output)
        assert told == f"{of(magnitude[inside]):.4g}"
        assert told != f"{of(magnitude):.4g}"  # over all nodes it is another number


def test_predictions_that_are_not_finite_are_refused_and_not_written(placed, tmp_path):
    broken = make_run(tmp_path / "run")
    kind = f"arteries/{runs.load_config(broken).model.name}"
    options, state = io.load(broken / "model", kind)
    next(x for x in state.values() if x.is_floating_point()).fill_(torch.nan)
    io.save(broken / "model", kind, options, state)
    done = invoke(broken, placed[0], placed[2], tmp_path / "out")
    assert "predictions on moved are not finite" in str(done.exception)
    assert not (tmp_path / "out").exists()
