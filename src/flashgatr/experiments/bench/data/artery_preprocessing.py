"""Processor time to prepare a vessel for the artery networks, and how far the two ways to compute geodesics are apart.

Synthetic vessels with about as many nodes as the published ones (9,200), with even edges of 0.03 cm as those have, and with the uneven
ones of the generator, which are shorter in and behind stenoses: normals, distances from the inlet by potpourri3d, where
it is installed, and by our own method with scipy, flow extensions cut off, mask. The time is that of the process on one
thread; the difference is the largest of any node that is kept.
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
from ..timing import Found, Report

VESSELS = 10
MESH = (4, 2, 140)
"""Of the generator: the surface has 9,500 nodes."""


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
    report = Report("artery-preprocessing", keep=True, vessels=VESSELS)
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
            apart = max(_apart(a, b) for a, b in zip(*prepared, strict=True))
            found = Found({"difference": apart})
            report.add("preprocessing", {**about, "method": "both"}, found)
    report.show()


def _apart(a: Mesh, b: Mesh) -> float:
    """Largest difference on the nodes that both kept (which are cut off depends on the distances)."""
    index = {tuple(x): i for i, x in enumerate(a.position.tolist())}
    pairs = [(index[tuple(x)], j) for j, x in enumerate(b.position.tolist()) if tuple(x) in index]
    i, j = np.array(pairs).T
    return float(np.abs(a.geodesic[i] - b.geodesic[j]).max())
