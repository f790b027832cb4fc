"""The ends of a vessel: finds openings and flat caps, closes openings, adds flow extensions.

rim        a loop of nodes, in the order of the outward faces that would close it
D          2 √(A/π), A the area within a rim
cap        rings of the rim's shape with equal areas between them, and a node in the middle;
           its nodes are as dense as those of the published caps
extension  rings of the rim's shape, up to 5 D of the inlet outward, as in the training data
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..data.mesh import Array, ArteryError
from ..data.wall import CUT, MARGIN
from .surface import face_pairs, rims

LENGTH = CUT + MARGIN  # of an added extension, in inlet diameters
HOLE = 0.2  # openings smaller than this share of the largest end's diameter are holes
ROUND, SHARP, COPLANAR = 0.5, np.cos(np.radians(30)), np.cos(np.radians(5))
STRAIGHT = 0.1  # largest distance of an extension's nodes from the cylinder, in radii
LEAST = 6  # smallest number of nodes of a rim
RINGS = 6  # of a cap; published inlets have about 7 times as many nodes as their rims
ALIKE = 0.98  # ratio of diameters above which two ends count as equally large


@dataclass(frozen=True)
class End:
    """An opening or a flat cap."""

    rim: Array  # (K,)
    centre: Array
    outward: Array  # unit vector
    diameter: float
    cap: Array  # the numbers of the cap's faces; empty for an opening

    @property
    def is_open(self) -> bool:
        return not len(self.cap)


def find_ends(position: Array, face: Array) -> tuple[list[End], list[Array]]:
    """Openings and caps, the largest first; and the rims of small holes, which are not ends."""
    found = [_end(position, rim, np.zeros(0, np.int64)) for rim in rims(face)]
    found += [_end(position, rim, cap) for rim, cap in _caps(position, face)]
    found.sort(key=lambda end: -end.diameter)
    most = found[0].diameter if found else 0.0
    large = [e for e in found if e.diameter >= HOLE * most and len(e.rim) >= LEAST]
    holes = [e.rim for e in found if not any(e is x for x in large) and e.is_open]
    return large, holes


def _end(position: Array, rim: Array, cap: Array) -> End:
    corners = position[rim]
    centre = corners.mean(axis=0)
    around = corners - centre
    area = 0.5 * np.cross(around, np.roll(around, -1, axis=0)).sum(axis=0)
    size = float(np.linalg.norm(area))
    return End(rim, centre, area / max(size, 1e-300), 2 * float(np.sqrt(size / np.pi)), cap)


def _caps(position: Array, face: Array) -> list[tuple[Array, Array]]:
    """The rim and the faces of each flat, round region with a sharp rim."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    corners = position[face]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    size = np.linalg.norm(normal, axis=1)
    unit = normal / np.maximum(size, 1e-300)[:, None]
    one, other, _ = face_pairs(face, len(position))
    one, other = one // 3, other // 3
    cosine = np.einsum("mi,mi->m", unit[one], unit[other])
    joined = cosine > COPLANAR
    links = coo_array((np.ones(joined.sum(), bool), (one[joined], other[joined])), (len(face),) * 2)
    count, region = connected_components(links, directed=False)
    total = np.stack([np.bincount(region, normal[:, k], count) for k in range(3)], axis=1)
    area = np.bincount(region, size, count)
    flat = np.linalg.norm(total, axis=1) > COPLANAR * area
    between = region[one] != region[other]
    borders, sharp = (
        np.bincount(region[one[chosen]], minlength=count)
        + np.bincount(region[other[chosen]], minlength=count)
        for chosen in (between, between & (cosine < SHARP))
    )
    enough = flat & (borders >= LEAST) & (sharp >= 0.9 * borders)
    found = []
    for number in np.flatnonzero(enough):
        cap = np.flatnonzero(region == number)
        loops = rims(face[cap])
        if len(loops) != 1:
            continue
        rim = loops[0][::-1]  # as the rim of the wall without the cap
        edges = position[rim] - np.roll(position[rim], 1, axis=0)
        length = float(np.linalg.norm(edges, axis=1).sum())
        if 2 * np.pi * area[number] > ROUND * length**2:  # `area` is twice the area
            found.append((rim, cap))
    return found


