"""From a closed raw surface to a model's inputs: normals, distances from the inlet, flow extensions cut off, a mask.

    normal_i    Σ of the unit normals of i's faces, without area weights, normalised; on the uncut surface
    geodesic    heat method from all inlet nodes: (M + tL) u = δ_inlet, X = -∇u/|∇u|, Lφ = -∇·X, t = (mean edge)², shifted to mean
                zero over the inlet; hence slightly negative there. Cm, never scaled, not shifted again after the cut. Heat is
                exp(-distance/√t) and its gradient's square underflows, so that meshes of more than LIMIT edges get a larger t
    D           2 √(A/π), A the area of the faces with all nodes in the inlet
    kept        min + 4D < geodesic < max - 4D      mask    the same with 1D, over the kept nodes

N nodes, M faces, K inlet nodes. potpourri3d's heat method (with intrinsic Laplacian) made the published numbers; without it ours
differs by at most 0.03 cm.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from .mesh import Array, ArteryError, Mesh, between
from .raw import RawMesh

METHODS = ("auto", "potpourri3d", "scipy")
CUT, MARGIN = 4.0, 1.0  # inlet diameters at either end: cut off, and kept but masked
THIN = 1e-12  # a face with less area than this share of its longest edge's square has no direction
SHIFT = (
    1e-6  # added to the Laplacian's diagonal, which alone leaves a constant free; as in potpourri3d
)
LIMIT = 320.0  # mean edges to the farthest node; 220 to 255 in vessels like the published, potpourri3d fails from 355 to 400
FOLLOWS = 2.0  # beyond so many LIMITs SHIFT costs potpourri3d's distances more than 2 % (6 % at 3), and ours are taken
PLAUSIBLE = 0.85  # of the way along edges and across pairs of faces
HINT = 'pip install "flashgatr[mesh]"'


def prepare(raw: RawMesh, *, method: str = "auto", cut: bool = True) -> Mesh:
    """The mesh that the models see. `cut=False` for a vessel without flow extensions: all nodes are kept."""
    try:
        return _prepared(raw, method, cut)
    except ArteryError as error:
        raise ArteryError(f"cannot prepare {raw.name}: {error}") from error


def _prepared(raw: RawMesh, method: str, cut: bool) -> Mesh:
    require_closed(raw.position, raw.face)
    diameter = inlet_diameter(raw.position, raw.face, raw.inlet)
    normal = normals(raw.position, raw.face)
    geodesic = geodesics(raw.position, raw.face, raw.inlet, method)
    keep = between(geodesic, CUT * diameter) if cut else np.ones(raw.nodes, bool)
    mask = between(geodesic[keep], MARGIN * diameter) if keep.any() else keep
    if not mask.any():
        length = float(geodesic.max() - geodesic.min())
        raise ArteryError(
            f"it is {length:.3g} cm long with an inlet of diameter {diameter:.3g} cm, so that "
            f"nothing is left between the ends; is it a vessel with flow extensions? Without them, "
            f"use cut=False"
        )
    return Mesh(
        name=raw.name,
        index=raw.index,
        position=raw.position[keep],
        normal=normal[keep],
        geodesic=geodesic[keep],
        mask=mask,
        inlet_diameter=diameter,
        wss=None if raw.wss is None else raw.wss[keep],
        face=_kept_faces(raw.face, keep),
    )


def _kept_faces(face: Array, keep: Array) -> Array:
    """The faces with all their nodes kept, in the kept nodes' numbers."""
    number = np.cumsum(keep) - 1
    return np.asarray(number[face[keep[face].all(axis=1)]], dtype=np.int64)


