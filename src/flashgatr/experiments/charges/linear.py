"""Predictions without a network, from the positions x and velocities v of single bodies.

static           x
straight line    x + t v      with the true time t
fitted time      x + t v      with the t that is best on the training systems
affine map       A (x, v) + b      likewise; this is what some papers call "Linear"
"""

from __future__ import annotations

import torch
from torch import Tensor

Data = dict[str, Tensor]
"""position, velocity and target, (N, n, 3) each."""


def predictions(train: Data, test: Data, time: float) -> dict[str, Tensor]:
    """Predicted positions (N, n, 3) of the test systems, by the name of the method."""
    x, v = test["position"], test["velocity"]
    moved, speed = train["target"] - train["position"], train["velocity"]
    fitted = (moved * speed).sum() / speed.square().sum()
    solution = torch.linalg.lstsq(_rows(train).flatten(0, 1), train["target"].flatten(0, 1))
    return {
        "static": x,
        "straight line": x + time * v,
        "fitted time": x + fitted * v,
        "affine map": _rows(test) @ solution.solution,
    }


def _rows(data: Data) -> Tensor:
    """(x, v, 1) of every body: (N, n, 7)."""
    x = data["position"]
    return torch.cat([x, data["velocity"], torch.ones_like(x[..., :1])], dim=-1)
