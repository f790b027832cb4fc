"""Many small sets of unequal size on a CPU with one thread: packed with offsets, and padded with a
mask.

A GATr of two blocks runs on random sets of 5 to 15 items: 100,000 sets without gradients, and
10,000 sets forward and backward. Packed and padded calls take turns in one process. Times are
processor times, which depend little on other programs; the ratio is the packed time divided by the
padded one, once of medians and once of minima.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .... import GATr, GATrConfig, embed_point, packed_to_padded
from .. import timing
from ..timing import CaseReport, Found

SMALLEST, LARGEST = 5, 15
MANY, FEWER = 100_000, 10_000
NETWORK: dict[str, Any] = dict(
    in_mv_channels=1, out_mv_channels=1, in_s_channels=1, out_s_channels=1, num_blocks=2,
    hidden_mv_channels=2, hidden_s_channels=4, num_heads=1, attention_width=1,
)  # fmt: skip
ROUNDS = 5
LAYOUTS = ("packed", "padded")


def layouts(sets: int) -> tuple[int, list[Callable[[bool], None]]]:
    """The number of items, and functions that run the network on the packed and the padded sets.

    The functions take whether gradients are computed, too.
    """
    torch.manual_seed(0)
    net = GATr(GATrConfig(**NETWORK))
    lengths = torch.randint(SMALLEST, LARGEST + 1, (sets,))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    items = int(offsets[-1])
    mv, s = embed_point(torch.randn(items, 1, 3)), torch.randn(items, 1)
    padded_mv, mask = packed_to_padded(mv, offsets)
    padded_s, _ = packed_to_padded(s, offsets)

    def call(given: tuple[torch.Tensor, torch.Tensor], options: Any, gradients: bool) -> None:
        with torch.set_grad_enabled(gradients):
            out, out_s = net(*given, **options)
            if gradients:
                net.zero_grad(set_to_none=True)
                (out.square().mean() + out_s.square().mean()).backward()

    packed = partial(call, (mv, s), {"offsets": offsets})
    return items, [packed, partial(call, (padded_mv, padded_s), {"mask": mask})]


def measure(sets: int, gradients: bool) -> tuple[int, list[list[float]]]:
    """The number of items, and the processor times of every call of each layout in seconds."""
    items, calls = layouts(sets)
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(1 + ROUNDS):
        for call, times in zip(calls, found, strict=True):
            begin = time.process_time()
            call(gradients)
            times.append(time.process_time() - begin)
    return items, [times[1:] for times in found]  # the first call compiles kernels


def run() -> None:
    if torch.cuda.is_available():
        print(
            "packed-sets is for machines without a GPU; to run it here, set CUDA_VISIBLE_DEVICES=''"
        )
        return
    report = CaseReport("packed-sets", keep=True, threads=1, precision="float32")
    with timing.threads(1):
        for sets, gradients in ((MANY, False), (FEWER, True)):
            case = {"sets": sets, "gradients": gradients}
            found = report.attempt("gatr", case, partial(measure, sets, gradients))
            if found is None:
                continue
            items, times = found
            for statistic, reduce in (("median", statistics.median), ("minimum", min)):
                settings = {**case, "items": items, "statistic": statistic}
                values = [reduce(of_layout) for of_layout in times]
                for layout, value in zip(LAYOUTS, values, strict=True):
                    spent = Found({"processor time": value})
                    report.add("gatr", {**settings, "layout": layout}, spent)
                ratio = Found({"ratio": values[0] / values[1]})
                report.add("gatr", {**settings, "layout": LAYOUTS[0], "to": LAYOUTS[1]}, ratio)
    report.show()
