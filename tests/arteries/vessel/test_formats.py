"""Mesh files of other programs: what is in them is what we read, and a damaged one is an
ArteryError.
"""

import lzma
import random
import zlib

import numpy as np
import pytest

from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.wall import require_closed
from flashgatr.experiments.arteries.vessel import formats, polygons, vtkxml
from flashgatr.experiments.arteries.vessel.surface import volume

from ..test_fuzz import mutated
from ..tubes import tube
from . import meshfiles

ROUNDS = 60  # damaged files of each kind
TUBE = tube(around=12, length=5.0)
FILES = {
    "binary.stl": meshfiles.stl,
    "text.stl": meshfiles.stl_text,
    "a.obj": meshfiles.obj,
    "big.ply": meshfiles.ply,
    "little.ply": lambda x, f: meshfiles.ply(x, f, "<"),
    "text.ply": meshfiles.ply_text,
    "text.vtp": meshfiles.vtk,
    "inline.vtp": lambda x, f: meshfiles.vtk(x, f, form="binary"),
    "inline64.vtp": lambda x, f: meshfiles.vtk(x, f, form="binary", header="UInt64"),
    "apart.vtp": lambda x, f: meshfiles.vtk(x, f, form="binary", apart=True),
    "base64.vtp": lambda x, f: meshfiles.vtk(x, f, form="base64", order=">"),
    "raw.vtp": lambda x, f: meshfiles.vtk(x, f, form="raw", header="UInt64"),
    "zlib.vtp": lambda x, f: meshfiles.vtk(x, f, form="binary", pack=zlib.compress),
    "zlib64.vtp": lambda x, f: meshfiles.vtk(
        x, f, form="base64", pack=zlib.compress, header="UInt64"
    ),
    "lzma.vtp": lambda x, f: meshfiles.vtk(x, f, form="raw", pack=lzma.compress),
    "text.vtu": lambda x, f: meshfiles.vtk(x, f, types=[5] * len(f)),
    "raw.vtu": lambda x, f: meshfiles.vtk(x, f, types=[5] * len(f), form="raw"),
}


def written(folder, name, position=TUBE.position, face=TUBE.face):
    (folder / name).write_bytes(FILES[name](position, face))
    return folder / name


@pytest.mark.parametrize("name", FILES)
def test_every_triangle_is_read_as_it_was_written(name, tmp_path):
    position, face, _ = formats.read(written(tmp_path, name))
    np.testing.assert_array_equal(position[face], TUBE.position[TUBE.face].astype(np.float64))


@pytest.mark.parametrize("write", [meshfiles.ply, meshfiles.ply_text, meshfiles.vtk])
def test_polygons_become_triangles_of_the_same_surface(write, tmp_path):
    corners = np.array([(x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)], np.float64)
    house = np.concatenate([corners, [(0.5, 0.0, 1.4), (0.5, 1.0, 1.4)]])
    faces = [(0, 2, 3, 1), (0, 1, 5, 8, 4), (2, 6, 9, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)]
    faces += [(4, 8, 9, 6), (5, 7, 9, 8)]
    file = tmp_path / f"house.{'vtp' if write is meshfiles.vtk else 'ply'}"
    file.write_bytes(write(house, faces))
    position, face, _ = formats.read(file)
    require_closed(position, face)
    assert volume(position, face) == pytest.approx(1.2)


