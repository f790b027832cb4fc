"""Where a vessel ends: its openings and flat caps; closing openings, and straight flow extensions as those of the training data.

rim      a loop of nodes, in the order in which the faces of a cap outward of it have them
D        2 √(A/π), A the area within a rim
cap      rings of the rim's shape, of equal area between them, and the middle: nodes as even as on the published caps
extension  the rim moved outward by up to 5 D of the inlet, ring by ring
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..data.mesh import Array, ArteryError
from ..data.wall import CUT, MARGIN

LENGTH = CUT + MARGIN  # diameters
HOLE = 0.2  # openings of less than this share of the largest one's diameter are holes
ROUND, SHARP, COPLANAR = 0.5, np.cos(np.radians(30)), np.cos(np.radians(5))
STRAIGHT = 0.1  # an extension's nodes are this share of a radius off the cylinder at most
LEAST = 6  # nodes of a rim
RINGS = 6  # of a cap within its rim; the published inlets have about 7 times as many nodes as their rims
ALIKE = 0.98  # ends whose diameters differ by less look the same


@dataclass(frozen=True)
class End:
    """An opening or a flat cap."""

    rim: Array  # (K,)
    centre: Array
    outward: Array  # unit vector
    diameter: float
    cap: Array  # the cap's faces, numbers; none: it is open

    @property
    def is_open(self) -> bool:
        return not len(self.cap)


def rims(face: Array) -> list[Array]:
    """Loops of edges that belong to one face only, in the direction of the faces that would close them."""
    count = int(face.max()) + 1 if len(face) else 0
    start, end = face.ravel(), np.roll(face, -1, axis=1).ravel()
    alone = ~np.isin(start * count + end, end * count + start)
    follows = dict(zip(end[alone].tolist(), start[alone].tolist(), strict=True))
    found = []
    while follows:
        loop = [next(iter(follows))]
        while (node := follows.pop(loop[-1], None)) is not None and node != loop[0]:
            loop.append(node)
        found.append(np.array(loop))
    return found


def ends(position: Array, face: Array) -> tuple[list[End], list[Array]]:
    """Openings and caps, the largest first; and the rims of small holes, which are no ends."""
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
    """Flat, round regions with a sharp rim: the rim and the faces of each."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    from .surface import _neighbours

    corners = position[face]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    size = np.linalg.norm(normal, axis=1)
    unit = normal / np.maximum(size, 1e-300)[:, None]
    one, other, _ = _neighbours(face, len(position))
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
        rim = loops[0][::-1]  # seen from the wall: what would close it is the cap
        edges = position[rim] - np.roll(position[rim], 1, axis=0)
        length = float(np.linalg.norm(edges, axis=1).sum())
        if 2 * np.pi * area[number] > ROUND * length**2:  # area holds twice the areas
            found.append((rim, cap))
    return found


def chosen(found: list[End], wanted: str) -> tuple[int, str]:
    """The number of the inlet among the ends, and how it was chosen. `wanted`: auto, a number from 1, or a point "x y z"."""
    listed = "; ".join(f"{k + 1}: {described(end)}" for k, end in enumerate(found))
    if wanted == "auto":
        if found[1].diameter > ALIKE * found[0].diameter:
            raise ArteryError(
                f"its ends are of one size, so that the inlet cannot be told from the outlet; say which "
                f"with --inlet NUMBER or --inlet 'x y z', a point near it ({listed})"
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
            f"--inlet must be auto, the number of an end or a point 'x y z' near one, got {wanted!r}; "
            f"the ends are {listed}"
        )
    distances = [float(np.linalg.norm(end.centre - numbers)) for end in found]
    nearest = int(np.argmin(distances))
    if distances[nearest] > 2 * found[nearest].diameter:
        raise ArteryError(
            f"--inlet names a point {distances[nearest]:.3g} away from the nearest end; the ends are "
            f"{listed}"
        )
    return nearest, f"end {nearest + 1}, near the given point"


def described(end: End) -> str:
    """In words, its place to a hundredth of its diameter or better."""
    digits = int(np.clip(2 - np.floor(np.log10(max(end.diameter, 1e-12))), 0, 12))
    x, y, z = (f"{float(x):.{digits}f}" for x in np.round(end.centre, digits) + 0.0)
    kind = "open" if end.is_open else "capped"
    return f"{kind}, diameter {end.diameter:.3g}, at {x} {y} {z}"


def is_extended(position: Array, face: Array, end: End, length: float) -> bool:
    """Does the vessel begin with a straight tube of constant section, at least so long?"""
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
    """Nodes and faces that go on from a rim."""

    position: Array
    face: Array
    rim: Array  # where they end; the same if nothing was added


def extension(position: Array, end: End, length: float) -> Added:
    """A straight tube on an open end; a rim that is not flat becomes so within a diameter."""
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
    """What closes a rim: rings towards its middle, or a fan alone with `rings` 0."""
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
    """Faces between two loops of equally many nodes."""
    a, b, c, d = rim, np.roll(rim, -1), onward, np.roll(onward, -1)
    return np.concatenate([np.stack([a, b, c], axis=1), np.stack([b, d, c], axis=1)])
