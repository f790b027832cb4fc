"""A million points on a CPU: a field with 1,024 anchors, and a vessel through `predict arteries`.

The field is that of a network of two blocks with the widths of the preset `arteries`. The vessel is
a synthetic one with every edge divided into 11, in a .vtp file; the time is that of the whole
command with `pretrained:arteries`: reading, preparation, prediction, picture and output. Each case
runs in a process of its own, whose peak memory is recorded. For the vessel, `difference` is the
largest one between its distances from the inlet and those of the usual mesh, and `ratio` is this
divided by the largest distance.

FLASHGATR_POINTS and FLASHGATR_REFINED choose smaller cases, which are not recorded.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from .... import AnchoredGATr, embed_point
from ....config import preset
from ... import shipped
from ...arteries.anchoring import CPU_TILE, AnchorChoice
from ...arteries.data.wall import prepare
from ...arteries.vessel import predict, vtkxml
from .. import timing
from ..data.artery_preprocessing import difference, vessel
from ..timing import CaseReport, Found

POINTS, BLOCKS, ANCHORS, REFINED, THREADS = 1_000_000, 2, 1024, 11, 2
RUN = "pretrained:arteries"


def field(points: int, threads: int) -> Found:
    """Encode the anchors and evaluate the field at all points."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = AnchoredGATr(preset("arteries", num_blocks=BLOCKS)).eval()
    channels, scalars = net.config.in_mv_channels, net.config.in_s_channels
    position = torch.rand(points, 3)

    def embed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        point = embed_point(x).unsqueeze(-2)
        return point.expand(-1, channels, -1).contiguous(), x.new_zeros(len(x), scalars)

    begin = time.perf_counter()
    with torch.no_grad():
        state = net.encode(*embed(position[:ANCHORS]))
        net.field(state, embed, tile=CPU_TILE, extract=lambda mv, s: mv[..., 0, :])(position)
    return Found({"time": 1000 * (time.perf_counter() - begin), "memory": _peak()})


def fine_vessel(refined: int, threads: int) -> Found:
    """The whole prediction of a refined vessel."""
    torch.set_num_threads(threads)
    raw = vessel(0, refined=refined)
    usual = prepare(vessel(0))
    inlet = " ".join(map(str, raw.position[raw.inlet].mean(axis=0).tolist()))
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "vessel.vtp", Path(folder) / "out"
        file.write_bytes(vtkxml.write(raw.position, raw.face, {}))
        begin = time.perf_counter()
        run, choice = shipped.find(Path(RUN)), AnchorChoice(ANCHORS)
        found, _, _ = predict.run(run, file, out, device="cpu", anchors=choice, inlet=inlet)
        seconds = time.perf_counter() - begin
    largest = difference(usual, found.vessel.mesh)
    metrics = {"time": 1000 * seconds, "memory": _peak(), "difference": largest}
    return Found(metrics | {"ratio": largest / float(usual.geodesic.max())}, {"nodes": raw.nodes})


def run() -> None:
    if torch.cuda.is_available():
        print("anchored-cpu is for machines without a GPU; to run it, set CUDA_VISIBLE_DEVICES=''")
        return
    points = int(os.environ.get("FLASHGATR_POINTS", POINTS))
    refined = int(os.environ.get("FLASHGATR_REFINED", REFINED))
    report = CaseReport(
        "anchored-cpu", keep=(points, refined) == (POINTS, REFINED), anchors=ANCHORS,
        threads=THREADS, precision="float32",
    )  # fmt: skip
    settings = {"n_items": points, "blocks": BLOCKS}
    with timing.threads(THREADS):  # for the name of the machine; each case sets its own
        report.run("gatr", settings, partial(_alone, field, points))
        report.run("pretrained", {"refined": refined}, partial(_alone, fine_vessel, refined))
        report.show()


def _alone(case: object, size: int) -> Found:
    """The result of a case in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(case, size, THREADS).result()  # type: ignore[arg-type]


def _peak() -> float:
    """The peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
