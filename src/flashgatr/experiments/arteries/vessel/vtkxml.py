"""Reads VTK's XML files (.vtp, .vtu) as ParaView, SimVascular and VMTK write them; writes .vtp.

An array is text, or bytes in base64 or raw, after a header of unsigned integers: their number of
bytes, or with zlib or lzma [number of blocks, size of a block, size of the last one or 0,
compressed size of each]. Raw bytes stand in <AppendedData> after an underscore. Cells are
connectivity (nodes of all cells) and offsets (where each ends).
"""

from __future__ import annotations

import base64
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree

import numpy as np

from ..data.mesh import Array, ArteryError

MAX_BYTES = 1 << 29  # of one array
TYPES = {
    f"{name}{bits}": f"{letter}{bits // 8}"
    for name, letter in (("Int", "i"), ("UInt", "u"), ("Float", "f"))
    for bits in (8, 16, 32, 64)
    if (name, bits) not in (("Float", 8), ("Float", 16))
}
HEAD = 1 << 16  # bytes; the text before the arrays of a file that `write` makes is shorter
SAVE_AGAIN = "open it in ParaView and save it again, or as .ply"
MARK = "<!-- a prediction by flashgatr, which may replace it by another -->"


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


COMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    "vtkZLibDataCompressor": zlib.decompressobj,
    "vtkLZMADataCompressor": lzma.LZMADecompressor,
}


@dataclass(frozen=True)
class Cells:
    """Nodes with polygons or other cells: cell k has nodes connectivity[offsets[k]:offsets[k +
    1]].
    """

    position: Array  # (N, 3) float64
    connectivity: Array
    offsets: Array  # (cells + 1,)
    types: Array | None  # VTK's type of each cell; None: all are polygons
    fields: dict[str, Array]  # (N, …), the requested point arrays
    point_arrays: tuple[str, ...]  # names
    cell_arrays: tuple[str, ...]


def read(content: bytes, wanted: tuple[str, ...] = ()) -> Cells:
    """Nodes, cells and the wanted point arrays of a .vtp or .vtu file."""
    head, appended = _split(content)
    if b"\0" in head or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ArteryError("its text is not UTF-8; save it again, as UTF-8 or ASCII")
    if b"<!DOCTYPE" in head or b"<!ENTITY" in head:
        raise ArteryError("it declares XML entities, which no mesh needs")
    root = ElementTree.fromstring(head)
    kind = root.get("type")
    if root.tag != "VTKFile" or kind not in ("PolyData", "UnstructuredGrid"):
        raise ArteryError(
            f"it holds {kind or root.tag!r}, expected a surface (PolyData) or an UnstructuredGrid"
        )
    file = _File(root, appended)
    pieces = [_piece(file, piece, kind, wanted) for piece in root.iterfind(f"{kind}/Piece")]
    if not pieces:
        raise ArteryError("it holds no piece of a mesh")
    starts = np.cumsum([0, *(len(p.position) for p in pieces)])
    ends = np.cumsum([0, *(len(p.connectivity) for p in pieces)])
    names = [name for name in wanted if all(name in p.fields for p in pieces)]
    return Cells(
        position=np.concatenate([p.position for p in pieces]),
        connectivity=np.concatenate(
            [p.connectivity + n for p, n in zip(pieces, starts, strict=False)]
        ),
        offsets=np.concatenate(
            [[0], *(p.offsets[1:] + n for p, n in zip(pieces, ends, strict=False))]
        ).astype(np.int64),
        types=None
        if kind == "PolyData"
        else np.concatenate([p.types for p in pieces if p.types is not None]),
        fields={name: np.concatenate([p.fields[name] for p in pieces]) for name in names},
        point_arrays=_in_all([p.point_arrays for p in pieces]),
        cell_arrays=_in_all([p.cell_arrays for p in pieces]),
    )


def _in_all(names: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for name in names[0] if all(name in more for more in names))


def is_ours(path: Path) -> bool:
    """Whether a file begins like those that `write` makes."""
    with path.open("rb") as file:
        return MARK.encode() in file.read(200)


def read_about(path: Path) -> dict[str, str]:
    """The texts about the whole file that `write` stored; {} if there are none."""
    with path.open("rb") as file:
        head, _ = _split(file.read(HEAD))
    try:
        found = ElementTree.fromstring(head).iterfind("PolyData/FieldData/Array")
        return {x.get("Name", ""): _decoded(x.text or "") for x in found}
    except (ElementTree.ParseError, ValueError):
        return {}