def choose_inlet(found: list[End], wanted: str) -> tuple[int, str]:
    """The index of the inlet among the ends, and how it was chosen.

    `wanted` is "auto", the number of an end (from 1), or a point "x y z" near one.
    """
    listed = "; ".join(f"{k + 1}: {described(end)}" for k, end in enumerate(found))
    if wanted == "auto":
        if found[1].diameter > ALIKE * found[0].diameter:
            raise ArteryError(
                "its ends are of one size, so that the inlet cannot be told from the outlet; "
                f"say which with --inlet NUMBER or --inlet 'x y z', a point near it ({listed})"
            )
        return 0, (
            f"the inlet was taken to be the largest end, which may be wrong; --inlet NUMBER or "
            f"--inlet 'x y z' says which ({listed})"
        )
    words = wanted.replace(",", " ").split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) == 1 and numbers[0] in range(1, len(found) + 1):
        return int(numbers[0]) - 1, f"end {int(numbers[0])}, as told"
    if len(numbers) != 3 or not np.isfinite(numbers).all():
        raise ArteryError(
            "--inlet must be auto, the number of an end or a point 'x y z' near one, got "
            f"{wanted!r}; "
            f"the ends are {listed}"
        )
    distances = [float(np.linalg.norm(end.centre - numbers)) for end in found]
    nearest = int(np.argmin(distances))
    if distances[nearest] > 2 * found[nearest].diameter:
        raise ArteryError(
            f"--inlet names a point {distances[nearest]:.3g} away from the nearest end; the ends "
            "are "
            f"{listed}"
        )
    return nearest, f"end {nearest + 1}, near the given point"


def described(end: End) -> str:
    """An end in words, with its position to a hundredth of its diameter or better."""
    digits = int(np.clip(2 - np.floor(np.log10(max(end.diameter, 1e-12))), 0, 12))
    x, y, z = (f"{float(x):.{digits}f}" for x in np.round(end.centre, digits) + 0.0)
    kind = "open" if end.is_open else "capped"
    return f"{kind}, diameter {end.diameter:.3g}, at {x} {y} {z}"


def is_extended(position: Array, face: Array, end: End, length: float) -> bool:
    """Whether the vessel begins at this end with a straight cylinder of at least this length."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    wall = np.delete(face, end.cap, axis=0) if len(end.cap) else face
    start, stop = wall.ravel(), np.roll(wall, -1, axis=1).ravel()
    size = np.linalg.norm(position[start] - position[stop], axis=1)
    graph = coo_array((size, (start, stop)), (len(position),) * 2).tocsr()
    distance = dijkstra(graph, directed=False, indices=end.rim, min_only=True, limit=length)
    near = position[np.isfinite(distance)] - end.centre
    along = -near @ end.outward
    across = np.linalg.norm(near + along[:, None] * end.outward, axis=1)
    radius = end.diameter / 2
    fits = np.abs(across - radius) < STRAIGHT * radius
    return bool(along.max() > 0.9 * length and fits.mean() > 0.98)


@dataclass(frozen=True)
class Added:
    """Nodes and faces that are attached to a rim."""

    position: Array
    face: Array
    rim: Array  # the open rim of the added part; for a cap, the rim it closes


def extension(position: Array, end: End, length: float) -> Added:
    """A straight tube on an open end. A rim that is not flat is flattened within one diameter."""
    rim, corners = end.rim, position[end.rim]
    step = float(np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1).mean())
    rings = max(2, round(length / step))
    heights = (corners - end.centre) @ end.outward
    along = np.linspace(0, length, rings + 1)[1:]
    blend = np.minimum(along / min(end.diameter, length), 1)[:, None]
    shift = along[:, None] - blend * heights  # (rings, K)
    nodes = corners + shift[..., None] * end.outward
    number = np.concatenate([rim, len(position) + np.arange(rings * len(rim))]).reshape(
        -1, len(rim)
    )
    faces = [_band(inner, outer) for inner, outer in pairwise(number)]
    return Added(nodes.reshape(-1, 3), np.concatenate(faces), number[-1])


def cap(position: Array, rim: Array, rings: int = RINGS) -> Added:
    """A cap that closes a rim: rings towards its middle; with `rings` 0, a fan of triangles."""
    corners, size = position[rim], len(rim)
    centre = corners.mean(axis=0)
    shares = np.sqrt(np.arange(rings, 0, -1) / (rings + 1))
    nodes = centre + shares[:, None, None] * (corners - centre)
    number = np.concatenate([rim, len(position) + np.arange(rings * size)]).reshape(-1, size)
    faces = [_band(outer, inner) for outer, inner in pairwise(number)]
    middle = np.full(size, len(position) + rings * size)
    faces.append(np.stack([number[-1], np.roll(number[-1], -1), middle], axis=1))
    return Added(np.concatenate([nodes.reshape(-1, 3), centre[None]]), np.concatenate(faces), rim)


def _band(rim: Array, onward: Array) -> Array:
    """The faces between two loops with the same number of nodes."""
    a, b, c, d = rim, np.roll(rim, -1), onward, np.roll(onward, -1)
    return np.concatenate([np.stack([a, b, c], axis=1), np.stack([b, d, c], axis=1)])
