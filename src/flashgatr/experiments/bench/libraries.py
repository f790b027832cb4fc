"""Other implementations, if they are installed: eager forward and backward at the n-body size.

`gatr` is the authors' package. `lgatr` is the Lorentz-equivariant transformer, with another algebra
and without join and distances: not the same function, but a similar amount of work.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from typing import Any

import torch
from torch import nn

from ... import GATr
from ...config import preset
from . import timing, workload
from .nbody_step import BATCH, BODIES
from .timing import CaseReport, Found

PACKAGES = {"gatr": "GATr", "lgatr": "LGATr"}
"""Packages and the classes of their networks."""
_CONFIG = preset("nbody")


def other_network(package: str) -> nn.Module:
    """The network of another package, with the width and depth of the preset `nbody`."""
    module: Any = importlib.import_module(package)
    network: nn.Module = getattr(module, PACKAGES[package])(
        in_mv_channels=_CONFIG.in_mv_channels,
        out_mv_channels=_CONFIG.out_mv_channels,
        hidden_mv_channels=_CONFIG.hidden_mv_channels,
        in_s_channels=_CONFIG.in_s_channels,
        out_s_channels=_CONFIG.out_s_channels,
        hidden_s_channels=_CONFIG.hidden_s_channels,
        attention=dict(num_heads=_CONFIG.num_heads, multi_query=_CONFIG.multi_query),
        mlp={},
        num_blocks=_CONFIG.num_blocks,
    )
    return network


def measure(package: str, device: torch.device) -> Found:
    """Time and memory of a package's network; "flashgatr" is this package."""
    net = GATr(_CONFIG) if package == "flashgatr" else other_network(package)
    channels = _CONFIG.in_mv_channels, _CONFIG.in_s_channels
    work = workload.multivector_work(net.to(device), *channels, device, "float32")
    sample = work.sample(BATCH, BODIES)
    return timing.measure(lambda: work.step(sample), device)


def run() -> None:
    device = timing.pick_device()
    installed = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    for name in PACKAGES:
        if name not in installed:
            print(f"libraries: the package {name} is not installed and is not compared")
    if not installed:
        return
    settings = dict(batch=BATCH, items=BODIES, precision="float32")
    report = CaseReport("libraries", keep=device.type == "cuda", **settings)
    with timing.precision("float32"):
        for name in ("flashgatr", *installed):
            report.run(name, {}, partial(measure, name, device))
    report.show()
