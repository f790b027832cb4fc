"""Which end is the inlet, and in what unit the mesh is."""

from dataclasses import replace

import numpy as np
import pytest

from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.vessel import model_input

from ..tubes import tube
from . import meshfiles
from .predictions import predicted


def wedge_tube(thin=0.8):
    """A tube that narrows towards its end."""
    mesh = tube(around=18, length=6.0, bend=0.0, jitter=0.0)
    factor = 1 - (1 - thin) * mesh.position[:, :1] / 6
    return replace(mesh, position=mesh.position * np.concatenate([factor**0, factor, factor], 1))


def test_the_largest_end_is_the_inlet_unless_told(model, tmp_path):
    mesh = wedge_tube()
    ends = {"auto": 0.0, "1": 0.0, "2": 6.0, "0.1 0 0": 0.0, "5.9,0.1,0": 6.0}
    for wanted, x in ends.items():
        again = predicted(model, tmp_path, mesh.position, mesh.face, wanted)
        nearest = again.position[again.mesh.geodesic.argmin(), 0]
        assert abs(nearest - x) < 0.5, wanted
        told = [note for note in again.vessel.notes if "taken to be the largest end" in note]
        assert len(told) == (wanted == "auto")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("3", "--inlet must be auto, the number of an end or a point"),
        ("left", r"got 'left'; the ends are 1: capped, diameter 0\.3"),
        ("3 0 0", "away from the nearest end"),
        ("nan 0 0", "--inlet must be"),
    ],
)
def test_inlets_that_are_none_are_refused(wanted, message, model, tmp_path):
    mesh = wedge_tube()
    with pytest.raises(ArteryError, match=message):
        predicted(model, tmp_path, mesh.position, mesh.face, wanted)


def test_ends_of_one_size_must_be_told_apart(model, raw, tmp_path):
    with pytest.raises(ArteryError, match="cannot be told from the outlet; say which with --inlet"):
        predicted(model, tmp_path, raw.position, raw.face, "auto")


@pytest.mark.parametrize(
    ("move", "told"), [(-0.1, "at 0.000 0.000 0.000"), (1e6, "at 1000006.100 0.000 0.000")]
)
def test_ends_are_listed_to_the_precision_that_matters(move, told, model, tmp_path):
    mesh = wedge_tube()
    position = mesh.position + np.array([move, -1e-18, 1e-18])
    with pytest.raises(ArteryError, match=f"{told}(;|$)"):
        predicted(model, tmp_path, position, mesh.face, "left")


@pytest.mark.parametrize(
    ("factor", "scale", "message"),
    [
        (0.1, "cm", "diameter of 0.0361 cm"),
        (1000.0, "auto", "in none of cm, mm, m"),
        (1.0, "inch", "--scale must be one of auto, cm, mm, m"),
    ],
)
def test_a_wrong_scale_is_said(factor, scale, message, model, raw, inlet, tmp_path):
    position = factor * raw.position
    inlet = " ".join(str(factor * float(x)) for x in inlet.split())
    if scale == "cm":
        again = predicted(model, tmp_path, position, raw.face, inlet, scale=scale)
        assert any(message in note for note in again.vessel.notes)
        return
    with pytest.raises(ArteryError, match=message):
        predicted(model, tmp_path, position, raw.face, inlet, scale=scale)


@pytest.mark.parametrize(
    ("factor", "told"), [(0.5, True), (0.69, False), (1.1, False), (1.2, True)]
)
def test_inlets_beyond_those_of_the_training_data_are_said(factor, told, raw, tmp_path):
    """The inlet of the sample has a diameter of 0.361 cm; training saw 0.25 to 0.4 cm."""
    file = tmp_path / "a.vtp"
    position = factor * raw.position.astype(np.float64)
    file.write_bytes(meshfiles.vtk(position, raw.face))
    inlet = " ".join(map(str, position[raw.inlet].mean(axis=0)))
    vessel = model_input.read_vessel(file, inlet=inlet, scale="cm")
    assert any("published training vessels of 0.25" in note for note in vessel.notes) == told


@pytest.mark.parametrize(("around", "ends"), [(36, 2), (24, 3)])
def test_openings_are_ends_from_a_fifth_of_the_largest_diameter_on(around, ends):
    """Without the six faces around a node, the opening is 0.16 or 0.24 times as wide."""
    mesh = tube(around=around, length=2.0, bend=0.0, jitter=0.0)
    node = np.argmin(np.linalg.norm(mesh.position - [1.0, 0.16, 0.0], axis=1))
    face = mesh.face[(mesh.face != node).all(axis=1)]
    assert len(mesh.face) - len(face) == 6
    found, holes = model_input.find_ends(mesh.position.astype(np.float64), face)
    assert (len(found), len(holes)) == (ends, 3 - ends)
