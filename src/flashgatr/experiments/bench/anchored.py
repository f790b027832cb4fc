"""Sets of 100,000 to 10,000,000 items, which attend to a few thousand of them: `AnchoredGATr`.

The network has the preset `arteries`, the items are random. The forward pass encodes the anchors
and decodes all items, with weights. Its memory is the peak without input and output. A training
step is forward and backward of 4 sets of 8,192 anchors and 8,192 other items each; its cost does
not depend on the size of the sets that they are drawn from. It draws other anchors in every call.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...anchored import TILE, AnchoredGATr
from ...config import preset
from . import timing, workload
from .timing import CaseReport, Found
from .workload import Work

SIZES, ANCHORS = (100_000, 1_000_000, 10_000_000), (4096, 16384)
SETS, HALF = 4, 8192
FEWER = (2000,), (64,)  # on a CPU
FEWER_SETS, SMALLER_HALF = 2, 64
PART = 1 << 20
"""Items that are drawn at a time, because drawing them takes more memory than they do."""


def work(device: torch.device) -> Work:
    config = preset("arteries")
    net = AnchoredGATr(config).to(device)
    return workload.multivector_work(net, config.in_mv_channels, config.in_s_channels, device)


def forward(device: torch.device, items: int, anchors: int) -> Found:
    """Time of encoding and decoding, and memory beside input and output."""
    made = work(device)
    net = made.net.eval()
    assert isinstance(net, AnchoredGATr)
    parts = [made.draw((min(PART, items - k),))[0] for k in range(0, items, PART)]
    mv, s = (torch.cat(x) for x in zip(*parts, strict=True))
    del parts
    weights = torch.rand(anchors, device=device) + items / anchors
    size = _bytes(mv, s)

    def step() -> None:
        nonlocal size
        with torch.no_grad(), workload.autocast(device, made.precision):
            state = net.encode(mv[:anchors], s[:anchors], weights=weights)
            found = net.decode(state, mv, s, tile=min(TILE, items))
        size = _bytes(mv, s, *found)

    result = timing.measure(step, device)
    if "memory" in result.metrics:
        memory = result.metrics["memory"] - size / 2**20
        result = replace(result, metrics=result.metrics | {"memory": memory})
    return result


def training(device: torch.device, sets: int, half: int, graph: bool) -> Found:
    """Time and memory of forward and backward on `half` anchors and as many other items per set."""
    made = work(device)
    sample = made.sample(sets, 2 * half)
    weights = torch.rand(sets, half, device=device) + 1

    def step() -> None:
        index = torch.rand(sets, 2 * half, device=device).topk(half).indices
        made.step(sample._replace(options=dict(anchors=index, weights=weights)))

    return timing.measure(step, device, graph=graph)


def run() -> None:
    device = timing.pick_device()
    cuda = device.type == "cuda"
    precision = workload.usual_precision(device)
    report = CaseReport("anchored", keep=cuda, precision=precision)
    sizes, anchors = (SIZES, ANCHORS) if cuda else FEWER
    sets, half = (SETS, HALF) if cuda else (FEWER_SETS, SMALLER_HALF)
    with timing.precision(precision):
        for count in anchors:
            for items in sizes:
                settings: dict[str, Any] = {"n_items": items, "anchors": count, "pass": "forward"}
                report.run("gatr", settings, partial(forward, device, items, count))
        for graph in (False, True) if cuda else (False,):
            settings = {"n_items": 2 * half, "anchors": half, "pass": "training", "batch": sets}
            todo = partial(training, device, sets, half, graph)
            report.run("gatr", {**settings, "cuda_graph": graph}, todo)
    report.show()


def _bytes(*given: torch.Tensor) -> int:
    return sum(x.nbytes for x in given)
