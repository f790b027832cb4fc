"""Distances from the inlet along the wall of a closed surface, by the heat method.

    (M + tL) u = δ_inlet    heat after a short time t = (mean edge length)²
    X = -∇u / |∇u|          its gradient points away from the inlet
    L φ = -∇·X              distances, shifted so that their mean over the inlet nodes is zero

M is the mass matrix and L the cotangent Laplacian. Because of the shift, some inlet nodes have
slightly negative distances. Heat decays like exp(-distance/√t), and the square of its gradient
underflows far from the inlet. Meshes that are more than LIMIT edges long therefore get a larger t:
that of the published meshes, √t = 0.032 cm (`mesh.EDGE`), or more if the vessel is longer. Both
t and SHIFT are then those of the published meshes in centimetres, so that a finer mesh of the same
vessel has the same distances: within 1 % on synthetic vessels of 20,000 to 1,130,000 nodes.

The published distances were computed by potpourri3d's heat method (with an intrinsic Laplacian). If
potpourri3d is not installed, the implementation below is used; its results differ from
potpourri3d's by at most 0.03 cm.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from .mesh import EDGE, Array, ArteryError, is_thin

METHODS = ("auto", "potpourri3d", "scipy")
SHIFT = 1e-6
"""Added to the diagonal of the Laplacian, whose null space are the constants; as in potpourri3d."""
LIMIT = 320.0
"""Longest mesh, in mean edges, for the usual time step. Vessels like the published ones are 220 to
255 edges long; potpourri3d fails from 355 to 400 on.
"""
FOLLOWS = 1.25
"""Meshes longer than FOLLOWS · LIMIT edges use our implementation, which scales SHIFT. In
potpourri3d it is fixed, and changes distances by 1.1 % at 1.5 · LIMIT, 6 % at 3 · LIMIT.
"""
PLAUSIBLE = 0.85
"""The largest distance must be at least this share of the shortest path on the mesh."""
HINT = 'pip install "flashgatr[mesh]"'


def geodesics(position: Array, face: Array, inlet: Array, method: str = "auto") -> Array:
    """Distances (N,) from the inlet along the wall of a closed surface.

    The shortest path along edges to the farthest node is an upper bound. It decides whether the
    usual time step suffices, and the result is checked against it.
    """
    chosen = chosen_method(method)
    _require_connected(len(position), face)
    x = np.asarray(position, dtype=np.float64)
    farthest, edge = _farthest(x, face, inlet)
    step = (max(farthest / LIMIT, EDGE) / edge) ** 2 if farthest > LIMIT * edge else 1.0
    if chosen == "potpourri3d" and farthest <= FOLLOWS * LIMIT * edge:
        found = _by_potpourri3d(x, face, inlet, step)
    else:
        found = _by_scipy(x, face, inlet, step)
    result = np.asarray(found, dtype=np.float32)
    if not np.isfinite(result).all():
        raise ArteryError("the heat method found no distances; clean the mesh")
    if result.max() < PLAUSIBLE * farthest:
        farthest, _ = _farthest(x, face, inlet, across=True)  # paths along edges alone may zigzag
        if result.max() < PLAUSIBLE * farthest:
            raise ArteryError(
                f"the heat method found distances up to {result.max():.3g} cm, but its farthest "
                "node is "
                f"about {farthest:.3g} cm away along the faces; make new triangles of even size"
            )
    return result


def _farthest(
    position: Array, face: Array, inlet: Array, across: bool = False
) -> tuple[float, float]:
    """The shortest path along edges from the inlet to the farthest node, and the mean edge length.

    With `across`, paths may also go straight across a pair of neighbouring faces.
    """
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
    """Resolve "auto" to potpourri3d if it is installed, else to scipy."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of {', '.join(METHODS)}")
    there = find_spec("potpourri3d") is not None
    if method == "potpourri3d" and not there:
        raise ArteryError(f"potpourri3d is not installed: {HINT}, or take method='scipy'")
    return ("potpourri3d" if there else "scipy") if method == "auto" else method


def _by_potpourri3d(position: Array, face: Array, inlet: Array, step: float) -> Any:
    """Distances with `step` times the usual time step."""
    import potpourri3d

    try:
        solver = potpourri3d.MeshHeatMethodDistanceSolver(position, face, t_coef=step)
        return solver.compute_distance_multisource(inlet)
    except (RuntimeError, ValueError) as error:
        raise ArteryError(f"potpourri3d cannot use the mesh: {error}") from error


def _by_scipy(position: Array, face: Array, inlet: Array, step: float) -> Any:
    """Distances with `step` times the usual time step, and SHIFT divided by `step`."""
    from scipy.sparse import coo_array, diags_array

    count = len(position)
    corners = position[face]  # (M, 3 corners, 3)
    edges = np.roll(corners, 1, axis=1) - np.roll(corners, -1, axis=1)  # opposite each corner
    cross = np.cross(edges[:, 0], edges[:, 1])
    double_area = np.linalg.norm(cross, axis=1)
    flat = int(is_thin(position, face, double_area).sum())
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
    # ∇u on a face: Σ u_c (n × opposite edge_c) / 2A. Only its direction matters, so u is scaled
    # per face: far from the inlet it would underflow.
    scaled = warmth[face] / np.maximum(np.abs(warmth[face]).max(axis=1, keepdims=True), 1e-300)
    turned = np.cross((cross / double_area[:, None])[:, None], edges)
    direction = -np.einsum("mc,mci->mi", scaled, turned)
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-300)
    # ∇·X at a node: sum over its corners of ½ Σ cot(opposite angle) · edge·X over the two edges
    # there.
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


def _require_connected(count: int, face: Array) -> None:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = (face.ravel(), np.roll(face, 1, axis=1).ravel())
    links = coo_array((np.ones(face.size, bool), pairs), shape=(count, count))
    pieces = connected_components(links, directed=False, return_labels=False)
    if pieces > 1:
        raise ArteryError(f"it falls into {pieces} pieces, expected one connected surface")
