"""Faults of a surface are put right, or refused."""

import numpy as np
import pytest

from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.raw import write_raw
from flashgatr.experiments.arteries.vessel import model_input, predict, surface, vtkxml

from ..tubes import tube
from .predictions import SAMPLE, difference, predicted


def repaired(what, raw):
    """A mesh with something wrong that can be put right, and what is said about it."""
    position, face, draw = raw.position, raw.face, np.random.default_rng(0)
    if what == "inward":
        return position, face[:, ::-1], "looked inward"
    if what == "mixed":
        turned = draw.random(len(face)) < 0.3
        return position, np.where(turned[:, None], face[:, ::-1], face), "looked the other way"
    if what == "twice":
        return position, np.concatenate([face, face[5:9]]), "4 faces were there twice"
    if what == "flat":
        return position, np.concatenate([face, [[3, 3, 9]]]), "1 faces had a node twice"
    if what == "double":
        both = np.concatenate([position, position[:50]])
        return (
            both,
            np.where(face < 50, face + raw.nodes, face),
            "50 double nodes were merged, 1,922",
        )
    if what == "unused":
        return np.concatenate([position, [[9, 9, 9]]]), face, "1 nodes belong to no face"
    assert what == "hole"
    middle = np.argmin(np.abs(position[face].mean(axis=1)[:, 0] - 2))
    return position, np.delete(face, middle, axis=0), "1 small holes were closed"


@pytest.mark.parametrize("what", ["inward", "mixed", "twice", "flat", "double", "unused", "hole"])
def test_small_faults_are_put_right_and_said(what, model, raw, inlet, expected, tmp_path):
    position, face, note = repaired(what, raw)
    again = predicted(model, tmp_path, position, face, inlet)
    assert any(note in x for x in again.vessel.notes)
    assert difference(again, expected) < (1e-2 if what == "hole" else 1e-4)


def spoilt(what, raw):
    position, face = raw.position, raw.face
    if what == "fin":
        fin = np.concatenate([position, position[face[100, :1]] + [[0, 0, 1]]])
        return fin, np.concatenate([face, [[*face[100, :2], len(position)]]]), "more than two faces"
    if what == "pieces":
        both = np.concatenate([position, position + np.float32(9)])
        return (
            both,
            np.concatenate([face, face + len(position)]),
            "2 pieces of 1,922, 1,922 nodes.*largest",
        )
    if what == "soup":
        corners = position[face].reshape(-1, 3).astype(np.float64)
        noise = 1e-7 * np.random.default_rng(0).normal(size=corners.shape)
        advice = r"3,840 pieces of .*clean\(tolerance=[78]e-04\)"
        return corners + noise, np.arange(len(corners)).reshape(-1, 3), advice
    if what == "touching":
        both = np.concatenate([position, position + (position[40] - position[1000])])
        return both, np.concatenate([face, face + len(position)]), "touches itself"
    if what == "tiny":
        return position[:90], face[(face < 90).all(axis=1)], "expected at least 100"
    assert what == "round"
    mesh = tube(around=18, length=6.0)
    point = mesh.position.astype(np.float64)
    end = (mesh.position[:, None] == mesh.position[mesh.face[-1, -1]]).all(-1)[:, 0]
    point[end] += [0.0, 0.5, 0.0]
    return point, mesh.face, "it has 1 ends"


@pytest.mark.parametrize("what", ["fin", "pieces", "soup", "touching", "tiny", "round"])
def test_what_is_no_vessel_is_refused(what, model, raw, tmp_path):
    position, face, message = spoilt(what, raw)
    with pytest.raises(ArteryError, match=message) as caught:
        predicted(model, tmp_path, position, face, "1")
    assert "cannot use" in str(caught.value)


@pytest.mark.parametrize("suffix", [".hdf5", ".vtp"])
def test_too_many_nodes_are_refused_before_preparation_with_a_way_out(
    suffix, run, raw, tmp_path, monkeypatch
):
    path = tmp_path / f"mesh{suffix}"
    path.write_bytes(vtkxml.write(raw.position, raw.face, {}))
    if suffix == ".hdf5":
        path.unlink()
        write_raw(path, raw)
    monkeypatch.setattr(predict, "ATTENDED", 1000)
    monkeypatch.setattr(model_input, "prepare_wall", None)
    with pytest.raises(ArteryError, match=r"at most 1,000; .*--anchors 1024, .*Decimate"):
        predict.run(run, path, tmp_path, inlet="1")


def test_a_network_refuses_prepared_meshes_of_too_many_nodes(model, monkeypatch):
    monkeypatch.setattr(predict, "ATTENDED", 100)
    with pytest.raises(ArteryError, match=r"expected at most 100; .*--anchors 1024, .*Decimate"):
        predict.predict_vessel(model, model_input.read_vessel(SAMPLE))


def test_a_strip_without_inside_is_refused():
    turn = np.linspace(0, 2 * np.pi, 60, endpoint=False)[:, None]
    across = np.array([-0.1, 0.1])[None]
    radius = 1 + across * np.cos(turn / 2)
    position = np.stack(
        [radius * np.cos(turn), radius * np.sin(turn), across * np.sin(turn / 2)], -1
    ).reshape(-1, 3)
    a = np.arange(0, 118, 2)
    face = np.concatenate([np.stack([a, a + 1, a + 2], 1), np.stack([a + 1, a + 3, a + 2], 1)])
    face = np.concatenate([face, [[118, 119, 1], [119, 0, 1]]])
    with pytest.raises(ArteryError, match="Möbius"):
        surface.cleaned(position, face)
