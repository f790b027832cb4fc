"""How accurate are the fused operators, compared with the plain layers in the same precision?

The reference for both is the plain layers in float64. The paper's networks run on sets of odd
sizes. An error is the norm of the difference divided by the norm of the exact values, for all
outputs and for the whole gradient. It is the geometric mean over a few random draws, because a
single one may be an outlier.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import GATr, embed_point
from ...config import preset
from ...kernels.paths import plain_kernels
from . import timing, workload
from .timing import CaseReport, Found

SIZES = (1, 7, 17, 129)
DRAWS = 5
SETS = 3
EPSILON = 0.3
"""Distance epsilon. Random inputs give points with weights near zero; with a small epsilon, the
rounding of a few such points would dominate the error."""
PATHS = ("plain", "fused")
Values = tuple[Tensor, Tensor]
"""All outputs, and the whole gradient."""


def values(net: GATr, inputs: Sequence[Tensor], path: str, precision: str) -> Values:
    """Outputs of the network, and the gradient of a fixed projection of them with respect to inputs
    and parameters.
    """
    mv, s = (x.detach().requires_grad_() for x in inputs)
    plain = plain_kernels() if path == "plain" else contextlib.nullcontext()
    with plain, timing.precision(precision), workload.autocast(mv.device, precision):
        obstacle = net.obstacle(mv)
        if path == "fused" and obstacle:
            raise RuntimeError(f"the fused operators do not run here: {obstacle}")
        outputs = [x.flatten() for x in net(mv, s)]
        outer = [torch.linspace(-1, 1, x.numel()).cos().to(x) for x in outputs]
        leaves = [mv, s, *net.parameters()]
        found = torch.autograd.grad(outputs, leaves, outer, materialize_grads=True)
    return torch.cat(outputs).detach(), torch.cat([x.flatten() for x in found])


def measure(
    name: str, items: int, precision: str, device: torch.device, draws: int = DRAWS, **changes: Any
) -> dict[str, Found]:
    """The errors of both paths."""
    logs = torch.zeros(len(PATHS), 2, dtype=torch.float64)
    for seed in range(draws):
        torch.manual_seed(seed)
        config = preset(name, distance_epsilon=EPSILON, out_s_channels=4, **changes)
        net = GATr(config).to(device)
        points = torch.randn(SETS, items, config.in_mv_channels, 3, device=device)
        inputs = embed_point(points), torch.randn(SETS, items, config.in_s_channels, device=device)
        found = [values(net, inputs, path, precision) for path in PATHS]
        exact = values(net.double(), [x.double() for x in inputs], "plain", "float32")
        for log, got in zip(logs, found, strict=True):
            for k, (x, y) in enumerate(zip(got, exact, strict=True)):
                log[k] += math.log(((x - y).norm() / y.norm()).item())
    errors = (logs / draws).exp().tolist()
    return {
        path: Found({"forward error": forward, "gradient error": gradient})
        for path, (forward, gradient) in zip(PATHS, errors, strict=True)
    }


def run() -> None:
    device = timing.pick_device()
    precisions = ("float32", "tf32", "bfloat16") if device.type == "cuda" else ("float32",)
    report = CaseReport("numerics", keep=True, sets=SETS, draws=DRAWS)
    worst = 0.0
    for name in ("nbody", "arteries"):
        for precision in precisions:
            for items in SIZES:
                settings = {"network": name, "precision": precision, "items": items}
                todo = partial(measure, name, items, precision, device)
                found = report.attempt("gatr", settings, todo)
                for path, errors in (found or {}).items():
                    report.add("gatr", {**settings, "path": path}, errors)
                if found:
                    pairs = zip(*(found[path].metrics.values() for path in PATHS), strict=True)
                    worst = max([worst, *(fused / plain for plain, fused in pairs)])
    report.show()
    print(f"largest error of a fused path: {worst:.2f} times the plain one's")
