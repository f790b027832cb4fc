"""Other implementations, where they are installed: forward and backward of a network of the n-body size, eagerly.

`gatr` is the authors' package. `lgatr` is the transformer of Lorentz symmetry, another algebra without join and distances:
not the same function, but work of the same shape.
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
from .timing import Found, Report

PACKAGES = {"gatr": "GATr", "lgatr": "LGATr"}
"""Package and the class of its network."""
_CONFIG = preset("nbody")


def theirs(package: str) -> nn.Module:
    """The network of another package, as wide and deep as the preset `nbody`."""
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
    """`flashgatr` is ours."""
    net = GATr(_CONFIG) if package == "flashgatr" else theirs(package)
    channels = _CONFIG.in_mv_channels, _CONFIG.in_s_channels
    work = workload.multivector_work(net.to(device), *channels, device, "float32")
    sample = work.sample(BATCH, BODIES)
    return timing.measure(lambda: work.step(sample), device)


def run() -> None:
    device = timing.pick_device()
    installed = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    for name in PACKAGES:
        if name not in installed:
            print(f"libraries: the package {name} would be compared if it were installed")
    if not installed:
        return
    settings = dict(batch=BATCH, items=BODIES, precision="float32")
    report = Report("libraries", keep=device.type == "cuda", **settings)
    with timing.precision("float32"):
        for name in ("flashgatr", *installed):
            report.run(name, {}, partial(measure, name, device))
    report.show()
