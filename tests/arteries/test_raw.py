"""Raw samples come back as written, from a database or a folder; what cannot be a mesh is
refused by name.
"""

import os

import h5py
import numpy as np
import pytest

from flashgatr.experiments.arteries.data import hdf5
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.raw import (
    RawMesh,
    merge,
    read_raw,
    sample_names,
    write_raw,
)

from .tubes import tube

NAMES = {
    "pos": "position",
    "face": "face",
    "inlet_idcs": "inlet",
    "wss": "wss",
    "pressure": "pressure",
}


def small(index=0, **more):
    return tube(around=6, length=2.0, index=index, **more)


def same(a: RawMesh, b: RawMesh):
    return (a.name, a.index, a.parameters) == (b.name, b.index, b.parameters) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in NAMES.values()
    )


def published(path, mesh, **change):
    """A file as published: contiguous, int32. `change` are datasets by their names there; None
    leaves one out.
    """
    with h5py.File(path, "w") as file:
        for name, own in NAMES.items():
            x = change.get(name, getattr(mesh, own))
            if x is not None:
                x = np.asarray(x)
                kind = np.int32 if name not in change and x.dtype.kind == "i" else x.dtype
                file.create_dataset(name, data=x, dtype=kind)
        for name, x in change.items():
            if name not in NAMES:
                file.create_dataset(name, data=x)


def test_a_folder_and_the_database_made_of_it_hold_the_same_samples(tmp_path):
    meshes = [small(k) for k in (0, 2, 11)]
    (tmp_path / "raw").mkdir()
    for mesh in meshes:
        write_raw(tmp_path / "raw" / f"{mesh.name}.hdf5", mesh)
    assert merge(tmp_path / "raw", tmp_path / "database.hdf5") == 3
    for place in (tmp_path / "raw", tmp_path / "database.hdf5"):
        assert sample_names(place) == ["sample_0000", "sample_0002", "sample_0011"]
        for mesh in meshes:
            assert same(read_raw(place, mesh.name), mesh)
    assert sorted(os.listdir(tmp_path / "raw")) == [f"{mesh.name}.hdf5" for mesh in meshes]


def test_a_database_is_found_where_the_original_code_wants_it(tmp_path):
    (tmp_path / "raw").mkdir()
    with h5py.File(tmp_path / "raw" / "database.hdf5", "w") as file:
        write_raw(file.create_group("sample_0007"), small(7))
    assert sample_names(tmp_path) == ["sample_0007"]
    assert same(read_raw(tmp_path, "sample_0007"), small(7))
    write_raw(tmp_path / "sample_0001.hdf5", small(1))
    with pytest.raises(ArteryError, match=r"both database.hdf5 and sample_0001.hdf5"):
        sample_names(tmp_path)


def test_one_file_needs_no_name_and_labels_are_optional(tmp_path):
    mesh = small(labels=False)
    write_raw(tmp_path / "vessel.h5", mesh)
    found = read_raw(tmp_path / "vessel.h5")
    assert (found.name, found.index, found.wss, found.pressure) == ("vessel", -1, None, None)
    published(
        tmp_path / "other.hdf5", mesh, inlet_idcs=None, inlet_idx=mesh.inlet, extra=np.ones(3)
    )
    assert np.array_equal(read_raw(tmp_path / "other.hdf5").inlet, mesh.inlet)
    with pytest.raises(ArteryError, match="holds 2 samples; say which, such as --sample other"):
        read_raw(tmp_path)


