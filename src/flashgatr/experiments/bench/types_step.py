"""Training steps of networks with types of channels beside the same networks without, in turn.

n-body: a whole step of the engine, 64 systems of 4 bodies, TF32. Arteries: forward and backward on
8 meshes of 7,000 vertices; kuka: of 32 sequences of 128 times and 5 objects; both in bfloat16. On a
GPU each runs eagerly and as one CUDA graph. `ratio` is the time with types over that without.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch

from ... import AxialGATr
from ...config import PRESETS, preset
from . import timing, workload
from .artery_step import FEWER_MESHES, FEWER_VERTICES, MESHES, VERTICES
from .kuka_step import BATCH, FEWER, FEWER_TIMES, OBJECTS, TIMES
from .nbody_step import Case, training_step
from .timing import CaseReport, Found, Step

MODELS = ("gatr", "gatr_e3")
NETWORKS = ("nbody", "arteries", "kuka")
REPEATS = 40


def step(network: str, model: str, device: torch.device, *, graph: bool) -> Step:
    """A training step of the network with this preset."""
    cuda = device.type == "cuda"
    if network == "nbody":
        case = Case(model, "tf32" if cuda else "float32", cuda_graph=graph)
        return training_step(case, device)
    counts = (PRESETS[network][f"{side}_mv_channels"] for side in ("in", "out"))
    types = (count * "o" if model == "gatr_e3" else None for count in counts)  # all are points
    changes = dict(zip(("in_mv_parity", "out_mv_parity"), types, strict=True))
    if network == "arteries":
        work = workload.gatr("arteries", device, **changes)
        size: tuple[int, ...] = (MESHES, VERTICES) if cuda else (FEWER_MESHES, FEWER_VERTICES)
    else:
        config = preset("kuka", **changes)
        net = AxialGATr(config).to(device)
        channels = config.in_mv_channels, config.in_s_channels
        work = workload.multivector_work(net, *channels, device)
        size = (BATCH["training"], TIMES, OBJECTS) if cuda else (FEWER, FEWER_TIMES, OBJECTS)
    found = partial(work.step, work.sample(*size))
    return timing.capture(found, device)[0] if graph else found


def measure(network: str, device: torch.device, *, graph: bool) -> tuple[Found, Found]:
    """Time of a step without and with types; their steps take turns."""
    precision = "tf32" if network == "nbody" else workload.usual_precision(device)
    with timing.precision(precision):
        steps = [step(network, model, device, graph=graph) for model in MODELS]
        times = timing.in_turn(steps, device, repeats=REPEATS)
    without, with_types = map(statistics.median, times)
    return Found({"time": without}), Found({"time": with_types, "ratio": with_types / without})


def run() -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    report = CaseReport("types-step", keep=cuda)
    for network in NETWORKS:
        for graph in (False, True) if cuda else (False,):
            settings = {"network": network, "cuda_graph": graph}
            todo = partial(measure, network, device, graph=graph)
            found = report.attempt("gatr and gatr_e3", settings, todo)
            for model, own in zip(MODELS, found or (), strict=False):
                report.add(model, settings, own)
    report.show()