CUBE = np.array([(x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)], np.float64)
ENTITY = "<!DOCTYPE a [<!ENTITY b 'c'>]><VTKFile type='PolyData'/>"
CELLS = {
    "hexahedron": ([(0, 1, 3, 2, 4, 5, 7, 6)], [12]),
    "voxel": ([tuple(range(8))], [11]),
    "wedges": ([(0, 3, 1, 4, 7, 5), (0, 2, 3, 4, 6, 7)], [13, 13]),
    "tetrahedra": (
        [(0, 1, 3, 7), (0, 3, 2, 7), (0, 2, 6, 7), (0, 6, 4, 7), (0, 4, 5, 7), (0, 5, 1, 7)],
        [10] * 6,
    ),
    "pyramids": ([(0, 1, 3, 2, 7), (0, 2, 6, 4, 7), (0, 4, 5, 1, 7)], [14] * 3),
    "with the wall's own faces": ([(0, 1, 3, 2, 4, 5, 7, 6), (0, 1), (0, 2, 3, 1)], [12, 3, 9]),
    "polygons": (
        [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (1, 3, 7, 5), (3, 2, 6, 7), (2, 0, 4, 6)],
        [7, 9, 7, 9, 7, 9],
    ),
    "pixels": (
        [(0, 2, 1, 3), (4, 5, 6, 7), (0, 1, 4, 5), (1, 3, 5, 7), (3, 2, 7, 6), (2, 0, 6, 4)],
        [8] * 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_of_a_grid_only_the_outer_surface_is_left(name, tmp_path):
    cells, types = CELLS[name]
    (tmp_path / "cube.vtu").write_bytes(meshfiles.vtk(CUBE, cells, types))
    position, face, _ = formats.read(tmp_path / "cube.vtu")
    require_closed(position, face)  # so they face outward, too
    assert len(face) == 12
    assert volume(position, face) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("tetrahedra", (24, 71, 78)),
        ("hexahedron", (25, 29, 33, 72, 79)),
        ("wedges", (26, 31, 32, 73, 80)),
        ("pyramids", (27, 37, 74, 81)),
    ],
)
def test_curved_cells_of_vtk_have_the_faces_of_their_corners(name, kinds, tmp_path):
    cells, types = CELLS[name]
    for kind in kinds:
        (tmp_path / "cube.vtu").write_bytes(meshfiles.vtk(CUBE, cells, [kind] * len(types)))
        position, face, _ = formats.read(tmp_path / "cube.vtu")
        require_closed(position, face)
        assert volume(position, face) == pytest.approx(1.0)


def test_pieces_of_a_file_are_put_together(tmp_path):
    text = meshfiles.vtk(CUBE, [(0, 1, 2)]).decode()
    piece = text[text.index("<Piece") : text.index("</PolyData>")]
    (tmp_path / "two.vtp").write_text(text.replace(piece, 2 * piece))
    position, face, _ = formats.read(tmp_path / "two.vtp")
    assert (len(position), face.tolist()) == (16, [[0, 1, 2], [8, 9, 10]])


def test_our_own_files_hold_what_was_put_in(tmp_path):
    fields = {
        "wss": np.random.default_rng(0).normal(size=(TUBE.nodes, 3)).astype(np.float32),
        "inside": (np.arange(TUBE.nodes) % 2).astype(np.uint8),
    }
    file = tmp_path / "a.vtp"
    file.write_bytes(vtkxml.write(TUBE.position.astype(np.float64), TUBE.face, fields))
    position, face, wss = formats.read(file, "wss")
    np.testing.assert_array_equal(position, TUBE.position)
    np.testing.assert_array_equal(face, TUBE.face)
    np.testing.assert_array_equal(wss, fields["wss"])
    assert formats.read(file, "other")[2] is None
    pyvista = pytest.importorskip("pyvista")
    seen = pyvista.read(file)
    np.testing.assert_array_equal(seen.points, TUBE.position)
    np.testing.assert_array_equal(seen.regular_faces, TUBE.face)
    for name, x in fields.items():
        np.testing.assert_array_equal(seen.point_data[name], x)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["vtp", "vtu", "stl", "ply", "obj"])
def test_what_vtk_writes_is_read(kind, binary, tmp_path):
    pyvista = pytest.importorskip("pyvista")
    mesh = pyvista.PolyData.from_regular_faces(TUBE.position, TUBE.face)
    if kind == "vtu":
        mesh = mesh.cast_to_unstructured_grid()
    mesh.point_data["mine"] = TUBE.wss
    options = {} if kind == "obj" else dict(binary=binary)
    mesh.save(tmp_path / f"a.{kind}", **options)
    position, face, mine = formats.read(tmp_path / f"a.{kind}", "mine")
    exact = binary and kind != "obj"
    np.testing.assert_allclose(
        position[face],
        TUBE.position[TUBE.face],
        rtol=0 if exact else 1e-5,
        atol=0 if exact else 1e-6,
    )
    if kind in ("vtp", "vtu"):
        np.testing.assert_allclose(mine, TUBE.wss, rtol=1e-6)