def require_closed(position: Array, face: Array) -> None:
    """Refuse surfaces with holes, with edges of more than two faces, or with faces that do not all look outward."""
    count = len(position)
    start, end = face.ravel(), np.roll(face, -1, axis=1).ravel()
    there, times = np.unique(start * count + end, return_counts=True)
    if (times > 1).any():
        raise ArteryError(
            f"{int((times > 1).sum())} edges have two faces on the same side: faces are there "
            "twice, look in different directions, or meet in more than twos; clean the mesh"
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
    """Outward unit vectors (N, 3). Faces without area say nothing; a node with no others is an error."""
    x = np.asarray(position, dtype=np.float64)
    cross = _crosses(x, face)
    size = np.linalg.norm(cross, axis=1)
    flat = _thin(x, face, size)
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
    """Diameter of the circle with the area of the inlet cap."""
    is_inlet = np.zeros(len(position), bool)
    is_inlet[inlet] = True
    x = np.asarray(position, dtype=np.float64)
    area = 0.5 * np.linalg.norm(_crosses(x, face[is_inlet[face].all(axis=1)]), axis=1).sum()
    if not area > 0:
        raise ArteryError(
            f"the {len(inlet)} inlet nodes span no face; expected all nodes of the inlet cap"
        )
    return float(np.float32(2 * np.sqrt(area / np.pi)))


def geodesics(position: Array, face: Array, inlet: Array, method: str = "auto") -> Array:
    """Distances (N,) from the inlet along the wall of a closed surface.

    The way along edges to the farthest node, an upper bound, says whether heat gets there with the usual time step, and
    in the end whether it did.
    """
    chosen = chosen_method(method)
    _require_connected(len(position), face)
    x = np.asarray(position, dtype=np.float64)
    farthest, edge = _farthest(x, face, inlet)
    longer = farthest / (LIMIT * edge) if farthest > LIMIT * edge else 1.0
    if chosen == "potpourri3d" and longer <= FOLLOWS:
        found = _by_potpourri3d(x, face, inlet, longer**2)
    else:
        found = _by_scipy(x, face, inlet, longer**2)
    result = np.asarray(found, dtype=np.float32)
    if not np.isfinite(result).all():
        raise ArteryError("the heat method found no distances; clean the mesh")
    if result.max() < PLAUSIBLE * farthest:
        farthest, _ = _farthest(x, face, inlet, across=True)  # edges alone may run in zigzag
        if result.max() < PLAUSIBLE * farthest:
            raise ArteryError(
                f"the heat method found distances up to {result.max():.3g} cm, but its farthest node is "
                f"about {farthest:.3g} cm away along the faces; make new triangles of even size"
            )
    return result


def _farthest(
    position: Array, face: Array, inlet: Array, across: bool = False
) -> tuple[float, float]:
    """The way along edges from the inlet to the farthest node, and the mean edge. `across` adds the ways straight across pairs
    of neighbouring faces."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import dijkstra

    count = len(position)
    start, end, tip = (np.roll(face, -k, axis=1).ravel() for k in range(3))
    length = np.linalg.norm(position[start] - position[end], axis=1)
    edge = float(length.mean())
    if across:
        one, other = np.argsort(start * count + end), np.argsort(end * count + start)
        ways = np.linalg.norm(position[tip[one]] - position[tip[other]], axis=1)
        start, end = np.concatenate([start, tip[one]]), np.concatenate([end, tip[other]])
        length = np.concatenate([length, ways])
    graph = coo_array((length, (start, end)), shape=(count, count)).tocsr()
    return float(dijkstra(graph, indices=inlet, min_only=True).max()), edge


def chosen_method(method: str) -> str:
    """What "auto" means here."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of {', '.join(METHODS)}")
    there = find_spec("potpourri3d") is not None
    if method == "potpourri3d" and not there:
        raise ArteryError(f"potpourri3d is not installed: {HINT}, or take method='scipy'")
    return ("potpourri3d" if there else "scipy") if method == "auto" else method


def _by_potpourri3d(position: Array, face: Array, inlet: Array, step: float) -> Any:
    """With `step` times the usual time step."""
    import potpourri3d

    try:
        solver = potpourri3d.MeshHeatMethodDistanceSolver(position, face, t_coef=step)
        return solver.compute_distance_multisource(inlet)
    except (RuntimeError, ValueError) as error:
        raise ArteryError(f"potpourri3d cannot use the mesh: {error}") from error


