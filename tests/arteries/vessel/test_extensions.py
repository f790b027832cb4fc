"""Ends and flow extensions of a vessel: closed, added, cut or kept."""

import re

import numpy as np
import pytest

from flashgatr.experiments.arteries.data import wall
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.vessel import model_input, prediction_picture
from flashgatr.experiments.arteries.vessel import predict as prediction
from flashgatr.experiments.arteries.vessel.formats import read as read_file

from ..tubes import tube
from . import meshfiles
from .predictions import difference, predicted


def opened(raw):
    """Without the faces of both caps."""
    first, last = (raw.position[raw.face].mean(axis=1) @ d for d in _axes(raw))
    caps = (first > first.max() - 1e-3) | (last > last.max() - 1e-3)
    return raw.face[~caps]


def _axes(raw):
    return (
        model_input.find_ends(raw.position.astype(np.float64), raw.face)[0][k].outward
        for k in (0, 1)
    )


def test_an_open_tube_is_closed_and_equals_the_closed_one(model, raw, inlet, expected, tmp_path):
    face = opened(raw)
    assert len(face) < len(raw.face)
    again = predicted(model, tmp_path, raw.position, face, inlet)
    assert any("open ends were closed: 1, 2" in note for note in again.vessel.notes)
    assert difference(again, expected) < 0.01
    shift = np.median(again.mesh.geodesic) - np.median(expected.mesh.geodesic)
    assert abs(shift) < 0.03  # cm


def bare(raw, length=4.15):
    """The vessel alone: its flow extensions cut off, open."""
    centre = raw.position[raw.face].mean(axis=1)
    return raw.face[(centre[:, 0] > 0.02) & (centre[:, 0] < length)]


def test_a_vessel_without_extensions_gets_them_and_is_seen_as_in_training(
    model, raw, expected, tmp_path
):
    again = predicted(model, tmp_path, raw.position, bare(raw), "0 0 0")
    assert any("extensions were added" in note for note in again.vessel.notes)
    assert (again.vessel.origin < 0).any()  # the model saw them
    names = dict.fromkeys(map(tuple, raw.position.astype(np.float64).tolist()))
    assert all(tuple(x) in names for x in again.position.tolist())  # but they are not shown
    place = {tuple(x): k for k, x in enumerate(expected.position.tolist())}
    pairs = [
        (k, place[tuple(x)]) for k, x in enumerate(again.position.tolist()) if tuple(x) in place
    ]
    mine, theirs = np.array(pairs).T
    assert len(mine) > 0.98 * again.mesh.nodes
    away = again.mesh.geodesic[mine] - expected.mesh.geodesic[theirs]
    assert np.abs(away).max() < 0.15  # cm, of 4; without extensions it would be 1.5
    change = np.linalg.norm(again.wss[mine] - expected.wss[theirs])
    assert change < 0.05 * np.linalg.norm(expected.wss[theirs])


def test_written_distances_begin_at_the_inlet_of_the_file(
    model, raw, expected, tmp_path, monkeypatch
):
    again = predicted(model, tmp_path, raw.position, bare(raw), "0 0 0")
    first = again.position[:, 0] < 0.1
    assert np.abs(again.geodesic[first]).max() < 0.15  # cm
    assert again.mesh.geodesic[first].min() > 1.5  # the model's begin at the added extension
    monkeypatch.setattr(prediction_picture, "picture", lambda mesh, stress: b"")
    prediction.save(again, tmp_path / "out")
    written = read_file(tmp_path / "out" / "a.vtp", "geodesic")[2][:, 0]
    np.testing.assert_array_equal(written, again.geodesic)
    np.testing.assert_array_equal(expected.geodesic, expected.mesh.geodesic)


def cut_notes(vessel):
    return [note for note in vessel.notes if "left out" in note]