REFUSED = {
    "a.vtk": (b"", "expected one of .vtp, .vtu, .stl, .ply, .obj"),
    "a.stl": (b"solid nothing", "no faces"),
    "b.stl": (b" " * 80 + b"\x05\0\0\0" + b"x" * 70, "5 triangles, but ends before"),
    "c.stl": (b"solid\nvertex 0 0 0\nvertex 1 0 0\n", "2 corners"),
    "a.obj": (b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 4\n", "nodes 0 to 3, but it has 3"),
    "b.obj": (b"v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "not finite"),
    "e.obj": (b"v 0 0 1e30\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "1e\\+30 from the origin"),
    "c.obj": (b"v 0 0 0\nv 1 0 0\nf 1 2\n", "fewer than three nodes"),
    "d.obj": (b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 0 1 2\n", "counted from 1"),
    "f.obj": (b"v 0 0 0\nv 1 0 0\nf 1 2 3\nv 0 1", "node 3 of 3 has 2 coordinates, expected 3"),
    "d.stl": (b"solid\nvertex 0 0 0\nvertex 1 0 0\nvertex 0", "node 3 of 3 has 1 coordinates"),
    "a.ply": (b"plywood", "header"),
    "b.ply": (b"ply\nformat wood 1.0\nend_header\n", "format is 'wood'"),
    "c.ply": (meshfiles.ply(CUBE, [(0, 1, 2)])[:-4], "ends too early"),
    "d.ply": (b"ply\nformat ascii 1.0\nelement vertex 99999\nend_header\n", "99,999 of vertex"),
    "a.vtp": (b"<VTKFile type='ImageData'/>", "'?ImageData"),
    "b16.vtp": (ENTITY.encode("utf-16"), "UTF-8"),
    "b.vtp": (ENTITY.encode(), "entities"),
    "c.vtp": (meshfiles.vtk(CUBE, [(0, 1, 2)], form="raw")[:-60], "middle of an array"),
    "d.vtp": (
        meshfiles.vtk(CUBE, [(0, 1, 2)], form="binary", pack=zlib.compress).replace(
            b"ZLib", b"LZ4"
        ),
        "compressed by vtkLZ4DataCompressor; open it in ParaView",
    ),
    "e.vtp": (b"no XML", "syntax error"),
    "f.vtp": (meshfiles.vtk(CUBE, []), "no faces"),
    "a.vtu": (meshfiles.vtk(CUBE, [(0, 1, 2, 3)], [42]), "VTK's kind 42; use ParaView"),
    "b.vtu": (meshfiles.vtk(CUBE, [(0, 1, 2)], [10]), "too few nodes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_surface_is_refused_with_a_reason(name, tmp_path):
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArteryError, match=message) as caught:
        formats.read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_required_array_that_is_missing_is_an_error_that_names_those_there_are(tmp_path):
    fields = {"mine": CUBE, "yours": CUBE}
    text = meshfiles.vtk(CUBE, [(0, 1, 2)], fields=fields).decode()
    at_cells = "<CellData><DataArray type='Int8' Name='area'>1</DataArray></CellData><Points>"
    file = tmp_path / "a.vtp"
    file.write_text(text.replace("<Points>", at_cells))
    assert formats.read(file, "area")[2] is None
    np.testing.assert_array_equal(formats.read(file, "yours", required=True)[2], CUBE)
    with pytest.raises(ArteryError, match=r"his is not there, .* there are: mine, yours"):
        formats.read(file, "his", required=True)
    with pytest.raises(ArteryError, match=r"area is an array at its cells, .*: mine, yours"):
        formats.read(file, "area", required=True)
    file = written(tmp_path, "binary.stl")
    with pytest.raises(ArteryError, match="stl files have no point arrays such as mine"):
        formats.read(file, "mine", required=True)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_give_a_surface_or_our_error(name, tmp_path):
    small = tube(around=6, length=0.6)
    good = written(tmp_path, name, small.position, small.face).read_bytes()
    chance = random.Random(name)
    refused = 0
    for _ in range(ROUNDS):
        (tmp_path / name).write_bytes(mutated(good, chance, 600))
        try:
            position, face, _ = formats.read(tmp_path / name, "wss")
        except ArteryError:
            refused += 1
        else:
            assert np.isfinite(position).all()
            assert position[face].shape == (len(face), 3, 3)
    assert refused


def test_a_binary_stl_of_one_triangle_may_be_followed_by_other_bytes():
    position = np.eye(3)
    content = meshfiles.stl(position, np.array([[0, 1, 2]])) + b"written by a scanner"
    corners, nodes, offsets = polygons.stl(content)
    assert corners.tolist() == position.tolist()
    assert (nodes.tolist(), offsets.tolist()) == ([0, 1, 2], [0, 3])
