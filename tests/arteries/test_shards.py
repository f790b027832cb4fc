"""Shards come back bit for bit or not at all; compact copies come back within their rounding."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

from flashgatr.experiments.arteries.data import shards
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.shards import read_index, read_shard, write_shard
from flashgatr.experiments.arteries.data.wall import prepare
from flashgatr.io import files
from flashgatr.io.files import StoredArray

from .test_fuzz import same
from .tubes import compact, tube

HEADER = {"source": "tubes", "settings": {"cut": True}}


@pytest.fixture(scope="module")
def meshes():
    return [prepare(tube(around=6 + 6 * (k % 2), index=k), method="scipy") for k in (3, 1, 1700)]


@pytest.fixture
def file(meshes, tmp_path):
    path = tmp_path / "shard.safetensors"
    write_shard(path, meshes, HEADER)
    return path


def test_meshes_come_back_bit_for_bit(meshes, file):
    found = read_shard(file)
    assert all(map(same, found, meshes))
    assert [x.dtype for x in (found[0].position, found[0].face, found[0].mask)] == ["f4", "i8", "?"]
    assert [mesh.index for mesh in read_shard(file, {1, 1700, 5})] == [1, 1700]
    index, header = read_index(file)
    assert index == [3, 1, 1700]
    assert header["names"] == ["sample_0003", "sample_0001", "sample_1700"]
    assert {key: header[key] for key in HEADER} == HEADER


def test_the_same_meshes_make_the_same_file(meshes, file):
    before = file.read_bytes()
    write_shard(file, meshes, HEADER)
    assert file.read_bytes() == before


def test_meshes_without_labels_or_faces_come_back(meshes, tmp_path):
    bare = [replace(mesh, wss=None, face=None) for mesh in meshes]
    write_shard(tmp_path / "x.safetensors", bare, {})
    found = read_shard(tmp_path / "x.safetensors")
    assert all(mesh.wss is None and mesh.face is None for mesh in found)
    with pytest.raises(ArteryError, match="some meshes of the shard have no wss"):
        write_shard(tmp_path / "y.safetensors", [meshes[0], bare[0]], {})
    with pytest.raises(ValueError, match="at least one mesh"):
        write_shard(tmp_path / "y.safetensors", [], {})


def test_compact_copies_come_back_within_their_rounding(meshes, tmp_path):
    compact(tmp_path / "train_00.safetensors", meshes)
    for a, b in zip(read_shard(tmp_path / "train_00.safetensors"), meshes, strict=True):
        assert (a.name, a.index, a.face) == (b.name, b.index, None)
        assert np.abs(a.position - b.position).max() < 1e-4
        assert np.abs(a.geodesic - b.geodesic).max() < 1e-4
        assert np.abs(a.normal - b.normal).max() < 1e-3
        assert np.abs(np.linalg.norm(a.normal, axis=1) - 1).max() < 1e-6
        assert np.abs(a.wss - b.wss).max() < 0.02
        assert (a.mask != b.mask).sum() <= 2  # of nodes right at the margin
    assert read_index(tmp_path / "train_00.safetensors") == ([3, 1, 1700], {})


def test_one_flipped_bit_is_found(file):
    good = file.read_bytes()
    for place in (-1, len(good) // 2, -len(good) // 3):
        bad = bytearray(good)
        bad[place] ^= 1
        file.write_bytes(bad)
        with pytest.raises(ArteryError, match=r"shard.safetensors is damaged .*SHA-256"):
            read_shard(file)


def test_a_file_cut_short_is_refused(file):
    good = file.read_bytes()
    for size in (0, 7, 100, len(good) - 1):
        file.write_bytes(good[:size])
        for read in (read_shard, read_index):
            with pytest.raises(ArteryError, match=r"shard.safetensors"):
                read(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(ArteryError, match=r"cannot read .*shard.safetensors"):
        read_shard(file)


def test_a_crash_while_writing_leaves_the_old_file(meshes, file, monkeypatch):
    before = file.read_bytes()

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_shard(file, meshes[:1], HEADER)
    assert file.read_bytes() == before


def forged(file, *, drop=(), header=(), metadata=None, **tensors):
    """A file whose hash is right though its content is not."""
    new = {**load_file(file), **tensors}
    new = {name: x for name, x in new.items() if name not in drop}
    head = dict(format=1, names=["a", "b", "c"], source="", settings={}) | dict(header)
    order = {name: new[name] for name in shards.OWN if name in new}
    content = {name: StoredArray("", x.shape, x.tobytes()) for name, x in order.items()}
    head = {"sha256": files.header_digest(head, content)} | head
    head = {key: x for key, x in head.items() if key not in drop}
    file.write_bytes(save(new, {"arteries": json.dumps(head)} if metadata is None else metadata))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(metadata={}), "does not say how it was made"),
        (dict(metadata={"arteries": "[" * 100_000}), "damaged"),
        (dict(metadata={"arteries": "[]"}), "format is None, this version reads 1"),
        (dict(header=dict(format=2)), "format is 2, this version reads 1"),
        (dict(drop=["sha256"]), "does not say its sha256"),
        (dict(header=dict(names=["a"])), "names 1 meshes, expected 3"),
        (dict(header=dict(names=[1, 2, 3])), "names 3 meshes"),
        (dict(drop=["normal"]), "its tensors are"),
        (dict(drop=["face_offsets"]), "its tensors are"),
        (dict(extra=np.ones(1)), "its tensors are"),
        (dict(index=np.arange(3)), "index has dtype I64, expected I32"),
        (dict(index=np.array([1, 2, 1], np.int32)), "twice the same"),
        (dict(index=np.array([1, -2, 3], np.int32)), "numbers below 0"),
        (dict(index=np.zeros((0,), np.int32)), "has shape"),
        (dict(offsets=np.zeros(4, np.int64)), "offsets do not grow from 0 to"),
        (dict(offsets=np.array([0, 9, 5, 10**12])), "offsets do not grow"),
        (dict(offsets=np.zeros(2, np.int64)), r"offsets has shape \(2,\), expected \(4,\)"),
        (dict(inlet_diameter=np.array([1, 0, 1], np.float32)), "not above 0"),
        (dict(inlet_diameter=np.array([1, np.nan, 1], np.float32)), "not finite"),
        (dict(inlet_diameter=np.full(3, 99, np.float32)), "a has no nodes farther than"),
        (dict(geodesic=np.ones(9, np.float32)), "expected"),
        (dict(face=np.full((0, 3), 1, np.int32)), "face_offsets do not grow"),
    ],
)
def test_content_that_makes_no_sense_is_refused(file, change, text):
    forged(file)
    read_shard(file)
    forged(file, **change)
    with pytest.raises(ArteryError, match=text) as caught:
        read_shard(file)
    assert "shard.safetensors" in str(caught.value)


def test_faces_must_name_nodes_of_their_mesh(file):
    face = load_file(file)["face"]
    for wrong in (-1, 10_000):
        bad = face.copy()
        bad[5, 1] = wrong
        forged(file, face=bad)
        with pytest.raises(ArteryError, match="faces of a name nodes that it does not have"):
            read_shard(file)


def test_compact_copies_that_make_no_sense_are_refused(meshes, tmp_path):
    path = tmp_path / "x.safetensors"
    compact(path, meshes)
    good = load_file(path)
    for name, bad, text in (
        ("normal", 0 * good["normal"], "normals of sample_0003 are not unit vectors"),
        ("wss", good["wss"] * np.float16(np.nan), "wss has entries"),
        ("position_scale", good["position_scale"][:1], "position_scale has shape"),
        ("geodesic_scale", 0 * good["geodesic_scale"], "has no nodes farther"),
    ):
        save_file({**good, name: bad}, path)
        with pytest.raises(ArteryError, match=text):
            read_shard(path)