def _decoded(text: str) -> str:
    return bytes(int(x) for x in text.split()).rstrip(b"\0").decode()


def _encoded(text: str) -> str:
    """Text as VTK writes it: its bytes in decimal, and a zero at the end."""
    return " ".join(map(str, [*text.encode(errors="replace"), 0]))


def write(
    position: Array, face: Array, fields: dict[str, Array], about: Mapping[str, str] | None = None
) -> bytes:
    """A .vtp file: triangles (M, 3) with numbers (N) or vectors (N, 3) at the nodes.

    `about` holds texts about the whole file, which ParaView shows as field data.
    """
    numbers = {name: np.asarray(x) for name, x in fields.items()}
    offsets = 3 * np.arange(1, len(face) + 1, dtype=np.int64)
    data = b""

    def array(name: str, x: Array) -> str:
        nonlocal data
        kind = {"f": "Float", "i": "Int", "u": "UInt"}[x.dtype.kind] + str(8 * x.itemsize)
        parts = f' NumberOfComponents="{x.shape[1]}"' if x.ndim == 2 else ""
        about = f'type="{kind}" Name="{name}"{parts}'
        line = f'<DataArray {about} format="appended" offset="{len(data)}"/>'
        data += np.uint64(x.nbytes).tobytes() + np.ascontiguousarray(x).tobytes()
        return line

    counts = f'NumberOfPoints="{len(position)}" NumberOfPolys="{len(face)}"'
    lines = [
        '<?xml version="1.0"?>',
        MARK,
        '<VTKFile type="PolyData" version="1.0" byte_order="LittleEndian" header_type="UInt64">',
        "<PolyData>",
        "<FieldData>",
        *(
            f'<Array type="String" Name="{name}" NumberOfTuples="1" format="ascii">'
            f"{_encoded(text)}</Array>"
            for name, text in (about or {}).items()
        ),
        "</FieldData>",
        f'<Piece {counts} NumberOfVerts="0" NumberOfLines="0" NumberOfStrips="0">',
        "<PointData>",
        *(array(name, x) for name, x in numbers.items()),
        "</PointData>",
        "<Points>",
        array("Points", np.asarray(position)),
        "</Points>",
        "<Polys>",
        array("connectivity", np.asarray(face, np.int64).ravel()),
        array("offsets", offsets),
        "</Polys>",
        "</Piece></PolyData>",
        '<AppendedData encoding="raw">',
    ]
    return "\n".join(lines).encode() + b"\n_" + data + b"\n</AppendedData>\n</VTKFile>\n"


def _split(content: bytes) -> tuple[bytes, bytes]:
    """The XML without its appended data, and the appended data, which need not be XML."""
    start = content.find(b"<AppendedData")
    if start < 0:
        return content, b""
    begin = content.find(b"_", content.find(b">", start))
    if begin < 0:
        raise ArteryError("its appended data do not begin with an underscore")
    opened = content[start : content.find(b">", start)].rstrip(b"/")
    return content[:start] + opened + b"/></VTKFile>", content[begin + 1 :]