def test_parameters_come_back(tmp_path):
    parameters = dict(
        synthetic=True,
        seed=3,
        radius=0.15,
        solver="own",
        odd="json:{",
        nothing=None,
        stenoses=[dict(at=1.0, depth=0.3)],
        ends=[0.0, 1.5],
    )
    mesh = RawMesh(**{**vars(small()), "parameters": {**parameters, "numpy": np.float32(0.5)}})
    write_raw(tmp_path / "sample_0000.hdf5", mesh)
    assert read_raw(tmp_path / "sample_0000.hdf5").parameters == {**parameters, "numpy": 0.5}
    with pytest.raises(ArteryError, match="parameter 'what' cannot be stored"):
        write_raw(
            tmp_path / "x.hdf5", RawMesh(**{**vars(small()), "parameters": {"what": object()}})
        )
    assert not (tmp_path / "x.hdf5").exists()


MESH = small()
WRONG = {
    "no pos": (dict(pos=None), r"no dataset|a group|no such sample|damaged"),
    "no face": (dict(face=None), r"no dataset 'face' \(found: inlet_idcs, pos"),
    "no inlet": (dict(inlet_idcs=None), "no dataset 'inlet_idcs or inlet_idx'"),
    "empty": (dict(pos=np.zeros((0, 3), "f4")), "0 nodes, expected 4 to"),
    "transposed": (dict(pos=MESH.position.T), r"3 nodes, expected 4"),
    "flat": (dict(pos=MESH.position[:, :2]), r"pos has shape \(\d+, 2\)"),
    "nan": (dict(pos=np.where(np.arange(3), MESH.position, np.nan)), "values that are not finite"),
    "overflow": (dict(wss=np.full(MESH.wss.shape, 1e300)), "wss has .* values that are not finite"),
    "text": (
        dict(pressure=np.array([b"a"] * MESH.nodes)),
        "pressure has dtype .*, expected numbers",
    ),
    "too short": (dict(wss=MESH.wss[1:]), "wss has shape"),
    "scalar": (dict(face=3), r"face has shape \(\)"),
    "float faces": (dict(face=MESH.face * 1.0), "face has shape .* and integers"),
    "quadrangles": (dict(face=np.zeros((5, 4), int)), r"face has shape \(5, 4\)"),
    "beyond": (dict(face=MESH.face + 5), r"face names nodes 5 to \d+, expected 0 to"),
    "negative": (dict(inlet_idcs=MESH.inlet - 3), "inlet_idcs names nodes -3"),
    "no inlet nodes": (dict(inlet_idcs=MESH.inlet[:0]), "inlet_idcs is empty"),
    "twice": (dict(inlet_idcs=MESH.inlet[[0, 1, 0]]), "inlet_idcs names some nodes twice"),
    "slivers": (dict(face=MESH.face[:, [0, 0, 1]]), "faces name a node twice"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_a_mesh_is_refused_with_its_name(tmp_path, case):
    change, text = WRONG[case]
    published(tmp_path / "sample_0042.hdf5", MESH)
    assert np.array_equal(read_raw(tmp_path, "sample_0042").face, MESH.face)
    published(tmp_path / "sample_0042.hdf5", MESH, **change)
    with pytest.raises(ArteryError, match=text) as caught:
        read_raw(tmp_path, "sample_0042")
    assert "sample_0042" in str(caught.value)


def forge(path, make):
    """A sample whose positions `make(file)` writes."""
    published(path, MESH)
    with h5py.File(path, "a") as file:
        del file["pos"]
        make(file)


def _external(file):
    file.create_dataset("pos", (9, 3), "f4", external=[("/etc/hostname", 0, 108)])


def _virtual(file):
    layout = h5py.VirtualLayout((9, 3), "f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "pos", (9, 3))
    file.create_virtual_dataset("pos", layout)


FORGED = {
    "a huge claim": (lambda f: f.create_dataset("pos", (10**12, 3), "f4", chunks=(10, 3)), "shape"),
    "a huge chunk": (
        lambda f: f.create_dataset("pos", (9, 3), "f4", chunks=(2**27, 3), maxshape=(None, 3)),
        "chunks of shape",
    ),
    "another file's data": (_external, "has its values in other files"),
    "another file's dataset": (_virtual, "has its values in other files"),
    "an external link": (
        lambda f: f.__setitem__("pos", h5py.ExternalLink("other.hdf5", "pos")),
        "pos is a link|damaged|no dataset",
    ),
    "a soft link": (lambda f: f.__setitem__("pos", h5py.SoftLink("/wss")), "pos is a link"),
    "a group": (lambda f: f.create_group("pos"), "pos is no dataset"),
    "no values": (lambda f: f.create_dataset("pos", data=h5py.Empty("f4")), "pos is no dataset"),
    "references": (
        lambda f: f.create_dataset("pos", data=np.array([f.ref] * 9, h5py.ref_dtype)),
        "expected numbers",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_files_that_claim_too_much_or_reach_elsewhere_are_refused(tmp_path, case):
    make, text = FORGED[case]
    forge(tmp_path / "sample_0001.hdf5", make)
    with pytest.raises(ArteryError, match=text):
        read_raw(tmp_path, "sample_0001")


def test_a_crash_or_a_hang_of_the_reading_process_is_an_error_and_the_next_file_is_read(
    tmp_path, monkeypatch
):
    write_raw(tmp_path / "sample_0000.hdf5", MESH)
    reader = hdf5.Reader()
    reader.names(str(tmp_path / "sample_0000.hdf5"))
    reader._process.kill()  # while nobody asks
    assert reader.names(str(tmp_path / "sample_0000.hdf5")) == [""]  # started again
    program = tmp_path / "program.py"
    program.write_text("import sys, time\nfor line in sys.stdin: time.sleep(60)")
    monkeypatch.setattr(hdf5, "__file__", str(program))
    monkeypatch.setattr(hdf5, "TIMEOUT", 0.3)
    reader.close()
    with pytest.raises(ArteryError, match=r"crashed .* or took more than 0.3 s"):
        reader.names("x")
    program.write_text("import os\nos.abort()")
    with pytest.raises(ArteryError, match="crashed"):
        reader.names("x")
    reader.close()


def test_a_reading_process_that_dies_before_the_request_is_started_again(tmp_path, monkeypatch):
    write_raw(tmp_path / "sample_0000.hdf5", MESH)
    reader = hdf5.Reader()
    reader.names(str(tmp_path / "sample_0000.hdf5"))
    first = reader._process
    first.stdin.close()
    first.wait()
    monkeypatch.setattr(first, "poll", lambda: None)  # it dies after we looked

    class Broken:
        def write(self, content):
            raise BrokenPipeError

    monkeypatch.setattr(first, "stdin", Broken())
    monkeypatch.setattr(first, "communicate", first.stdout.close)
    assert reader.names(str(tmp_path / "sample_0000.hdf5")) == [""]
    assert reader._process is not first
    reader.close()


def test_missing_and_odd_places_are_named(tmp_path):
    with pytest.raises(ArteryError, match=r"there is no .*nowhere"):
        sample_names(tmp_path / "nowhere")
    with pytest.raises(ArteryError, match=r"has no samples: expected database.hdf5"):
        sample_names(tmp_path)
    write_raw(tmp_path / "sample_0000.hdf5", MESH)
    with pytest.raises(ArteryError, match=r"sample_0001.hdf5: there is no such file"):
        read_raw(tmp_path, "sample_0001")
    (tmp_path / "below").mkdir()
    write_raw(tmp_path / "below" / "sample_0002.hdf5", MESH)
    with pytest.raises(ArteryError, match=r"'\.\./sample_0000' is no name of a sample"):
        read_raw(tmp_path / "below", "../sample_0000")
    merge(tmp_path, tmp_path / "all.hdf5")
    with pytest.raises(ArteryError, match=r"sample_0009 in .*all.hdf5: there is no such sample"):
        read_raw(tmp_path / "all.hdf5", "sample_0009")
    (tmp_path / "sample_0000.h5").write_bytes(b"")
    with pytest.raises(ArteryError, match="more than one file of sample_0000"):
        sample_names(tmp_path)
