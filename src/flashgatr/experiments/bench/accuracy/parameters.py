"""Numbers of trained parameters, counted on networks that hold no numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from ....nn import EquiLinear
from ...experiment import Experiment
from ...table import find


def count(experiment: Experiment, model: str, options: Mapping[str, Any] | None = None) -> int:
    return _count(experiment.name, model, json.dumps(dict(options or {}), sort_keys=True))


@cache
def _count(experiment: str, model: str, options: str) -> int:
    with torch.device("meta"):
        net = find(experiment).build(model, json.loads(options))
    return trained(net)


def trained(net: nn.Module) -> int:
    """The number of parameters that are trained; those between unlike types are not."""
    unused = sum(x.unused_parameters for x in net.modules() if isinstance(x, EquiLinear))
    return sum(p.numel() for p in net.parameters() if p.requires_grad) - unused