def test_nodes_that_are_cut_off_are_counted_in_a_note(raw, inlet, expected, tmp_path):
    gone = raw.nodes - expected.mesh.nodes
    told = f"{gone:,} of 1,922 nodes are left out; --extensions keep keeps all but the caps"
    assert cut_notes(expected.vessel) == [f"flow extensions were cut off at both ends: {told}"]
    file = tmp_path / "a.vtp"
    file.write_bytes(meshfiles.vtk(raw.position, raw.face))
    assert cut_notes(model_input.read_vessel(file, inlet=inlet)) == [
        f"flow extensions were cut off at ends 1 and 2: {told}"
    ]
    for extensions in ("keep", "add"):
        assert not cut_notes(model_input.read_vessel(file, inlet=inlet, extensions=extensions))
    centre = raw.position[raw.face].mean(axis=1)
    file.write_bytes(meshfiles.vtk(raw.position, raw.face[centre[:, 0] < 4.15]))  # no outlet
    (note,) = cut_notes(model_input.read_vessel(file, inlet=inlet))
    assert re.search(r"cut off at end [12]: \d+ of ", note)


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_the_files_nodes_are_never_cut_where_an_extension_was_added(factor, tmp_path, monkeypatch):
    mesh = tube(around=12, length=35.0, bend=0.0)  # more edges than the usual time step can pass
    face = mesh.face[np.ptp(mesh.position[mesh.face][:, :, 0], axis=1) > 0]  # without its caps
    (tmp_path / "a.vtp").write_bytes(meshfiles.vtk(mesh.position, face))
    true = wall.geodesics
    monkeypatch.setattr(wall, "geodesics", lambda *arguments: factor * true(*arguments))
    seen = model_input.read_vessel(tmp_path / "a.vtp", inlet="0 0 0", extensions="add")
    assert sum(seen.origin >= 0) == len(np.unique(face))
    assert not cut_notes(seen)
    if factor == 1:
        own = seen.mesh.geodesic[seen.origin >= 0]
        assert np.ptp(own) == pytest.approx(35, rel=0.03)


def test_keeping_leaves_out_the_caps_alone(model, raw, inlet, tmp_path):
    again = predicted(model, tmp_path, raw.position, raw.face, inlet, extensions="keep")
    rims = 2 * 16
    assert again.mesh.nodes == raw.nodes - 2 * len(raw.inlet) + rims
    with pytest.raises(ArteryError, match=r"nothing is left.*--extensions add"):
        predicted(model, tmp_path, raw.position, bare(raw, 2.0), "0 0 0", extensions="cut")
    with pytest.raises(ArteryError, match=r"nothing is left.*--extensions add$"):
        predicted(model, tmp_path, raw.position, bare(raw, 0.5), "0 0 0", extensions="keep")


@pytest.mark.parametrize("extensions", ["auto", "add", "cut"])
def test_a_vessel_with_three_ends_is_used_as_it_is_or_extended(
    extensions, model, raw, inlet, tmp_path
):
    centre = raw.position[raw.face].mean(axis=1)
    middle = centre[np.argmin(np.abs(centre[:, 0] - 2) - centre[:, 2])]
    branch = np.linalg.norm(centre - middle, axis=1) < 0.15
    face = raw.face[~branch]
    if extensions == "cut":
        with pytest.raises(ArteryError, match="needs a vessel with two ends, got 3"):
            predicted(model, tmp_path, raw.position, face, inlet, extensions=extensions)
        return
    again = predicted(model, tmp_path, raw.position, face, inlet, extensions=extensions)
    assert any("trained on vessels with two" in note for note in again.vessel.notes)
    added = any("added for the computation at ends 1, 2 and 3" in x for x in again.vessel.notes)
    assert added == (extensions == "add")
    assert again.mesh.geodesic.min() < (2.5 if added else 0.2)
    if added:
        assert again.mesh.mask.all()
        seen = again.vessel
        np.testing.assert_array_equal(seen.mesh.mask, seen.origin >= 0)  # not what was added
        assert (seen.origin < 0).any()
        beyond = again.vessel.mesh.geodesic.max() - again.mesh.geodesic.max()
        assert beyond < 1.3 * again.mesh.inlet_diameter  # the model saw one diameter of them
