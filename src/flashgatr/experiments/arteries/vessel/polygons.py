"""Reads polygons from .stl, .ply and .obj files: positions, nodes of the polygons, offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from ..data.mesh import Array, ArteryError

Polygons: TypeAlias = tuple[Array, Array, Array]  # positions (N, 3), nodes, offsets (polygons + 1)
VERTEX = rb"(?i)(?<!\S)vertex((?:\s+\S+){0,3})(?!\S)"  # in a text of STL


def stl(content: bytes) -> Polygons:
    """STL, text or binary: three corners per triangle, which do not share nodes."""
    count = int.from_bytes(content[80:84], "little") if len(content) >= 84 else -1
    if 84 + 50 * count == len(content) or (count > 0 and content[:5].lower() != b"solid"):
        if len(content) < 84 + 50 * count:
            raise ArteryError(f"it declares {count:,} triangles, but ends before them")
        record = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("flags", "<u2")])
        corners = np.frombuffer(content, record, count, 84)["corners"].reshape(-1, 3)
    else:
        corners = np.fromiter(_corners(content), np.float64).reshape(-1, 3)
    if len(corners) % 3:
        raise ArteryError(f"it has {len(corners)} corners, expected three for each triangle")
    return corners.astype(np.float64), np.arange(len(corners)), np.arange(0, len(corners) + 1, 3)


def _corners(content: bytes) -> Iterator[float]:
    """The coordinates in a text of STL, one after another: lists of words would need gigabytes."""
    for number, found in enumerate(re.finditer(VERTEX, content), 1):
        words = found[1].split()
        if len(words) < 3:
            raise _short(f"{number} of {number}", len(words))  # only the last one can be short
        yield from map(float, words)


def obj(content: bytes) -> Polygons:
    """Wavefront OBJ: lines `v x y z` and `f a b c …`; nodes count from 1, or backwards from -1."""
    position: list[list[float]] = []
    faces: list[list[int]] = []
    for line in content.replace(b"\\\n", b" ").splitlines():
        words = line.split()
        if words[:1] == [b"v"]:
            position.append([float(x) for x in words[1:4]])
        elif words[:1] == [b"f"]:
            numbers = [int(word.split(b"/")[0]) for word in words[1:]]
            if 0 in numbers:
                raise ArteryError("a face names node 0, but they are counted from 1")
            faces.append([k - 1 if k > 0 else len(position) + k for k in numbers])
    return _points(position), *_joined(faces)


def _points(rows: list[list[float]]) -> Array:
    short = next((k for k, row in enumerate(rows) if len(row) < 3), None)
    if short is not None:
        raise _short(f"{short + 1} of {len(rows)}", len(rows[short]))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _short(number: str, coordinates: int) -> ArteryError:
    return ArteryError(
        f"node {number} has {coordinates} coordinates, expected 3; is the end of the file missing?"
    )


def _joined(faces: list[list[int]]) -> tuple[Array, Array]:
    nodes = np.array([k for face in faces for k in face], dtype=np.int64)
    return nodes, np.cumsum([0, *map(len, faces)])


# ---- ply ----

TYPES = {
    **dict(char="i1", uchar="u1", short="i2", ushort="u2", int="i4", uint="u4"),
    **dict(float="f4", double="f8", int8="i1", uint8="u1", int16="i2", uint16="u2"),
    **dict(int32="i4", uint32="u4", float32="f4", float64="f8"),
}
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
NODES = ("vertex_indices", "vertex_index")


def ply(content: bytes) -> Polygons:
    """PLY, text or binary; additional numbers at nodes and faces are skipped."""
    head, mark, rest = content.partition(b"end_header")
    lines = [line.split() for line in head.decode("ascii", "replace").splitlines()]
    if not mark or lines[:1] != [["ply"]]:
        raise ArteryError("it does not begin with the header of a .ply file")
    form, elements = "", list[tuple[str, int, list[list[str]]]]()
    for words in lines[1:]:
        if words[:1] == ["format"]:
            form = words[1]
        elif words[:1] == ["element"]:
            elements.append((words[1], int(words[2]), []))
        elif words[:1] == ["property"]:
            elements[-1][2].append(words[1:])
    if form not in ORDERS:
        raise ArteryError(f"its format is {form!r}, expected {', '.join(ORDERS)}")
    rest = rest[rest.index(b"\n") + 1 :]
    values = _Text(rest) if form == "ascii" else _Bytes(rest, ORDERS[form])
    position, faces = np.zeros((0, 3)), _joined([])
    for name, count, properties in elements:
        if not 0 <= count <= len(rest):
            raise ArteryError(f"it declares {count:,} of {name} in {len(rest):,} bytes")
        if name == "face":
            faces = values.lists(count, properties, _place_of_nodes(properties))
            break
        if any(words[0] == "list" for words in properties):
            raise ArteryError(f"its {name} has lists, expected numbers; save it again, or as .vtp")
        columns = values.table(count, properties) if count and properties else {}
        if name == "vertex" and count:
            position = np.stack([columns[axis] for axis in "xyz"], axis=1).astype(np.float64)
    return position, *faces


def _place_of_nodes(properties: list[list[str]]) -> int:
    names = [words[-1] if words[0] == "list" else "" for words in properties]
    for name in NODES:
        if name in names:
            return names.index(name)
    raise ArteryError(f"its faces have no {NODES[0]}")


class _Text:
    """Reads the elements of a text file."""

    def __init__(self, content: bytes) -> None:
        self.words, self.at = content.split(), 0

    def table(self, count: int, properties: list[list[str]]) -> dict[str, Array]:
        words = self.take(count * len(properties), "")
        rows = np.array([float(x) for x in words]).reshape(count, -1)
        return {words[1]: rows[:, k] for k, words in enumerate(properties)}

    def lists(self, count: int, properties: list[list[str]], nodes: int) -> tuple[Array, Array]:
        return _joined(list(_rows(self, count, properties, nodes)))

    def take(self, count: int, kind: str) -> list[bytes]:
        if count < 0 or self.at + count > len(self.words):
            raise ArteryError("it ends too early")
        self.at += count
        return self.words[self.at - count : self.at]


class _Bytes:
    """Reads the elements of a binary file."""

    def __init__(self, content: bytes, order: str) -> None:
        self.content, self.order, self.at = content, order, 0

    def table(self, count: int, properties: list[list[str]]) -> dict[str, Array]:
        record = np.dtype([(name, self.order + TYPES[kind]) for kind, name in properties])
        rows = self._records(count, record)
        return {name: rows[name] for _, name in properties}

    def lists(self, count: int, properties: list[list[str]], nodes: int) -> tuple[Array, Array]:
        fields: list[tuple[str, str, int]] = []
        for k, words in enumerate(properties):
            kinds = [words[1], words[2]] if words[0] == "list" else [words[0]]
            length = 3 if k == nodes else 0 if words[0] == "list" else 1
            sizes = [1, length] if words[0] == "list" else [length]
            for part, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
                fields.append((f"{k}.{part}", self.order + TYPES[kind], size))
        record, start = np.dtype(fields), self.at
        if start + count * record.itemsize <= len(
            self.content
        ):  # fast path: all faces are triangles, and there is no other list
            rows = self._records(count, record)
            lists = [k for k, words in enumerate(properties) if words[0] == "list"]
            if all((rows[f"{k}.0"] == (3 if k == nodes else 0)).all() for k in lists):
                found = rows[f"{nodes}.1"].astype(np.int64).reshape(-1)
                return found, np.arange(0, 3 * count + 1, 3)
        self.at = start
        return _joined(list(_rows(self, count, properties, nodes)))

    def take(self, count: int, kind: str) -> Array:
        return self._records(count, np.dtype(self.order + TYPES[kind]))

    def _records(self, count: int, record: np.dtype[np.void]) -> Array:
        if count < 0 or self.at + count * record.itemsize > len(self.content):
            raise ArteryError("it ends too early")
        found = np.frombuffer(self.content, record, count, self.at)
        self.at += count * record.itemsize
        return found


def _rows(
    values: _Text | _Bytes, count: int, properties: list[list[str]], nodes: int
) -> Iterator[list[int]]:
    """The nodes of the faces, one face after another."""
    for _ in range(count):
        for k, words in enumerate(properties):
            size = int(values.take(1, words[1])[0]) if words[0] == "list" else 1
            found = values.take(size, words[2] if words[0] == "list" else words[0])
            if k == nodes:
                yield [int(x) for x in found]
