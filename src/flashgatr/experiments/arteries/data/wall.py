"""From a closed surface to the inputs of a model: normals, distances, cut and mask.

    normal     sum of the unit normals of a node's faces, without area weights, normalised
    geodesic   distance from the inlet along the wall in cm (heat_method)
    D          2 √(A/π), A the area of the faces whose nodes all belong to the inlet
    kept       min + 4D < geodesic < max - 4D
    mask       the same with 1D, over the kept nodes

Normals and distances are computed on the whole surface, before the flow extensions are cut off.
Training data (`prepare`) and the vessels of `flashgatr predict arteries` both go through
`prepare_wall`. N nodes, M faces, K inlet nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from .heat_method import geodesics
from .mesh import Array, ArteryError, Mesh, between, is_thin, kept_faces
from .raw import RawMesh

CUT, MARGIN = 4.0, 1.0
"""Inlet diameters at either end that are cut off, and then kept but excluded from the mask."""

Keep: TypeAlias = Callable[[Array, float], Array]
"""From the distances (N,) and the inlet's diameter to the nodes to keep, (N,) bool."""


class PreparedWall(NamedTuple):
    """The mesh of the kept nodes, and the distances of all nodes of the surface."""

    mesh: Mesh
    keep: Array  # (N,) bool
    geodesic: Array  # (N,) float32, cm


def prepare(raw: RawMesh, *, method: str = "auto", cut: bool = True) -> Mesh:
    """The mesh that the models see. With `cut=False` (no flow extensions) all nodes are kept."""
    hint = "; is it a vessel with flow extensions? Without them, use cut=False"
    try:
        return prepare_wall(raw, between_extensions if cut else all_nodes, method, hint=hint).mesh
    except ArteryError as error:
        raise ArteryError(f"cannot prepare {raw.name}: {error}") from error


def between_extensions(geodesic: Array, diameter: float) -> Array:
    """The nodes that remain when CUT diameters are cut off at either end."""
    return between(geodesic, CUT * diameter)


def all_nodes(geodesic: Array, diameter: float) -> Array:
    """Nothing is cut off."""
    return np.ones(len(geodesic), bool)


def prepare_wall(
    raw: RawMesh, keep: Keep, method: str = "auto", *, inside: Array | None = None, hint: str = ""
) -> PreparedWall:
    """Normals, distances, cut and mask of a closed surface.

    `keep` chooses the nodes of the mesh. `inside` (N,) replaces the mask of nodes that are MARGIN
    diameters away from the ends. `hint` ends the error message for a vessel of which nothing would
    be left.
    """
    require_closed(raw.position, raw.face)
    diameter = inlet_diameter(raw.position, raw.face, raw.inlet)
    normal = normals(raw.position, raw.face)
    geodesic = geodesics(raw.position, raw.face, raw.inlet, method)
    kept = keep(geodesic, diameter)
    if inside is not None:
        mask = inside[kept]
    else:
        mask = between(geodesic[kept], MARGIN * diameter) if kept.any() else kept
    if not mask.any():
        length = float(geodesic.max() - geodesic.min())
        raise ArteryError(
            f"it is {length:.3g} cm long with an inlet of diameter {diameter:.3g} cm, so that "
            "nothing "
            f"is left between its ends{hint}"
        )
    mesh = Mesh(
        name=raw.name,
        index=raw.index,
        position=raw.position[kept],
        normal=normal[kept],
        geodesic=geodesic[kept],
        mask=mask,
        inlet_diameter=diameter,
        wss=None if raw.wss is None else raw.wss[kept],
        face=kept_faces(raw.face, kept),
    )
    return PreparedWall(mesh, kept, geodesic)


def require_closed(position: Array, face: Array) -> None:
    """Refuse surfaces with holes, edges of more than two faces, or faces that look inward."""
    count = len(position)
    start, end = face.ravel(), np.roll(face, -1, axis=1).ravel()
    there, times = np.unique(start * count + end, return_counts=True)
    if (times > 1).any():
        raise ArteryError(
            f"{int((times > 1).sum())} edges have two faces on the same side: faces are repeated, "
            "look "
            "in different directions, or more than two meet at an edge; clean the mesh"
        )
    alone = len(np.setdiff1d(there, end * count + start, assume_unique=True))
    if alone:
        raise ArteryError(
            f"{alone} edges belong to one face only; expected a closed surface, with caps at inlet "
            "and outlet"
        )
    x = position.astype(np.float64) - position[0]
    if not np.einsum("mi,mi->", x[face[:, 0]], np.cross(x[face[:, 1]], x[face[:, 2]])) > 0:
        raise ArteryError("its faces look inward; turn them around")


def normals(position: Array, face: Array) -> Array:
    """Outward unit vectors (N, 3). Faces without area are skipped; each node needs another one."""
    x = np.asarray(position, dtype=np.float64)
    cross = _crosses(x, face)
    size = np.linalg.norm(cross, axis=1)
    flat = is_thin(x, face, size)
    unit = np.where(flat[:, None], 0, cross / np.where(flat, 1, size)[:, None])
    total = np.stack(
        [
            np.bincount(face.ravel(), np.repeat(unit[:, axis], 3), minlength=len(x))
            for axis in range(3)
        ],
        axis=1,
    )
    length = np.linalg.norm(total, axis=1, keepdims=True)
    lost = int((length < 1e-6).sum())
    if lost:
        raise ArteryError(
            f"{lost} nodes have no normal: they belong to no face, to faces without area only, or "
            f"their faces point in opposite directions; clean the mesh"
        )
    return np.asarray(total / length, dtype=np.float32)


def inlet_diameter(position: Array, face: Array, inlet: Array) -> float:
    """Diameter of the circle that has the area of the inlet cap."""
    is_inlet = np.zeros(len(position), bool)
    is_inlet[inlet] = True
    x = np.asarray(position, dtype=np.float64)
    area = 0.5 * np.linalg.norm(_crosses(x, face[is_inlet[face].all(axis=1)]), axis=1).sum()
    if not area > 0:
        raise ArteryError(
            f"the {len(inlet)} inlet nodes span no face; expected all nodes of the inlet cap"
        )
    return float(np.float32(2 * np.sqrt(area / np.pi)))


def _crosses(position: Array, face: Array) -> Array:
    a, b, c = (position[face[:, k]] for k in range(3))
    return np.cross(b - a, c - a)
