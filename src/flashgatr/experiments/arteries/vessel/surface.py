"""A surface from anywhere, made fit for use, or refused: nodes merged, useless faces dropped, all faces looking outward.

Every change is a note for the reader; what only the owner of the mesh can repair is an ArteryError. N nodes, M triangles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..data.mesh import Array, ArteryError

FEWEST, MOST = 100, 200_000  # nodes
MANY = 10  # pieces; more are faces that do not share their nodes
DECIMATE = (
    "make it coarser, with ParaView's filter Decimate or pyvista.read(file).decimate(0.9).save(…); "
    "the training meshes have about 6,000 nodes"
)


@dataclass(frozen=True)
class Surface:
    """A connected surface of triangles, each edge in two of them or, at an opening, in one."""

    position: Array  # (N, 3) float64, in the units of its file
    face: Array  # (M, 3) int64, outward
    wss: Array | None = None  # (N, 3), what predictions are compared with
    notes: list[str] = field(default_factory=list)


def cleaned(
    position: Array, face: Array, wss: Array | None = None, *, repeats: bool = False
) -> Surface:
    """A surface as read, or an error that says what is wrong with it. `repeats`: its format repeats nodes, as STL does."""
    surface = Surface(np.asarray(position, np.float64), np.asarray(face, np.int64), wss)
    surface = _without_waste(_merged(surface, repeats))
    count = len(surface.position)
    if count < FEWEST:
        raise ArteryError(
            f"it has {count} nodes, expected at least {FEWEST}; a vessel needs thousands"
        )
    if count > MOST:
        raise ArteryError(f"it has {count:,} nodes, expected at most {MOST:,}; {DECIMATE}")
    _require_one_piece(surface)
    return _outward(surface)


def _merged(surface: Surface, repeats: bool) -> Surface:
    """Nodes at one place become one, in the order in which they come first."""
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
    """The same with some of its nodes only; faces must be in their numbers already."""
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
    """No edge with more than two faces, no pieces, no pieces that touch in a node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    face, count = surface.face, len(surface.position)
    _, times = np.unique(_edges(face) @ [count, 1], return_counts=True)
    if (times > 2).any():
        raise ArteryError(
            f"{int((times > 2).sum()):,} edges belong to more than two faces, so that it is not one "
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
            corners = surface.position[face]
            edge = float(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1).mean())
            advice = (
                "its faces hardly share nodes, so merge those that are close, such as with "
                f"pyvista.read(file).clean(tolerance={0.01 * edge:.0e}).save(…)"
            )
        raise ArteryError(
            f"it falls into {pieces:,} pieces of {shown} nodes, expected one vessel; {advice}"
        )
    # Corner k of face m is 3m + k; corners of one node are linked where their faces share an edge.
    one, other, same = _neighbours(face, count)
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
            f"at {fans - count:,} nodes it touches itself, so that it is not one sheet; repair it, such "
            "as with pymeshfix or MeshLab (Repair Non Manifold Vertices)"
        )


def _edges(face: Array) -> Array:
    """(3M, 2): the edge that begins at each corner, its smaller node first."""
    return np.sort(np.stack([face.ravel(), np.roll(face, -1, axis=1).ravel()], axis=1), axis=1)


def _next(corner: Array) -> Array:
    """The following corner of the same face."""
    return np.asarray(corner // 3 * 3 + (corner + 1) % 3)


def _neighbours(face: Array, count: int) -> tuple[Array, Array, Array]:
    """Corners where an edge begins in one face and in the other, and whether they run through it in opposite directions."""
    key = _edges(face) @ [count, 1]
    order = np.argsort(key, kind="stable")
    twin = np.flatnonzero(key[order][1:] == key[order][:-1])
    one, other = order[twin], order[twin + 1]
    return one, other, face.ravel()[one] != face.ravel()[other]


def _outward(surface: Surface) -> Surface:
    """All faces turned alike, then outward: to the side on which an opened vessel, too, has less than half the space."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    face, notes = surface.face.copy(), list(surface.notes)
    one, other, same = _neighbours(face, len(surface.position))
    # Every face is there as it is (m) and turned (M + m); what fits together is linked.
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
    """What the surface encloses; with openings closed by cones from the middle of their rims."""
    from .boundaries import rims

    x = position - position.mean(axis=0)
    pieces = [face]
    for rim in rims(face):
        x = np.concatenate([x, x[rim].mean(axis=0)[None]])
        pieces.append(np.stack([rim, np.roll(rim, -1), np.full(len(rim), len(x) - 1)], axis=1))
    a, b, c = (x[np.concatenate(pieces)[:, k]] for k in range(3))
    return float(np.einsum("mi,mi->", a, np.cross(b, c)) / 6)