def _by_scipy(position: Array, face: Array, inlet: Array, step: float) -> Any:
    """With `step` times the usual time step, and so much less SHIFT."""
    from scipy.sparse import coo_array, diags_array

    count = len(position)
    corners = position[face]  # (M, 3 corners, 3)
    edges = np.roll(corners, 1, axis=1) - np.roll(corners, -1, axis=1)  # opposite each corner
    cross = np.cross(edges[:, 0], edges[:, 1])
    double_area = np.linalg.norm(cross, axis=1)
    flat = int(_thin(position, face, double_area).sum())
    if flat:
        hint = "" if find_spec("potpourri3d") else f" or {HINT}"
        raise ArteryError(f"{flat} faces have no area; clean the mesh{hint}")
    dots = -np.einsum("mci,mci->mc", np.roll(edges, -1, axis=1), np.roll(edges, 1, axis=1))
    cotangent = dots / double_area[:, None]  # at each corner
    start, end = np.roll(face, -1, axis=1).ravel(), np.roll(face, 1, axis=1).ravel()
    weights = coo_array((0.5 * cotangent.ravel(), (start, end)), shape=(count, count)).tocsc()
    weights = weights + weights.T
    laplacian = (diags_array(weights.sum(axis=0)) - weights).tocsc()
    mass = np.bincount(face.ravel(), np.repeat(double_area / 6, 3), minlength=count)
    lengths = np.linalg.norm(edges, axis=2)
    once = np.unique(np.sort(np.stack([start, end], 1), axis=1) @ [count, 1], return_index=True)[1]
    time = step * lengths.ravel()[once].mean() ** 2

    heat = np.zeros(count)
    heat[inlet] = 1
    warmth = _solved(diags_array(mass) + time * laplacian, heat)
    # ∇u on a face: Σ u_c (n × opposite edge_c) / 2A. Far away u underflows; only its direction matters.
    scaled = warmth[face] / np.maximum(np.abs(warmth[face]).max(axis=1, keepdims=True), 1e-300)
    turned = np.cross((cross / double_area[:, None])[:, None], edges)
    direction = -np.einsum("mc,mci->mi", scaled, turned)
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-300)
    # ∇·X at a node: Σ over its faces' corners of ½ Σ over both edges there of cot(opposite angle) · edge·X.
    along = 0.5 * cotangent * np.einsum("mci,mi->mc", edges, direction)
    flow = np.roll(along, 1, axis=1) - np.roll(along, -1, axis=1)
    divergence = np.bincount(face.ravel(), flow.ravel(), minlength=count)
    distance = _solved(laplacian + SHIFT / step * diags_array(np.ones(count)), -divergence)
    return distance - distance[inlet].mean()


def _solved(matrix: Any, right: Array) -> Any:
    from scipy.sparse.linalg import splu

    try:
        factors = splu(
            matrix.tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options=dict(SymmetricMode=True),
        )
    except RuntimeError as error:
        raise ArteryError(
            f"the heat method found no distances ({error}); clean the mesh"
        ) from error
    return factors.solve(right)


def _crosses(position: Array, face: Array) -> Array:
    a, b, c = (position[face[:, k]] for k in range(3))
    return np.cross(b - a, c - a)


def _thin(position: Array, face: Array, double_area: Array) -> Array:
    """Which faces have next to no area, against the square of their longest edge."""
    corners = position[face]
    longest = np.square(corners - np.roll(corners, 1, axis=1)).sum(axis=2).max(axis=1)
    return np.asarray(double_area <= THIN * longest)


def _require_connected(count: int, face: Array) -> None:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = (face.ravel(), np.roll(face, 1, axis=1).ravel())
    links = coo_array((np.ones(face.size, bool), pairs), shape=(count, count))
    pieces = connected_components(links, directed=False, return_labels=False)
    if pieces > 1:
        raise ArteryError(f"it falls into {pieces} pieces, expected one connected surface")
