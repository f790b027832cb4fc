"""Surface meshes from .vtp, .vtu (VTK's XML), .stl, .ply and .obj files.

Polygons are split into triangles; of volumes, the outer surface is taken. Files are parsed here,
with numpy and the standard library: they cannot run code, and damaged ones raise an ArteryError.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

import numpy as np

from ..data.mesh import Array, ArteryError
from . import polygons, vtkxml

MAX_FILE = 1 << 30  # bytes
FARTHEST = 1e7  # largest coordinate, in any unit
SUFFIXES = (".vtp", ".vtu", ".stl", ".ply", ".obj")
DAMAGE = (
    ArteryError,
    ValueError,
    LookupError,
    TypeError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OverflowError,
    MemoryError,
    ElementTree.ParseError,
)

# The faces of VTK's cells, by cell type, as indices of corners. Cells of higher order list the same
# corners first.
Faces: TypeAlias = list[tuple[int, ...]]
_POLYGON = 7
_FLAT: dict[int, Faces] = {
    **{kind: [(0, 1, 2)] for kind in (5, 22, 34, 69)},
    8: [(0, 1, 3, 2)],
    **{kind: [(0, 1, 2, 3)] for kind in (9, 23, 28, 70)},
}
_TETRAHEDRON: Faces = [(0, 2, 1), (0, 1, 3), (1, 2, 3), (0, 3, 2)]
_HEXAHEDRON: Faces = [
    (0, 3, 2, 1),
    (4, 5, 6, 7),
    (0, 1, 5, 4),
    (1, 2, 6, 5),
    (2, 3, 7, 6),
    (3, 0, 4, 7),
]
_VOXEL: Faces = [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (1, 3, 7, 5), (3, 2, 6, 7), (2, 0, 4, 6)]
_WEDGE: Faces = [(0, 1, 2), (3, 5, 4), (0, 3, 4, 1), (1, 4, 5, 2), (2, 5, 3, 0)]
_PYRAMID: Faces = [(0, 3, 2, 1), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4)]
_VOLUMES: dict[int, Faces] = {
    **dict.fromkeys((10, 24, 71, 78), _TETRAHEDRON),
    11: _VOXEL,
    **dict.fromkeys((12, 25, 29, 33, 72, 79), _HEXAHEDRON),
    **dict.fromkeys((13, 26, 31, 32, 73, 80), _WEDGE),
    **dict.fromkeys((14, 27, 37, 74, 81), _PYRAMID),
}
_LINES = {0, 1, 2, 3, 4, 21, 35, 68, 75}  # lines, points and empty cells: ignored


def read(
    path: Path, wanted: str | None = None, *, required: bool = False
) -> tuple[Array, Array, Array | None]:
    """Positions (N, 3) float64, triangles (M, 3), and the point array (N, …) called `wanted`, if
    any.

    If that array is `required` and missing, the error lists the existing arrays.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ArteryError(
            f"cannot read {path}: expected one of {', '.join(SUFFIXES)}, or .hdf5 as the "
            "published data"
        )
    if path.stat().st_size > MAX_FILE:
        raise ArteryError(f"{path} has more than {MAX_FILE >> 30} GiB; that is no vessel wall")
    content = path.read_bytes()
    try:
        with np.errstate(all="ignore"):  # numbers that are not finite are refused below
            position, face, field = _parsed(kind, content, wanted, required)
        _check(position, face)
    except DAMAGE as error:
        what = "" if isinstance(error, ArteryError) else f"it is damaged, or not a {kind} file; "
        raise ArteryError(f"cannot read {path}: {what}{error or type(error).__name__}") from error
    return position, face, field


