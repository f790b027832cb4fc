"""The symmetry of the robotics experiment: if a noisy scene is turned about the vertical through
the robot's base, so is the estimated noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..symmetry import DRAWS, equivariance_error
from .normalised import about_vertical, rotated
from .task import RoboticsTask

WINDOWS = 8
"""Test windows, at evenly spaced diffusion steps."""


def symmetry(task: object, model: nn.Module, dtype: torch.dtype) -> float | None:
    """The error of the estimated noise; None for policies, which estimate none."""
    if not isinstance(task, RoboticsTask):
        return None
    x, t, clamp = task.noisy_windows(WINDOWS)
    x = x.to(dtype)

    def noise(turn: Tensor) -> Tensor:
        estimate: Tensor = model(_turned(turn, x), t, clamp)
        return estimate.masked_fill(clamp.unsqueeze(-1), 0)

    generator = torch.Generator().manual_seed(0)
    angles = 2 * math.pi * torch.rand(DRAWS, dtype=torch.float64, generator=generator)
    return equivariance_error(noise, about_vertical(angles), _turned)


def _turned(turn: Tensor, state: Tensor) -> Tensor:
    """States turned by a matrix (3, 3), computed in float64 and rounded to their dtype."""
    return rotated(state.double(), turn.to(state.device)).to(state.dtype)
