"""Cleans a surface: merges nodes, drops useless faces, and turns all faces outward.

Each change adds a note for the user. Defects that only the owner of the mesh can repair raise an
ArteryError. N nodes, M triangles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..data.mesh import Array, ArteryError

FEWEST, MOST = 100, 2_000_000  # nodes; 1.1 million need 3.7 GiB to prepare
MANY = 10  # pieces; with more, the faces probably do not share nodes
CLOSE = 1e-3  # nodes nearly coincide if the edge between them is this much shorter than the mean
DECIMATE = (
    "make it coarser, with ParaView's filter Decimate or pyvista.read(file).decimate(0.9).save(…); "
    "the training meshes have about 6,000 nodes"
)


@dataclass(frozen=True)
class Surface:
    """A connected surface of triangles. An edge has two faces, or one face at an opening."""

    position: Array  # (N, 3) float64, in the units of its file
    face: Array  # (M, 3) int64, outward
    wss: Array | None = None  # (N, 3), the reference for predictions
    notes: list[str] = field(default_factory=list)


def cleaned(
    position: Array,
    face: Array,
    wss: Array | None = None,
    *,
    repeats: bool = False,
    most: int = MOST,
    way_out: str = "",
) -> Surface:
    """The cleaned surface, or an error that says what is wrong with it.

    `repeats` says that the file format repeats nodes, as STL does; merging them is then not noted.
    Surfaces of more than `most` nodes are refused.
    """
    surface = Surface(np.asarray(position, np.float64), np.asarray(face, np.int64), wss)
    surface = _without_waste(_merged(surface, repeats))
    count = len(surface.position)
    if count < FEWEST:
        raise ArteryError(
            f"it has {count} nodes, expected at least {FEWEST}; a vessel needs thousands"
        )
    require_at_most(count, most, way_out)
    _require_one_piece(surface)
    return _outward(surface)


def require_at_most(count: int, most: int, way_out: str = "") -> None:
    """Refuse a mesh with more nodes than can be used. way_out: what to do instead of `DECIMATE`."""
    if count > most:
        raise ArteryError(f"it has {count:,} nodes, expected at most {most:,}; {way_out}{DECIMATE}")


def _merged(surface: Surface, repeats: bool) -> Surface:
    """Merge nodes with equal positions; the first of them keeps its place in the order."""
    _, first, number = np.unique(surface.position, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(surface.position):
        return surface
    double = len(surface.position) - len(first)
    notes = list(surface.notes)
    if not repeats:
        notes.append(f"{double:,} double nodes were merged, {len(first):,} are left")
    order = np.argsort(first)
    rank = np.empty(len(first), np.int64)
    rank[order] = np.arange(len(first))
    face = rank[number.reshape(-1)[surface.face]]
    return _taken(replace(surface, face=face, notes=notes), first[order])


def _taken(surface: Surface, nodes: Array) -> Surface:
    """Keep some nodes only; the faces must be renumbered already."""
    wss = None if surface.wss is None else surface.wss[nodes]
    return replace(surface, position=surface.position[nodes], wss=wss)


def _without_waste(surface: Surface) -> Surface:
    face, notes = surface.face, list(surface.notes)
    flat = (face == np.roll(face, 1, axis=1)).any(axis=1)
    if flat.any():
        notes.append(f"{int(flat.sum()):,} faces had a node twice")
    face = face[~flat]
    _, first = np.unique(np.sort(face, axis=1), axis=0, return_index=True)
    if len(first) < len(face):
        notes.append(f"{len(face) - len(first):,} faces were there twice")
    face = face[np.sort(first)]
    used = np.zeros(len(surface.position), bool)
    used[face] = True
    if not used.all():
        notes.append(f"{int((~used).sum()):,} nodes belong to no face")
        face = (np.cumsum(used) - 1)[face]
        surface = _taken(surface, np.flatnonzero(used))
    return replace(surface, face=face, notes=notes)


def _require_one_piece(surface: Surface) -> None:
    """Refuse edges with more than two faces, several pieces, and pieces that touch in a node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    face, count = surface.face, len(surface.position)
    _, times = np.unique(_edges(face) @ [count, 1], return_counts=True)
    if (times > 2).any():
        raise ArteryError(
            f"{int((times > 2).sum()):,} edges belong to more than two faces, so that it is not "
            "one "
            "sheet; repair it, such as with pymeshfix or MeshLab (Repair Non Manifold Edges)"
        )
    links = coo_array(
        (np.ones(face.size, bool), (face.ravel(), np.roll(face, 1, 1).ravel())), (count, count)
    )
    pieces, piece = connected_components(links, directed=False)
    if pieces > 1:
        sizes = sorted(np.bincount(piece).tolist(), reverse=True)
        shown = ", ".join(f"{size:,}" for size in sizes[:4]) + (", …" if len(sizes) > 4 else "")
        advice = "keep one of them, such as with pyvista.read(file).extract_largest().save(…)"
        if pieces > MANY:
            advice = f"its faces hardly share nodes, so {_merging(_lengths(surface).mean())}"
        raise ArteryError(
            f"it falls into {pieces:,} pieces of {shown} nodes, expected one vessel; {advice}"
        )
    # Corner k of face m is 3m + k; corners of one node are linked where their faces share an edge.
    one, other, same = face_pairs(face, count)
    start = face.ravel()[one]
    partner = np.where(same, _next(other), other)  # the other face's corner at the same node
    links = coo_array((np.ones(len(one), bool), (one, partner)), (face.size, face.size))
    more = coo_array(
        (np.ones(len(one), bool), (_next(one), np.where(same, other, _next(other)))), links.shape
    )
    assert (face.ravel()[partner] == start).all()
    fans = connected_components(links + more, directed=False, return_labels=False)
    if fans > count:
        raise ArteryError(
            f"at {fans - count:,} nodes it touches itself, so that it is not one sheet; repair "
            "it, such "
            "as with pymeshfix or MeshLab (Repair Non Manifold Vertices)"
        )