def _parsed(
    kind: str, content: bytes, wanted: str | None, required: bool
) -> tuple[Array, Array, Array | None]:
    if kind in (".vtp", ".vtu"):
        cells = vtkxml.read(content, (wanted,) if wanted else ())
        field = cells.fields.get(wanted) if wanted else None
        if required and field is None:
            listed = ", ".join(cells.point_arrays) or "none"
            what = "is an array at its cells" if wanted in cells.cell_arrays else "is not there"
            raise ArteryError(
                f"{wanted} {what}, expected an array at its points; at its points there are: "
                f"{listed}"
            )
        return cells.position, _surface(cells), field
    if required:
        raise ArteryError(f"{kind} files have no point arrays such as {wanted}; use .vtp or .vtu")
    reader = {".stl": polygons.stl, ".ply": polygons.ply, ".obj": polygons.obj}[kind]
    position, connectivity, offsets = reader(content)
    return position, _triangles(connectivity, offsets), None


def _check(position: Array, face: Array) -> None:
    if not len(face):
        raise ArteryError("it has no faces; expected a surface, not points or lines")
    low, high = int(face.min()), int(face.max())
    if low < 0 or high >= len(position):
        raise ArteryError(f"its faces name nodes {low} to {high}, but it has {len(position)}")
    wrong = int((~np.isfinite(position)).sum())
    if wrong:
        raise ArteryError(f"{wrong:,} of its coordinates are not finite")
    farthest = float(np.abs(position).max())
    if farthest > FARTHEST:
        raise ArteryError(f"it lies {farthest:.0e} from the origin; move it nearer")


def _triangles(connectivity: Array, offsets: Array) -> Array:
    """Split polygons into fans of triangles."""
    sizes = np.diff(offsets)
    if (sizes < 3).any():
        raise ArteryError(f"{int((sizes < 3).sum())} faces have fewer than three nodes")
    parts = np.maximum(sizes - 2, 0)
    first = np.repeat(offsets[:-1], parts)
    place = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    corners = np.stack([first, first + place + 1, first + place + 2], axis=1)
    return np.asarray(connectivity[corners], dtype=np.int64)


def _surface(cells: vtkxml.Cells) -> Array:
    """The triangles of a file: the outer surface of its volumes, if it has any, else its flat
    cells.
    """
    if cells.types is None:
        return _triangles(cells.connectivity, cells.offsets)
    flat: list[Array] = []
    solid: list[Array] = []
    sizes = np.diff(cells.offsets)
    for kind in (int(k) for k in np.unique(cells.types) if k not in _LINES):
        chosen = cells.types == kind
        if kind == _POLYGON:
            places = np.repeat(chosen, sizes)
            flat.append(
                _triangles(cells.connectivity[places], np.cumsum([0, *sizes[chosen].tolist()]))
            )
            continue
        faces = _VOLUMES.get(kind) or _FLAT.get(kind)
        if faces is None:
            raise ArteryError(
                f"it has cells of VTK's kind {kind}; use ParaView's filter Extract Surface"
            )
        if sizes[chosen].min() <= max(k for face in faces for k in face):
            raise ArteryError(f"cells of VTK's kind {kind} have too few nodes")
        starts = cells.offsets[:-1][chosen]
        corners = [cells.connectivity[starts[:, None] + np.array(face)] for face in faces]
        if kind in _VOLUMES:
            solid += corners
        else:
            flat += [_fans(x) for x in corners]
    if solid:
        flat = [_fans(_once([x for x in solid if x.shape[1] == k])) for k in (3, 4)]
    return np.concatenate(flat) if flat else np.zeros((0, 3), np.int64)


def _fans(polygon: Array) -> Array:
    """Split quadrilaterals (M, 4) into triangles; triangles (M, 3) stay as they are."""
    return np.concatenate([polygon[:, [0, k - 1, k]] for k in range(2, polygon.shape[1])])


def _once(faces: list[Array]) -> Array:
    """The faces that occur once: they belong to one volume only, and thus to the outer surface."""
    if not faces:
        return np.zeros((0, 3), np.int64)
    face = np.concatenate(faces)
    ordered = np.sort(face, axis=1)
    _, first, times = np.unique(ordered, axis=0, return_index=True, return_counts=True)
    return np.asarray(face[first[times == 1]])
