"""Errors of estimated noise, in total and by kinds of numbers; zero as an answer has error 1."""

from __future__ import annotations

import torch
from torch import Tensor

from .layouts import objects


def window_errors(errors: Tensor, clamp: Tensor) -> Tensor:
    """Mean squared error of positions, directions and flags of every window, (B, 4) in float64.

    errors: (B, H, 49), zero in clamped frames (B, H). The first column is that of all numbers.
    """
    squares = errors.double().square()
    frames = (~clamp).sum(-1).double()

    def mean(x: Tensor) -> Tensor:
        x = x.flatten(2)
        return x.sum((-2, -1)) / (frames * x.shape[-1])

    return torch.stack([mean(x) for x in (squares, *objects(squares))], dim=-1)


def summarise(errors: Tensor, t: Tensor, steps: int) -> dict[str, float]:
    """Means over windows of `window_errors`, and over those of the first and last quarter of the
    diffusion steps: almost clean and almost noise.
    """
    names = ("mse", "position", "direction", "flag")
    found = dict(zip(names, errors.mean(0).tolist(), strict=True))
    quarter = 4 * t.to(errors.device) // steps
    for name, number in (("nearly_clean", 0), ("nearly_noise", 3)):
        chosen = errors[quarter == number, 0]
        if len(chosen):
            found[name] = chosen.mean().item()
    return {**found, "cases": len(errors)}
