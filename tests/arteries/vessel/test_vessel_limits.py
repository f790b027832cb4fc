"""Units at the limits of their detection, meshes far away, labels of merged nodes."""

from dataclasses import replace

import numpy as np
import pytest

from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.vessel import model_input
from flashgatr.experiments.arteries.vessel.model_input import read_vessel
from flashgatr.experiments.arteries.vessel.surface import cleaned

from ..tubes import tube
from .meshfiles import obj
from .predictions import SAMPLE


def _point(x):
    """A point at the inlet, as `--inlet` takes it: the two ends of a tube are of one size."""
    return " ".join(map(repr, np.asarray(x, np.float64).tolist()))


@pytest.mark.parametrize(
    ("diameter", "unit"),
    [
        (0.1, "cm"), (0.3, "cm"), (0.999, "cm"), (1.0, "mm"), (3.0, "mm"), (9.99, "mm"),
        (0.001, "m"), (0.003, "m"), (0.00999, "m"),
    ],
)  # fmt: skip
def test_the_unit_is_that_in_which_the_inlet_is_an_arterys(diameter, unit):
    """An inlet is 0.1 to 1 cm wide."""
    found, _ = model_input._unit(diameter, "auto")
    assert found == unit


@pytest.mark.parametrize("diameter", [0.0999, 0.0101, 10.0, 20.0, 0.00099, 1e-5])
def test_an_inlet_of_no_arterys_width_in_any_unit_is_refused(diameter):
    with pytest.raises(ArteryError, match="say the unit with"):
        model_input._unit(diameter, "auto")


@pytest.mark.parametrize("unit", ["cm", "mm", "m"])
def test_a_unit_that_is_told_is_used_whatever_the_size(unit):
    assert model_input._unit(123.0, unit)[0] == unit


@pytest.mark.parametrize("radius", [0.06, 0.16, 0.45])
@pytest.mark.parametrize(("unit", "factor"), [("cm", 1.0), ("mm", 10.0)])
def test_a_vessel_in_a_file_is_read_in_centimetres(tmp_path, unit, factor, radius):
    raw = tube(around=12, length=20 * radius, radius=radius, labels=False)
    path = tmp_path / "vessel.obj"
    path.write_bytes(obj(factor * raw.position.astype(np.float64), raw.face))
    vessel = read_vessel(path, inlet=_point(factor * raw.position[0]), extensions="keep")
    assert vessel.unit == unit
    assert vessel.mesh.inlet_diameter == pytest.approx(2 * radius, rel=0.1)
    extent = np.ptp(vessel.mesh.position, axis=0)
    np.testing.assert_allclose(extent, np.ptp(raw.position, axis=0), rtol=0.1, atol=0.1 * radius)
    # positions are given in the file's unit, those of the mesh in cm
    np.testing.assert_allclose(vessel.position, factor * vessel.mesh.position, rtol=1e-5, atol=1e-5)


def test_a_published_vessel_in_millimetres_keeps_its_nodes_in_millimetres(raw, monkeypatch):
    large = replace(raw, position=10 * raw.position)
    monkeypatch.setattr(model_input.raw, "read_raw", lambda *_: large)
    found = read_vessel(SAMPLE)
    assert found.unit == "mm"
    np.testing.assert_array_equal(found.position, large.position[found.origin])
    np.testing.assert_allclose(found.mesh.position, raw.position[found.origin], rtol=1e-5)


@pytest.mark.parametrize("far", [1e5, 1e6])
def test_a_mesh_far_away_keeps_its_shape(tmp_path, far):
    raw = tube(around=12, length=3.0, labels=False)
    near, away = (tmp_path / f"{name}.obj" for name in ("near", "away"))
    shift = np.array([far, -far, far / 2])
    position = raw.position.astype(np.float64)
    near.write_bytes(obj(position, raw.face))
    away.write_bytes(obj(position + shift, raw.face))
    here, there = (
        read_vessel(path, inlet=_point(inlet), extensions="keep")
        for path, inlet in ((near, position[0]), (away, position[0] + shift))
    )
    np.testing.assert_allclose(there.position, here.position + shift, rtol=0, atol=1e-9 * far)
    moved = there.mesh.position - there.mesh.position.mean(axis=0)
    still = here.mesh.position - here.mesh.position.mean(axis=0)
    np.testing.assert_allclose(moved, still, atol=1e-5)  # float32 at 1e5 is 0.008 apart
    np.testing.assert_allclose(there.mesh.normal, here.mesh.normal, atol=1e-3)
    np.testing.assert_allclose(there.mesh.geodesic, here.mesh.geodesic, atol=1e-3)


def test_labels_stay_with_their_nodes_when_nodes_are_merged():
    raw = tube(around=12, length=3.0)
    position, face = raw.position.astype(np.float64), raw.face
    order = np.random.default_rng(0).permutation(raw.nodes)
    back = np.argsort(order)
    position, face = position[order], back[face]
    labels = np.stack([position[:, 0], 10 * position[:, 1], position[:, 2] - 7], -1)
    corners = face.reshape(-1)  # every corner has a node of its own, as in an STL file
    surface = cleaned(position[corners], np.arange(len(corners)).reshape(-1, 3), labels[corners])
    assert len(surface.position) == raw.nodes
    x = surface.position
    expected = np.stack([x[:, 0], 10 * x[:, 1], x[:, 2] - 7], -1)
    np.testing.assert_array_equal(surface.wss, expected)
    kept = {tuple(p) for p in position}
    assert {tuple(p) for p in surface.position} == kept
    assert any("double nodes were merged" in note for note in surface.notes)


def test_labels_stay_with_their_nodes_when_unused_ones_are_left_out():
    raw = tube(around=12, length=3.0)
    more = np.concatenate([[[50.0, 50, 50]], raw.position, [[60.0, 60, 60]]])
    surface = cleaned(more, raw.face + 1, np.concatenate([[[9.0] * 3], raw.wss, [[8.0] * 3]]))
    np.testing.assert_array_equal(surface.position, raw.position)
    np.testing.assert_array_equal(surface.wss, raw.wss)
