"""The networks of actor-critic methods: perceptrons side by side, and a policy of random actions.

Perceptrons      (..., in) to (M, ..., out): M perceptrons of one size, in one product per layer
GaussianPolicy   observations to tanh of a Gaussian, with its log-probability
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOG_STD = (-20.0, 2.0)
"""Bounds of the logarithm of a policy's standard deviation, as in SAC."""


class Perceptrons(nn.Module):
    """`count` perceptrons with ReLU between their layers, and weights drawn as `nn.Linear` does."""

    def __init__(self, sizes: tuple[int, ...], count: int = 1) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(sizes):
            bound = 1 / math.sqrt(inputs)
            for parameters, rows in ((self.weights, inputs), (self.biases, 1)):
                drawn = torch.empty(count, rows, outputs).uniform_(-bound, bound)
                parameters.append(nn.Parameter(drawn))

    def forward(self, x: Tensor, *, frozen: bool = False) -> Tensor:
        """frozen: the gradient goes through the network to `x`, but not into its weights."""
        count = len(self.weights[0])
        y = x.flatten(0, -2).expand(count, -1, -1)
        last = len(self.weights) - 1
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            y = torch.baddbmm(bias, y, weight)
            y = y if k == last else F.relu(y)
        return y.view(count, *x.shape[:-1], -1)


def beside(observation: Tensor, rows: Tensor) -> Tensor:
    """Observations (B, O) beside each of the n rows (B, n, C): (B, n, O + C)."""
    seen = observation.unsqueeze(-2).expand(*rows.shape[:-1], -1)
    return torch.cat([seen, rows], dim=-1)


class Drawn(NamedTuple):
    """Random actions of a policy."""

    action: Tensor  # (..., A), from -1 to 1
    log_probability: Tensor  # (...)


class GaussianPolicy(nn.Module):
    """a = tanh(μ(s) + σ(s) ε)."""

    def __init__(self, observation: int, action: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = Perceptrons((observation, *hidden, 2 * action))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the logarithm of the standard deviation before the tanh, (..., A) each."""
        mean, log_std = self.net(observation)[0].chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)

    def draw(self, observation: Tensor, noise: Tensor) -> Drawn:
        """The actions that standard normal `noise` (..., n, A) gives for observations (..., O)."""
        mean, log_std = (x.unsqueeze(-2) for x in self(observation))
        raw = mean + log_std.exp() * noise
        normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        stretch = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # log of the derivative of tanh
        return Drawn(raw.tanh(), (normal - stretch).sum(-1))

    def best(self, observation: Tensor) -> Tensor:
        """The action of the mean."""
        mean, _ = self.forward(observation)
        return mean.tanh()