class _File:
    """The encoding of a file's arrays."""

    def __init__(self, root: ElementTree.Element, appended: bytes) -> None:
        self.order = {"LittleEndian": "<", "BigEndian": ">"}[root.get("byte_order", "LittleEndian")]
        self.header = np.dtype(self.order + TYPES[root.get("header_type", "UInt32")])
        compressor = root.get("compressor")
        if compressor is not None and compressor not in COMPRESSORS:
            raise ArteryError(f"it is compressed by {compressor}; {SAVE_AGAIN}")
        self.compressor = COMPRESSORS[compressor] if compressor else None
        self.appended = appended
        place = root.find("AppendedData")
        self.is_raw = place is not None and place.get("encoding") == "raw"

    def array(self, element: ElementTree.Element) -> Array:
        """All numbers of an array, flat."""
        dtype = np.dtype(self.order + TYPES[element.get("type", "")])
        form = element.get("format", "ascii")
        if form == "ascii":
            return np.array((element.text or "").split(), dtype=dtype)
        if form == "binary":
            source, at, raw = b"".join((element.text or "").encode().split()), 0, False
        else:
            source, at, raw = self.appended, int(element.get("offset", "0")), self.is_raw
        if not 0 <= at <= len(source):
            raise ArteryError(f"an array begins at byte {at} of {len(source)}")
        content = self._content(source, at, raw)
        return np.frombuffer(content, dtype)

    def _content(self, source: bytes, at: int, raw: bool) -> bytes:
        size = self.header.itemsize
        if self.compressor is None:
            (count,) = self._numbers(_taken(source, at, size, raw))
            _bounded(count)
            if raw:
                return _taken(source, at + size, count, raw)
            if b"=" in source[at : at + _quads(size)]:  # the header was encoded separately
                return _taken(source, at + _quads(size), count, raw)
            return _taken(source, at, size + count, raw)[size:]
        (blocks,) = self._numbers(_taken(source, at, size, raw))
        length = (3 + _bounded(blocks)) * size
        _, whole, last, *packed = self._numbers(_taken(source, at, length, raw))
        _bounded(blocks * whole + last)
        at += length if raw else _quads(length)
        content = _taken(source, at, _bounded(sum(packed)), raw)
        sizes = [whole] * blocks
        if last and blocks:
            sizes[-1] = last
        parts, start = [], 0
        for count, stored in zip(sizes, packed, strict=True):
            part = self.compressor().decompress(content[start : start + stored], max(count, 1))
            if len(part) != count:
                raise ArteryError(f"a block unpacks to {len(part)} bytes instead of {count}")
            parts.append(part)
            start += stored
        return b"".join(parts)

    def _numbers(self, content: bytes) -> list[int]:
        return [int(x) for x in np.frombuffer(content, self.header)]


def _quads(count: int) -> int:
    """The number of base64 characters for this many bytes."""
    return (count + 2) // 3 * 4


def _taken(source: bytes, at: int, count: int, raw: bool) -> bytes:
    end = at + (count if raw else _quads(count))
    if end > len(source):
        raise ArteryError("it ends in the middle of an array")
    part = source[at:end]
    found = part if raw else base64.b64decode(part, validate=True)
    if len(found) < count:
        raise ArteryError("it ends in the middle of an array")
    return found[:count]


def _bounded(count: int) -> int:
    if not 0 <= count <= MAX_BYTES:
        raise ArteryError(f"an array declares {count:,} bytes; the limit is {MAX_BYTES:,}")
    return count


def _piece(file: _File, piece: ElementTree.Element, kind: str, wanted: tuple[str, ...]) -> Cells:
    count = int(piece.get("NumberOfPoints", "0"))
    place = "Polys" if kind == "PolyData" else "Cells"
    if int(piece.get("NumberOfStrips", "0")):
        raise ArteryError("it holds triangle strips; use ParaView's filter Triangulate")
    points = piece.find("Points/DataArray")
    if points is None:
        raise ArteryError("it has no points")
    arrays = {x.get("Name"): x for x in piece.iterfind(f"{place}/DataArray")}
    names = ["connectivity", "offsets", *(["types"] if place == "Cells" else [])]
    cells: list[Array] = []
    for name in names:
        x = file.array(arrays[name]) if name in arrays else np.zeros(0, np.int64)
        if x.dtype.kind not in "iu":
            raise ArteryError(f"{name} must be integers, got {x.dtype}")
        cells.append(x.astype(np.int64))
    fields = {
        str(x.get("Name")): file.array(x)
        for x in piece.iterfind("PointData/DataArray")
        if x.get("Name") in wanted
    }
    position = file.array(points).astype(np.float64).reshape(-1, 3)
    if len(position) != count:
        raise ArteryError(f"it has {len(position)} points, but declares {count}")
    offsets = np.concatenate([[0], cells[1]])
    if (np.diff(offsets) < 0).any() or offsets[-1] != len(cells[0]):
        raise ArteryError("its cells' offsets do not fit their connectivity")
    if len(cells) == 3 and len(cells[2]) != len(offsets) - 1:
        raise ArteryError(f"it has {len(offsets) - 1} cells but the kinds of {len(cells[2])}")
    for name, x in fields.items():
        if not count or len(x) % count:
            raise ArteryError(f"{name} has {len(x)} numbers for {count} points")
    return Cells(
        position=position,
        connectivity=cells[0],
        offsets=offsets,
        types=cells[2] if len(cells) == 3 else None,
        fields={name: x.reshape(count, -1) for name, x in fields.items()},
        point_arrays=_names(piece, "PointData"),
        cell_arrays=_names(piece, "CellData"),
    )


def _names(piece: ElementTree.Element, place: str) -> tuple[str, ...]:
    return tuple(x.get("Name", "") for x in piece.iterfind(f"{place}/DataArray"))
