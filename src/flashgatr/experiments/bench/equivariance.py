"""How accurate is the network near the origin and far from it?

For each precision and distance: the largest error of the invariant outputs, divided by their
standard deviation. The reference is float64 on the same input, which is moved in float64 and then
rounded; the reference of float64 itself is the scene at the origin. The network has 10 blocks of
16 mv + 128 s channels with default initialisation; results are means over three seeds.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ... import GATr, embed_point, embed_translation
from ..results import record

DISTANCES = (0.0, 1e2, 1e3, 1e4)
PRECISIONS = ("float64", "float32", "bfloat16 autocast")
SEEDS = 3


def scene(distance: float, seed: int) -> tuple[Tensor, Tensor]:
    """Points and velocities of four sets of 16 items at this distance from the origin, and random
    scalars; float64.
    """
    generator = torch.Generator().manual_seed(seed)
    points, velocity = torch.randn(2, 4, 16, 3, generator=generator, dtype=torch.float64)
    shift = distance * torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
    mv = torch.stack([embed_point(points + shift), embed_translation(velocity)], dim=-2)
    return mv, torch.randn(4, 16, 1, generator=generator, dtype=torch.float64)


@torch.no_grad()
def error(distance: float, precision: str, recenter: bool, device: torch.device) -> float:
    """Mean over seeds of max |invariant - exact| / std(exact)."""
    total = 0.0
    dtype = torch.float64 if precision == "float64" else torch.float32
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        net = GATr(
            in_mv_channels=2,
            in_s_channels=1,
            out_mv_channels=2,
            out_s_channels=16,
            recenter=recenter,
        ).to(device, dtype)
        mv, s = (x.to(device, dtype) for x in scene(distance, seed))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16 autocast"):
            found = net(mv, s)[1]
        if dtype == torch.float64:
            mv, s = (x.to(device) for x in scene(0.0, seed))
        net.config = dataclasses.replace(net.config, recenter=True)
        exact = net.double()(mv.double(), s.double())[1]
        total += ((found - exact).abs().max() / exact.std()).item()
    return total / SEEDS


def run() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'precision':>20} {'recentred':>9} " + " ".join(f"{d:>9.0f}" for d in DISTANCES))
    for precision in PRECISIONS:
        for recenter in (True, False):
            errors = [error(d, precision, recenter, device) for d in DISTANCES]
            for distance, value in zip(DISTANCES, errors, strict=True):
                settings = dict(dtype=precision, distance=distance, recenter=recenter, seeds=SEEDS)
                record("equivariance", "gatr", "invariant error, max/std", value, "1", settings)
            print(f"{precision:>20} {recenter!s:>9} " + " ".join(f"{e:>9.1e}" for e in errors))
