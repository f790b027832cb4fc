"""Processor time of preparing a vessel for the artery networks, and the difference between the two
ways to compute geodesics.

The vessels are synthetic, with about as many nodes as the published ones (9,200). Their edges are
even, 0.03 cm long like those of the published ones, or uneven as the generator makes them, shorter
in and behind stenoses. Preparation consists of normals, geodesic distances from the inlet, cutting
off the flow extensions, and the mask. Distances are computed by potpourri3d, if it is installed,
and by our own method with scipy. The time is that of the process on one thread; the difference is
the largest over all nodes that are kept.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from ...arteries.data.mesh import Mesh
from ...arteries.data.raw import RawMesh
from ...arteries.data.wall import prepare
from ...arteries.synthetic.grid import surface, sweep
from ...arteries.synthetic.tube import draw
from ..timing import CaseReport, Found

VESSELS = 10
MESH = (4, 2, 140)
"""Mesh size of the generator, for a surface of 9,500 nodes."""


def vessel(number: int, edges: str = "even") -> RawMesh:
    tube = draw(np.random.default_rng([0, number]))
    grid = sweep(tube, MESH)
    if edges == "even":
        s = np.linspace(*tube.span, len(grid.s))
        grid = replace(grid, s=s, node=tube.position(s, grid.section.node))
    used, face, inlet = surface(grid)
    position = grid.node.reshape(-1, 3)[used].astype(np.float32)
    return RawMesh(f"vessel_{number}", number, position, face.astype(np.int64), inlet)


def timed(raw: RawMesh, method: str) -> tuple[float, Mesh]:
    begin = time.process_time()
    mesh = prepare(raw, method=method)
    return time.process_time() - begin, mesh


def run() -> None:
    report = CaseReport("artery-preprocessing", keep=True, vessels=VESSELS)
    methods = ["scipy", *(["potpourri3d"] if find_spec("potpourri3d") else [])]
    for edges in ("even", "uneven"):
        vessels = [vessel(number, edges) for number in range(VESSELS)]
        about = {"edges": edges, "nodes": round(statistics.mean(raw.nodes for raw in vessels))}
        prepared = []
        for method in methods:
            timed(vessels[0], method)  # imports
            times, meshes = zip(*(timed(raw, method) for raw in vessels), strict=True)
            prepared.append(meshes)
            found = Found({"processor time": statistics.median(times)})
            report.add("preprocessing", {**about, "method": method}, found)
        if len(prepared) == 2:
            difference = max(_difference(a, b) for a, b in zip(*prepared, strict=True))
            found = Found({"difference": difference})
            report.add("preprocessing", {**about, "method": "both"}, found)
    report.show()


def _difference(a: Mesh, b: Mesh) -> float:
    """Largest difference of distances on the nodes that both meshes kept; which nodes are cut off
    depends on the distances.
    """
    index = {tuple(x): i for i, x in enumerate(a.position.tolist())}
    pairs = [(index[tuple(x)], j) for j, x in enumerate(b.position.tolist()) if tuple(x) in index]
    i, j = np.array(pairs).T
    return float(np.abs(a.geodesic[i] - b.geodesic[j]).max())
