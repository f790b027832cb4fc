"""The inputs of the models follow their definitions; odd surfaces are refused with a reason."""

from dataclasses import replace

import numpy as np
import pytest

from flashgatr.experiments.arteries.data import heat_method
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.wall import (
    geodesics,
    inlet_diameter,
    normals,
    prepare,
)

from .tubes import tube


def test_normals_are_the_mean_of_unit_face_normals_without_area_weights():
    # A corner where a large and a small face meet at a right angle: each counts the same.
    position = np.array([[0, 0, 0], [9, 0, 0], [0, 9, 0], [0, 0, 1]], np.float32)
    found = normals(position, np.array([[0, 1, 2], [0, 2, 3]]))
    half = np.sqrt(0.5)
    assert np.allclose(found, [[half, 0, half], [0, 0, 1], [half, 0, half], [1, 0, 0]], atol=1e-6)
    assert found.dtype == np.float32


def test_normals_of_a_round_tube_point_outward():
    mesh = tube(around=24, bend=0.0)
    wall = (mesh.position[:, 0] > 0.1) & (mesh.position[:, 0] < 6.9)
    radial = mesh.position[wall] * [0, 1, 1]
    radial /= np.linalg.norm(radial, axis=1, keepdims=True)
    assert np.sum(normals(mesh.position, mesh.face)[wall] * radial, axis=1).min() > 0.995


def test_faces_without_area_say_nothing_and_nodes_without_a_normal_are_an_error():
    position = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [2, 0, 0]], np.float32)
    face = np.array([[0, 1, 2], [0, 1, 3]])
    with pytest.raises(ArteryError, match="1 nodes have no normal"):
        normals(position, face)
    face = np.array([[0, 1, 2], [0, 1, 3], [1, 3, 2]])
    assert np.allclose(normals(position, face), [[0, 0, 1]] * 4)


def test_the_inlet_diameter_is_that_of_a_circle_with_the_caps_area():
    mesh = tube(around=36, radius=0.16)
    area = 0.5 * 36 * 0.16**2 * np.sin(2 * np.pi / 36)  # a regular polygon
    assert np.isclose(
        inlet_diameter(mesh.position, mesh.face, mesh.inlet), 2 * np.sqrt(area / np.pi)
    )
    with pytest.raises(ArteryError, match="the 36 inlet nodes span no face"):
        inlet_diameter(mesh.position, mesh.face, np.arange(36))


@pytest.mark.parametrize(("around", "bend"), [(18, 0.0), (18, 1.0), (24, 1.0), (36, 1.0)])
def test_both_heat_methods_agree(around, bend):
    pytest.importorskip("potpourri3d")
    mesh = tube(around=around, bend=bend, length=6.3, index=around)
    one, other = (
        geodesics(mesh.position, mesh.face, mesh.inlet, method)
        for method in ("potpourri3d", "scipy")
    )
    assert np.abs(one - other).max() <= 0.03
    for found in (one, other):
        assert found.dtype == np.float32
        assert abs(found[mesh.inlet].mean()) < 1e-5


def test_distances_grow_with_the_length_of_a_straight_tube():
    mesh = tube(around=24, bend=0.0)
    found = geodesics(mesh.position, mesh.face, mesh.inlet, "scipy")
    wall = (mesh.position[:, 0] > 0.5) & (mesh.position[:, 0] < 6.5)
    slope, start = np.polyfit(mesh.position[wall, 0], found[wall], 1)
    assert abs(slope - 1) < 0.02
    assert abs(start) < 0.1
    assert abs(found[wall] - start - slope * mesh.position[wall, 0]).max() < 0.03


@pytest.mark.parametrize(("length", "edges"), [(75.0, 500), (160.0, 1000)])
@pytest.mark.parametrize("method", ["potpourri3d", "scipy"])
def test_distances_grow_to_the_end_of_a_mesh_of_many_edges(method, length, edges):
    if method == "potpourri3d":
        pytest.importorskip("potpourri3d")
    mesh = tube(around=6, length=length, bend=0.0, jitter=0.0)
    farthest, edge = heat_method._farthest(mesh.position, mesh.face, mesh.inlet)
    assert farthest / edge > edges
    found, x = geodesics(mesh.position, mesh.face, mesh.inlet, method), mesh.position[:, 0]
    assert 0.97 * length < found.max() < 1.02 * length
    end = (x > 0.9 * length) & (x < 0.99 * length)
    assert abs(np.polyfit(x[end], found[end], 1)[0] - 1) < 0.05


@pytest.mark.parametrize("method", ["potpourri3d", "scipy"])
def test_meshes_of_fewer_edges_get_the_published_time_step(method, monkeypatch):
    if method == "potpourri3d":
        pytest.importorskip("potpourri3d")
    mesh = tube(around=12, length=20.0)
    farthest, edge = heat_method._farthest(mesh.position, mesh.face, mesh.inlet)
    assert 230 < farthest / edge < heat_method.LIMIT
    before = geodesics(mesh.position, mesh.face, mesh.inlet, method)
    monkeypatch.setattr(heat_method, "LIMIT", np.inf)
    assert np.array_equal(geodesics(mesh.position, mesh.face, mesh.inlet, method), before)
    monkeypatch.setattr(heat_method, "LIMIT", 100.0)
    assert not np.array_equal(geodesics(mesh.position, mesh.face, mesh.inlet, method), before)