def close_nodes(surface: Surface) -> str:
    """Advice to append to an error if some edges are far shorter than the others, else ""."""
    lengths = _lengths(surface)
    short = int((lengths < CLOSE * lengths.mean()).sum()) // 2  # an edge has two faces
    if not short:
        return ""
    return f"; {short:,} pairs of its nodes nearly coincide, so {_merging(lengths.mean())}"


def _lengths(surface: Surface) -> Array:
    """(M, 3): the length of the edge at each corner."""
    corners = surface.position[surface.face]
    return np.asarray(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1))


def _merging(edge: float) -> str:
    return (
        "merge those that are close, such as with "
        f"pyvista.read(file).clean(tolerance={0.01 * edge:.0e}).save(…)"
    )


def _edges(face: Array) -> Array:
    """(3M, 2): the edge that begins at each corner, its smaller node first."""
    return np.sort(np.stack([face.ravel(), np.roll(face, -1, axis=1).ravel()], axis=1), axis=1)


def _next(corner: Array) -> Array:
    """The following corner of the same face."""
    return np.asarray(corner // 3 * 3 + (corner + 1) % 3)


def face_pairs(face: Array, count: int) -> tuple[Array, Array, Array]:
    """For each edge with two faces, the corners at which it begins in either face.

    The third array says whether the faces run through it in opposite directions, as they should.
    """
    key = _edges(face) @ [count, 1]
    order = np.argsort(key, kind="stable")
    twin = np.flatnonzero(key[order][1:] == key[order][:-1])
    one, other = order[twin], order[twin + 1]
    return one, other, face.ravel()[one] != face.ravel()[other]


def _outward(surface: Surface) -> Surface:
    """Orient all faces alike, then outward, so that the enclosed volume is positive."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    face, notes = surface.face.copy(), list(surface.notes)
    one, other, same = face_pairs(face, len(surface.position))
    # Each face occurs as it is (m) and reversed (M + m); faces with matching orientation are
    # linked.
    a, b, total = one // 3, other // 3 + np.where(same, 0, len(face)), 2 * len(face)
    rows, columns = np.concatenate([a, a + len(face)]), np.concatenate([b, (b + len(face)) % total])
    links = coo_array((np.ones(len(rows), bool), (rows, columns)), (total, total))
    _, part = connected_components(links, directed=False)
    as_it_is, turned = part[: len(face)], part[len(face) :]
    if (as_it_is == turned).any():
        raise ArteryError("it has no inside and outside, like a Möbius strip; repair it")
    wrong = as_it_is != as_it_is[0]
    if wrong.any():
        notes.append(f"{int(min(wrong.sum(), (~wrong).sum())):,} faces looked the other way")
    face[wrong] = face[wrong, ::-1]
    if volume(surface.position, face) < 0:
        face = face[:, ::-1].copy()
        if not wrong.any():
            notes.append("its faces looked inward and were turned around")
    return replace(surface, face=face, notes=notes)


def volume(position: Array, face: Array) -> float:
    """The enclosed volume, with each opening closed by triangles from the middle of its rim."""
    x = position - position.mean(axis=0)
    pieces = [face]
    for rim in rims(face):
        x = np.concatenate([x, x[rim].mean(axis=0)[None]])
        pieces.append(np.stack([rim, np.roll(rim, -1), np.full(len(rim), len(x) - 1)], axis=1))
    a, b, c = (x[np.concatenate(pieces)[:, k]] for k in range(3))
    return float(np.einsum("mi,mi->", a, np.cross(b, c)) / 6)


def rims(face: Array) -> list[Array]:
    """Loops of edges that belong to one face only, in the order of the faces that would close
    them.
    """
    if not len(face):
        return []
    count = int(face.max()) + 1
    start, end = face.ravel(), np.roll(face, -1, axis=1).ravel()
    key, back = start * count + end, np.sort(end * count + start)
    # np.isin, which hashes, takes ten times as long on two million faces.
    alone = back[np.minimum(np.searchsorted(back, key), len(back) - 1)] != key
    follows = dict(zip(end[alone].tolist(), start[alone].tolist(), strict=True))
    found = []
    while follows:
        loop = [next(iter(follows))]
        while (node := follows.pop(loop[-1], None)) is not None and node != loop[0]:
            loop.append(node)
        found.append(np.array(loop))
    return found
