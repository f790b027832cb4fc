"""Processor time of preparing a vessel for the artery networks, and the difference between the two
ways to compute geodesics; then the same for fine meshes, up to a million nodes.

The vessels are synthetic, with about as many nodes as the published ones (9,200). Their edges are
even, 0.03 cm long like those of the published ones, or uneven as the generator makes them, shorter
in and behind stenoses. Preparation consists of normals, geodesic distances from the inlet, cutting
off the flow extensions, and the mask. Distances are computed by potpourri3d, if it is installed,
and by our own method with scipy. The time is that of the process on one thread; the difference is
the largest over all nodes that are kept.

Fine meshes are meshes of one of these vessels with every edge divided. Each goes through a .vtp
file, as for `flashgatr predict arteries`, in a process of its own, whose peak memory is recorded.
The difference is that between the distances on the fine mesh and on the usual one, over the nodes
that both have and keep.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ...arteries.data.mesh import Mesh
from ...arteries.data.raw import RawMesh
from ...arteries.data.wall import prepare
from ...arteries.synthetic.refinement import tube_surface
from ...arteries.synthetic.tube import draw
from ...arteries.vessel import formats, vtkxml
from ...arteries.vessel.model_input import read_vessel
from ...arteries.vessel.prediction_picture import picture
from ..timing import CaseReport, Found

VESSELS = 10
MESH = (4, 2, 140)
"""Mesh size of the generator, for a surface of 9,500 nodes."""
REFINED = (1, 2, 5, 11)
"""Into how many edges an edge of the fine meshes is divided; 11 gives 1,130,626 nodes."""


def vessel(number: int, edges: str = "even", refined: int = 1) -> RawMesh:
    tube = draw(np.random.default_rng([0, number]))
    position, face, inlet = tube_surface(tube, MESH, refined=refined, even=edges == "even")
    return RawMesh(f"vessel_{number}", number, position.astype(np.float32), face, inlet)


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
            largest = max(difference(a, b) for a, b in zip(*prepared, strict=True))
            found = Found({"difference": largest})
            report.add("preprocessing", {**about, "method": "both"}, found)
    report.show()
    fine_meshes()


def fine_meshes() -> None:
    report = CaseReport("artery-preprocessing", keep=True, vessels=1, edges="even")
    usual = prepare(vessel(0))
    for refined in REFINED:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            times, memory, mesh = pool.submit(staged, refined).result()
        about = {"nodes": vessel(0, refined=refined).nodes}
        for stage, seconds in times.items():
            found = Found({"processor time": seconds})
            report.add("preprocessing", {**about, "stage": stage}, found)
        whole = Found({"memory": memory, "difference": difference(usual, mesh)})
        report.add("preprocessing", {**about, "stage": "all"}, whole)
    report.show()


def staged(refined: int) -> tuple[dict[str, float], float, Mesh]:
    """Processor times of a fine mesh by stage, the peak memory of this process in MiB, and the
    prepared mesh.
    """
    raw, times = vessel(0, refined=refined), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        file, begin = Path(folder) / "vessel.vtp", time.process_time()
        file.write_bytes(vtkxml.write(raw.position, raw.face, {}))
        times["write"] = time.process_time() - begin
        begin = time.process_time()
        formats.read(file)
        times["read"] = time.process_time() - begin
        begin = time.process_time()
        inlet = " ".join(map(str, raw.position[raw.inlet].mean(axis=0).tolist()))
        mesh = read_vessel(file, inlet=inlet).mesh
        times["read and prepare"] = time.process_time() - begin
    begin = time.process_time()
    picture(mesh, np.cross(mesh.normal, np.array([0, 0, 1], np.float32)))
    times["draw"] = time.process_time() - begin
    return times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, mesh


def difference(a: Mesh, b: Mesh) -> float:
    """Largest difference of distances on the nodes that both meshes kept; which nodes are cut off
    depends on the distances.
    """
    index = {tuple(x): i for i, x in enumerate(a.position.tolist())}
    pairs = [(index[tuple(x)], j) for j, x in enumerate(b.position.tolist()) if tuple(x) in index]
    i, j = np.array(pairs).T
    return float(np.abs(a.geodesic[i] - b.geodesic[j]).max())
