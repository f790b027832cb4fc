"""Damaged files give an ArteryError or a mesh, never another exception, a crash or a hang; ours
never give another mesh.
"""

import random
import struct
from dataclasses import replace

import numpy as np
import pytest

from flashgatr.experiments.arteries.data import hdf5
from flashgatr.experiments.arteries.data.mesh import ArteryError, Mesh
from flashgatr.experiments.arteries.data.raw import merge, read_raw, sample_names, write_raw
from flashgatr.experiments.arteries.data.shards import read_index, read_shard, write_shard
from flashgatr.experiments.arteries.data.wall import prepare

from .tubes import compact, tube

SMALL = dict(around=6, length=5.0)


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(hdf5, "TIMEOUT", 2.0)


def mutated(good, chance, hot):
    """Bytes changed, mostly among the first `hot`, which tell what the others mean; the rest
    cut, grown or moved.
    """
    bad = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        kind = chance.random()
        place = chance.randrange(min(hot, len(bad)) if chance.random() < 0.8 else len(bad))
        if kind < 0.3:
            bad[place] = chance.randrange(256)
        elif kind < 0.5:
            bad[place] ^= 1 << chance.randrange(8)
        elif kind < 0.6:
            bad[place] = ord(chance.choice('0123456789-.eE[]{}",: nul'))
        elif kind < 0.7:
            bad[place : place + 8] = struct.pack(
                "<Q",
                chance.choice([0, 1, 2**32, 10**12, 2**63, 2**64 - 1, chance.randrange(2**20)]),
            )
        elif kind < 0.8:
            bad[place:place] = bad[place : place + chance.randrange(40)]
        elif kind < 0.9:
            del bad[place : place + chance.randrange(1, 9)]
        else:
            other = chance.randrange(len(bad))
            bad[place : place + 16] = bad[other : other + 16]
        if not bad:
            break
    return bytes(bad[: chance.randrange(len(bad))] if bad and chance.random() < 0.1 else bad)


def require_sound(mesh: Mesh):
    count = mesh.nodes
    vectors = [x for x in (mesh.position, mesh.normal, mesh.wss) if x is not None]
    assert all(x.shape == (count, 3) for x in vectors)
    assert mesh.geodesic.shape == mesh.mask.shape == (count,)
    assert mesh.mask.any()
    assert all(np.isfinite(x).all() for x in (mesh.geodesic, *vectors))
    if mesh.face is not None and len(mesh.face):
        assert mesh.face.min() >= 0
        assert mesh.face.max() < count


def same(a: Mesh, b: Mesh):
    names = ("position", "normal", "geodesic", "wss", "face", "mask")
    return (a.name, a.index, a.inlet_diameter) == (b.name, b.index, b.inlet_diameter) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in names
    )


def mutate_shards(folder, times, write, exact):
    file = folder / "shard.safetensors"
    write(file, [prepare(tube(**SMALL, index=k), method="scipy") for k in range(3)])
    good, content = read_shard(file), file.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    chance, refused = random.Random(0), 0
    for _ in range(times):
        file.write_bytes(mutated(content, chance, header))
        try:
            found = read_shard(file)
        except ArteryError:
            refused += 1
        else:
            for mesh in found:
                require_sound(mesh)
            assert not exact or (len(found) == 3 and all(map(same, found, good)))
        try:
            read_index(file)
        except ArteryError:
            continue
    assert refused > times // 2


def mutate_hdf5(folder, times, database):
    parameters = dict(synthetic=True, radius=0.16, solver="own", seed=3, ends=[0.0, 5.0])
    write_raw(folder / "sample_0000.hdf5", replace(tube(**SMALL), parameters=parameters))
    file = folder / "sample_0000.hdf5"
    if database:
        merge(folder, folder / "database.hdf5")
        file.unlink()
        file = folder / "database.hdf5"
    content = file.read_bytes()
    chance, refused = random.Random(1), 0
    for _ in range(times):
        file.write_bytes(mutated(content, chance, len(content)))
        try:
            for name in sample_names(file):
                require_sound(prepare(read_raw(file, name), method="scipy"))
        except ArteryError:
            refused += 1
    assert refused > times // 4


SHARDS = {
    "own": (lambda path, meshes: write_shard(path, meshes, {"source": "tubes"}), True),
    "compact": (compact, False),
}


@pytest.mark.parametrize("kind", SHARDS)
def test_mutated_shards_give_our_errors_or_meshes(tmp_path, kind):
    mutate_shards(tmp_path, 300, *SHARDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARDS)
def test_ten_thousand_mutated_shards_give_our_errors_or_meshes(tmp_path, kind):
    mutate_shards(tmp_path, 10_000, *SHARDS[kind])


@pytest.mark.parametrize("database", [False, True])
def test_mutated_hdf5_files_give_our_errors_or_meshes(tmp_path, database):
    mutate_hdf5(tmp_path, 150, database)


@pytest.mark.slow
@pytest.mark.parametrize("database", [False, True])
def test_ten_thousand_mutated_hdf5_files_give_our_errors_or_meshes(tmp_path, database):
    mutate_hdf5(tmp_path, 10_000, database)
