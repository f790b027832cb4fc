"""Forward and backward of the artery networks on 8 meshes of 7,000 vertices, without checkpointing.

GATr with the attention width that the paper's parameter counts imply (width factor 1) and with that
of the authors' code (2), and a Transformer with 160 channels, on random numbers; SEGNN, PointNet++
and GEM-CNN, which have neighbours, on random walls. Each runs eagerly and as one CUDA graph, all
but GATr also with compiled blocks. PointNet++ and GEM-CNN are not captured: training cannot capture
them either, as their batch normalisation needs all meshes of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ..arteries.models import ON_SURFACES
from . import timing, walls, workload
from .timing import CaseReport, Found
from .workload import Make

MESHES, VERTICES = 8, 7000
FEWER_MESHES, FEWER_VERTICES = 2, 200  # on a CPU
MODELS = ("gatr", "transformer", *walls.MODELS)
NUMBERS = 7, 3
"""Input and output channels of the Transformer: position, normal and distance to the inlet; a
vector."""


def works(device: torch.device) -> dict[tuple[str, int | None], Make]:
    """Functions that build the networks with attention, by model and width factor."""
    found: dict[tuple[str, int | None], Make] = {
        ("gatr", width): partial(workload.gatr, "arteries", device, attention_width=width)
        for width in (1, 2)
    }
    found["transformer", None] = partial(workload.transformer, NUMBERS, device, hidden_channels=160)
    return found


def width_setting(width: int | None) -> dict[str, Any]:
    """The width factor as a setting, for networks that have one."""
    return {} if width is None else {"width_factor": width}


def fixed_size(
    make: Make,
    size: tuple[int, int],
    *,
    graph: bool = False,
    compiled: bool = False,
    overlap: bool = False,
) -> Found:
    """Time and memory of steps on the same batch."""
    work = make()
    if compiled:
        work.compile()
    sample = work.sample(*size)
    step = partial(work.step, sample)
    return timing.measure(step, work.device, graph=graph, overlap=overlap)


def ways(model: str, cuda: bool) -> Iterator[tuple[bool, bool]]:
    """How a model is run: whether as a CUDA graph, and whether compiled."""
    captured = cuda and model not in ON_SURFACES
    yield False, False
    if captured:
        yield True, False
    if cuda and model != "gatr":
        yield captured, True


def run(models: Sequence[str] = MODELS) -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    size = (MESHES, VERTICES) if cuda else (FEWER_MESHES, FEWER_VERTICES)
    precision = workload.usual_precision(device)
    report = CaseReport("artery-step", keep=cuda, batch=size[0], items=size[1], precision=precision)
    with timing.precision(precision):
        on_walls = {(model, None): make for model, make in walls.works(device).items()}
        for (model, width), make in (works(device) | on_walls).items():
            for graph, compiled in ways(model, cuda) if model in models else ():
                settings = {**width_setting(width), "cuda_graph": graph, "compile": compiled}
                todo = partial(fixed_size, make, size, graph=graph, compiled=compiled)
                report.run(model, settings, todo)
    report.show()
    for model in models:
        times = [row["time"] for row in report.rows if row["model"] == model]
        if times:
            print(f"best {model}: {min(times):g} ms")
