"""The axial networks of the robotics experiment, on objects at 128 times.

GATr with the preset `kuka`, and a Transformer with 144 channels and rotary positions along time.
`mode` is "training" (forward and backward of 32 sequences) or "forward" (200 sequences, without
gradients). On a GPU every case is one CUDA graph; the Transformer also runs with compiled blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ... import AxialGATr
from ...config import preset
from ..baselines.transformer import AxialTransformer
from . import timing, workload
from .timing import CaseReport, Found
from .workload import Make, Work

TIMES, OBJECTS = 128, 5
FEWER_TIMES = 8  # on a CPU
BATCH = {"training": 32, "forward": 200}
"""Sequences of each mode."""
FEWER = 2
NUMBERS = 9, 9
"""Input and output channels of the Transformer."""


def _gatr(device: torch.device) -> Work:
    config = preset("kuka")
    net = AxialGATr(config).to(device)
    return workload.multivector_work(net, config.in_mv_channels, config.in_s_channels, device)


def _transformer(device: torch.device) -> Work:
    net = AxialTransformer(*NUMBERS, 144, num_blocks=20, num_heads=8, rotary=(True, False))
    return workload.feature_work(net.to(device), NUMBERS, device)


MODELS: dict[str, Callable[[torch.device], Work]] = {"gatr": _gatr, "transformer": _transformer}


def measure(
    make: Make, mode: str, size: tuple[int, int, int], *, graph: bool, compiled: bool
) -> Found:
    """Time and memory of one mode on sequences, times and objects of this number."""
    work = make()
    if compiled:
        work.compile()
    step = work.step if mode == "training" else work.predict
    return timing.measure(partial(step, work.sample(*size)), work.device, graph=graph)


def run() -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    precision = workload.usual_precision(device)
    times = TIMES if cuda else FEWER_TIMES
    common = dict(times=times, objects=OBJECTS, precision=precision, cuda_graph=cuda)
    report = CaseReport("kuka-step", keep=cuda, **common)
    with timing.precision(precision):
        for mode, batch in BATCH.items():
            size = batch if cuda else FEWER, times, OBJECTS
            for model, make in MODELS.items():
                for compiled in (False, True) if cuda and model != "gatr" else (False,):
                    settings = {"mode": mode, "batch": size[0], "compile": compiled}
                    todo = partial(
                        measure, partial(make, device), mode, size, graph=cuda, compiled=compiled
                    )
                    report.run(model, settings, todo)
    report.show()
