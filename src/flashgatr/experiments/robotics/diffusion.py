"""Denoising diffusion of trajectories: the schedule, clamped frames, and the loss.

    x_t = √ᾱ_t x_0 + √(1 - ᾱ_t) ε        ε: standard normal;  t = 0, ..., T - 1

A denoiser estimates ε from x_t, t and the mask of clamped frames. Clamped frames, such as the
current state, are never noisy: they are the condition, and the loss does not see them. The schedule
is the cosine of Nichol and Dhariwal (2021) as Diffuser (Janner et al., 2022) uses it.
Shapes: B trajectories, H frames, D numbers per frame, T diffusion steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Denoiser = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Noisy trajectories (B, H, D), steps (B) and clamped frames (B, H) to noise (B, H, D)."""
Clamps = Literal["first", "ends"]
"""Which frames are clamped in training: the first; or the first, the last or both at random."""
STEPS = 1000


def cosine_betas(steps: int = STEPS, offset: float = 0.008, largest: float = 0.999) -> Tensor:
    """Variances (T) that the forward process adds, in float64.

    ᾱ follows cos²((u + offset) / (1 + offset) · π/2) for u from 0 to 1; the last β are limited.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"a schedule needs at least one step, got {steps!r}")
    u = torch.arange(steps + 1, dtype=torch.float64) / steps
    signal = torch.cos((u + offset) / (1 + offset) * math.pi / 2).square()
    return (1 - signal[1:] / signal[:-1]).clamp(max=largest)


@dataclass(frozen=True)
class Schedule:
    """The shares of signal and noise at every step."""

    signal: Tensor
    """√ᾱ_t, (T)"""
    noise: Tensor
    """√(1 - ᾱ_t), (T)"""

    @classmethod
    def cosine(cls, steps: int = STEPS) -> Schedule:
        """The cosine schedule, in float64 on the CPU."""
        variance = torch.cumprod(1 - cosine_betas(steps), 0)
        return cls(variance.sqrt(), (1 - variance).sqrt())

    @property
    def steps(self) -> int:
        return len(self.signal)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Schedule:
        return Schedule(self.signal.to(device, dtype), self.noise.to(device, dtype))

    def noisy(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t of clean trajectories (B, H, D) and their noise, at steps t (B)."""
        signal, sigma = (x.index_select(0, t)[:, None, None] for x in (self.signal, self.noise))
        return signal * clean + sigma * noise


TARGETS = ("noise", "velocity", "clean")
"""What a network can predict: the noise ε; the velocity v = √ᾱ ε - √(1 - ᾱ) x_0 (Salimans and Ho,
2022); or the clean trajectory x_0. The loss is that of the predicted quantity.
"""


def target_tables(target: str, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Tables (T) of a and b, in float64, with which the noise is ε = a x_t + b · (prediction).

    An error of the prediction is that of the noise divided by b. A network that predicts the noise
    has to copy what it sees; one that predicts the clean trajectory has a smooth answer.
    """
    schedule = Schedule.cosine(steps)
    signal, noise = schedule.signal, schedule.noise
    if target == "noise":
        return torch.zeros_like(noise), torch.ones_like(noise)
    if target == "velocity":
        return noise, signal
    if target == "clean":
        return 1 / noise, -signal / noise
    raise ValueError(f"predict must be one of {', '.join(map(repr, TARGETS))}, got {target!r}")


def draw_clamps(kind: Clamps, count: int, frames: int, device: torch.device) -> Tensor:
    """Masks (B, H) of clamped frames; "ends" draws them with torch's global random numbers."""
    frame = torch.arange(frames, device=device)
    first, last = frame == 0, frame == frames - 1
    if kind == "first":
        return first.expand(count, frames)
    patterns = torch.stack([first, last, first | last])
    return patterns[torch.randint(len(patterns), (count,), device=device)]


def clamped(
    schedule: Schedule,
    clean: Tensor,
    noise: Tensor,
    t: Tensor,
    clamp: Tensor,
    known: Tensor | None = None,
) -> Tensor:
    """What a denoiser sees (B, H, D): noisy trajectories with their clamped frames.

    known: what it sees in the clamped frames, if that is not the clean trajectory.
    """
    own = clean if known is None else known
    return torch.where(clamp.unsqueeze(-1), own, schedule.noisy(clean, noise, t))


def denoising_errors(
    denoiser: Denoiser,
    schedule: Schedule,
    clean: Tensor,
    noise: Tensor,
    t: Tensor,
    clamp: Tensor,
    known: Tensor | None = None,
) -> Tensor:
    """Errors (B, H, D) of the estimated noise, zero in clamped frames. known: as in `clamped`."""
    estimate = denoiser(clamped(schedule, clean, noise, t, clamp, known), t, clamp)
    return (estimate - noise).masked_fill(clamp.unsqueeze(-1), 0)


def mean_over_free_frames(values: Tensor, clamp: Tensor) -> Tensor:
    """Mean (B) of values (B, H, D) that are zero in clamped frames over the other frames."""
    free = (~clamp).sum(-1) * values.shape[-1]
    return values.sum((-2, -1)) / free