def test_distances_that_do_not_reach_the_end_are_refused(monkeypatch):
    pytest.importorskip("potpourri3d")
    mesh = tube(around=6, length=100.0, bend=0.0, jitter=0.0)
    monkeypatch.setattr(heat_method, "LIMIT", np.inf)
    with pytest.raises(ArteryError, match=r"its farthest node is about 100 cm away"):
        geodesics(mesh.position, mesh.face, mesh.inlet, "potpourri3d")


def test_flat_triangles_whose_edges_run_in_zigzag_are_no_reason_to_refuse():
    mesh = tube(around=18, length=20.0, bend=0.0)
    position = mesh.position * np.float32([0.3, 1, 1])
    farthest, _ = heat_method._farthest(position, mesh.face, mesh.inlet)
    found = geodesics(position, mesh.face, mesh.inlet, "scipy").max()
    assert found < 0.7 * farthest
    assert abs(found - 6.1) < 0.2


@pytest.mark.parametrize("method", ["potpourri3d", "scipy"])
def test_extensions_are_cut_off_and_the_margin_masked_as_published(method):
    if method == "potpourri3d":
        pytest.importorskip("potpourri3d")
    raw = tube(around=18)
    mesh = prepare(raw, method=method)
    geodesic, d = geodesics(raw.position, raw.face, raw.inlet, method), mesh.inlet_diameter
    keep = (geodesic > geodesic.min() + 4 * d) & (geodesic < geodesic.max() - 4 * d)
    assert 0.3 < keep.mean() < 0.9
    kept = geodesic[keep]
    assert np.array_equal(mesh.geodesic, kept)  # neither scaled nor shifted again
    assert np.array_equal(mesh.mask, (kept > kept.min() + d) & (kept < kept.max() - d))
    assert np.array_equal(mesh.position, raw.position[keep])
    assert np.array_equal(mesh.wss, raw.wss[keep])
    assert np.array_equal(mesh.normal, normals(raw.position, raw.face)[keep])  # of the uncut mesh
    corners = {tuple(x) for x in raw.position[raw.face[keep[raw.face].all(1)]].reshape(-1, 9)}
    assert {tuple(x) for x in mesh.position[mesh.face].reshape(-1, 9)} == corners
    assert (mesh.name, mesh.index) == (raw.name, raw.index)


def test_without_a_cut_all_nodes_are_kept():
    raw = tube(around=12, length=2.0, labels=False)
    mesh = prepare(raw, method="scipy", cut=False)
    assert mesh.nodes == raw.nodes
    assert mesh.wss is None
    assert np.array_equal(mesh.face, raw.face)
    assert 0 < mesh.mask.sum() < mesh.nodes


def test_the_fallback_is_taken_where_potpourri3d_is_missing(monkeypatch):
    raw = tube(around=12)
    monkeypatch.setattr(heat_method, "find_spec", lambda name: None)
    assert np.array_equal(prepare(raw).geodesic, prepare(raw, method="scipy").geodesic)
    with pytest.raises(ArteryError, match=r'pip install "flashgatr\[mesh\]"'):
        prepare(raw, method="potpourri3d")
    with pytest.raises(ValueError, match="unknown method 'exact'"):
        prepare(raw, method="exact")


def _two_pieces(raw):
    return replace(
        raw,
        position=np.concatenate([raw.position, raw.position + 100]),
        face=np.concatenate([raw.face, raw.face + raw.nodes]),
        wss=np.concatenate([raw.wss, raw.wss]),
    )


ODD = {
    "too short": (lambda raw: tube(around=12, length=2.0), r"2\.\d+ cm long .* cut=False"),
    "a hole": (lambda raw: replace(raw, face=raw.face[1:]), "3 edges belong to one face only"),
    "inside out": (lambda raw: replace(raw, face=raw.face[:, ::-1]), "its faces look inward"),
    "a face turned": (
        lambda raw: replace(raw, face=np.concatenate([raw.face[:1, ::-1], raw.face[1:]])),
        "3 edges have two faces on the same side",
    ),
    "a face twice": (
        lambda raw: replace(raw, face=np.concatenate([raw.face, raw.face[:1]])),
        "3 edges have two faces on the same side",
    ),
    "two pieces": (_two_pieces, "falls into 2 pieces"),
    "a point": (lambda raw: replace(raw, position=0 * raw.position), "look inward"),
    "a loose node": (
        lambda raw: replace(raw, position=np.concatenate([raw.position, np.ones((1, 3), "f4")])),
        "1 nodes have no normal",
    ),
    "wrong inlet": (
        lambda raw: replace(raw, inlet=raw.inlet[:1]),
        "the 1 inlet nodes span no face",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_surfaces_are_refused_with_name_and_reason(case):
    change, text = ODD[case]
    with pytest.raises(ArteryError, match=f"cannot prepare sample_0000: .*{text}"):
        prepare(change(tube(around=12)), method="scipy")
