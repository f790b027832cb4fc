"""Sample trajectories from a denoiser: every sampler is a table with one row per step.

    x̂_0 = bound((x - √(1 - ᾱ_t) ε(x, t)) / √ᾱ_t)
    x  <- a x + b x̂_0 + c x̂_0' + d z           x̂_0': of the step before; z: standard normal

`ddim` (Song et al., 2021; with eta = 1 the ancestral sampler of Ho et al., 2020) and `dpm_solver`
(DPM-Solver++ 2M, Lu et al., 2022) make the rows; `sample` runs them. On a CUDA device one step is
captured as a graph and replayed. Noise is given as a function of the step, so that a sample is a
function of its arguments; clamped frames are restored after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ...train.order import mix
from .diffusion import Denoiser, Schedule

FAINT = -4.5
"""λ = log(√ᾱ / √(1 - ᾱ)) at which trajectories begin to show: the signal is 1.1 % of the noise."""
Noise = Callable[[int], Tensor]
"""Noise (B, H, D) by number: 0 is where sampling starts, k is added in step k = 1, 2, ...

It is called in order, and once for every number that a step uses.
"""
Progress = Callable[[int, int], None]
"""Called after every step with the number of finished steps and of all steps."""


@dataclass(frozen=True)
class Plan:
    """A sampler: a row per step, in the order in which they run."""

    t: Tensor
    """Diffusion steps (S), integers."""
    signal: Tensor
    """√ᾱ at these steps, (S)."""
    sigma: Tensor
    """√(1 - ᾱ), (S)."""
    rows: Tensor
    """a, b, c and d, (S, 4)."""

    def __len__(self) -> int:
        return len(self.t)

    def to(self, like: Tensor) -> Plan:
        """The plan on the device of a tensor, with numbers of its dtype."""
        values = (getattr(self, field.name) for field in fields(self))
        return Plan(
            *(x.to(like.device, like.dtype if x.is_floating_point() else None) for x in values)
        )


def ancestral(schedule: Schedule) -> Plan:
    """The sampler of DDPM: every step of the schedule, with the variance of the posterior."""
    return ddim(schedule, schedule.steps, eta=1.0)


def ddim(schedule: Schedule, steps: int, *, eta: float = 0.0) -> Plan:
    """DDIM: eta = 0 is deterministic, eta = 1 samples from the posterior q(x_s | x_t, x̂_0).

    Diffusion steps are evenly spaced.
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must be from 0 to 1, got {eta!r}")
    _require_steps(steps, schedule)
    t = torch.linspace(schedule.steps - 1, 0, steps, dtype=torch.float64).round().long()
    signal, sigma, next_signal, next_sigma = _before_and_after(schedule, t)
    kept = (signal / next_signal).square()  # share of the signal's variance that a step kept
    spread = eta * next_sigma / sigma * (1 - kept).sqrt()
    a = (next_sigma.square() - spread.square()).clamp(min=0).sqrt() / sigma
    b = next_signal - a * signal
    return Plan(t, signal, sigma, torch.stack([a, b, torch.zeros_like(a), spread], dim=-1))


def dpm_solver(schedule: Schedule, steps: int) -> Plan:
    """DPM-Solver++ of second order, multistep: deterministic, accurate with 20 to 50 steps.

    Diffusion steps are evenly spaced in the logarithm of signal to noise, λ = log(√ᾱ / √(1 - ᾱ)).
    Evenly spaced in t, λ would jump near both ends, and extrapolation over a jump is inaccurate.
    The first step starts at the last diffusion step and counts as one from `FAINT`: before it,
    there is nothing to see. The first and the last step are of first order; the last one returns
    x̂_0.
    """
    _require_steps(steps, schedule)
    ratio = (schedule.signal / schedule.noise).log()
    faint = max(FAINT, ratio[-1].item())
    wanted = torch.linspace(faint, ratio[0].item(), steps, dtype=torch.float64)
    wanted[0] = ratio[-1]
    nearest = (ratio - wanted[:, None]).abs().argmin(-1).tolist()
    chosen: list[int] = []
    for left, t in zip(range(steps - 1, -1, -1), nearest, strict=True):  # make them distinct
        chosen.append(max(left, min([t, *(x - 1 for x in chosen[-1:])])))
    t = torch.tensor(chosen)
    signal, sigma, next_signal, next_sigma = _before_and_after(schedule, t)
    length = (next_signal / next_sigma).log() - ratio[t]  # infinite in the last step
    both = -next_signal * torch.expm1(-length)
    past = torch.zeros_like(both)
    past[1:-1] = length[1:-1] / length[:-2] / 2
    rows = [next_sigma / sigma, both * (1 + past), -both * past, torch.zeros_like(both)]
    return Plan(t, signal, sigma, torch.stack(rows, dim=-1))


def _require_steps(steps: int, schedule: Schedule) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= schedule.steps:
        raise ValueError(f"the number of steps must be from 1 to {schedule.steps}, got {steps!r}")


def _before_and_after(schedule: Schedule, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Signal and noise at diffusion steps t, and at those that follow; the end is clean."""
    signal, sigma = schedule.signal[t], schedule.noise[t]
    one = torch.ones_like(signal[:1])
    return signal, sigma, torch.cat([signal[1:], one]), torch.cat([sigma[1:], 0 * one])


class SeededNoise:
    """Noise in which every trajectory has its own seed: it does not depend on the others."""

    def __init__(self, seeds: Sequence[int], shape: Sequence[int], like: Tensor) -> None:
        """shape: of one trajectory. like: has the device and the dtype of the noise."""
        self._made = [torch.Generator(like.device).manual_seed(mix(seed)) for seed in seeds]
        self._shape, self._like = (len(seeds), *shape), like

    def __call__(self, number: int) -> Tensor:
        found = self._like.new_empty(self._shape)
        for row, generator in zip(found, self._made, strict=True):
            row.normal_(generator=generator)
        return found


def condition(first: Tensor, frames: int) -> tuple[Tensor, Tensor]:
    """Known trajectories (B, H, D) and clamped frames (B, H) that begin with the given states
    (B, D).
    """
    clamp = torch.arange(frames, device=first.device) == 0
    return first.unsqueeze(1).expand(-1, frames, -1), clamp.expand(len(first), frames)


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    plan: Plan,
    known: Tensor,
    clamp: Tensor,
    noise: Noise,
    *,
    bound: Callable[[Tensor], Tensor] | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Trajectories (B, H, D) that agree with `known` (B, H, D) in the clamped frames (B, H).

    bound: applied to every estimate x̂_0. The first steps divide by a tiny √ᾱ, so without a bound
    small errors of the denoiser become large.
    """
    if known.dim() != 3 or clamp.shape != known.shape[:2] or clamp.dtype != torch.bool:
        raise ValueError(
            "expected known trajectories (B, H, D) and a boolean mask of clamped frames (B, H), "
            f"got {tuple(known.shape)} and {clamp.dtype} {tuple(clamp.shape)}"
        )
    step = _Step(denoiser, plan, known, clamp, bound)
    is_random = (plan.rows[:, -1] != 0).tolist()
    with _frozen(denoiser):
        advance = step.captured() if known.is_cuda else step.advance
        step.start(noise(0))
        for number in range(1, len(plan) + 1):
            if is_random[number - 1]:
                step.z.copy_(noise(number))
            advance()
            if progress is not None:
                progress(number, len(plan))
        if known.is_cuda:
            torch.cuda.synchronize(known.device)  # the graph is freed now
    return step.x


class _Step:
    """One step of a plan, on tensors that stay where they are."""

    def __init__(
        self,
        denoiser: Denoiser,
        plan: Plan,
        known: Tensor,
        clamp: Tensor,
        bound: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.denoiser, self.bound = denoiser, bound
        self.plan = plan.to(known)
        self.known, self.clamp = known.contiguous(), clamp.contiguous()
        self.x, self.before, self.z = (torch.zeros_like(self.known) for _ in range(3))
        self.number = torch.zeros(1, dtype=torch.int64, device=known.device)

    def start(self, noise: Tensor) -> None:
        self.x.copy_(torch.where(self.clamp.unsqueeze(-1), self.known, noise))
        self.before.zero_()
        self.number.zero_()

    def advance(self) -> None:
        plan = self.plan
        t, signal, sigma = (
            x.index_select(0, self.number) for x in (plan.t, plan.signal, plan.sigma)
        )
        a, b, c, d = plan.rows.index_select(0, self.number)[0].unbind()
        noise = self.denoiser(self.x, t.expand(len(self.x)), self.clamp).to(self.x.dtype)
        clean = (self.x - sigma * noise) / signal
        if self.bound is not None:
            clean = self.bound(clean)
        after = a * self.x + b * clean + c * self.before + d * self.z
        self.x.copy_(torch.where(self.clamp.unsqueeze(-1), self.known, after))
        self.before.copy_(clean)
        self.number.add_(1).clamp_(max=len(plan) - 1)

    def captured(self) -> Callable[[], None]:
        """`advance` as a CUDA graph, after a warm-up."""
        stream = torch.cuda.Stream(self.x.device)
        stream.wait_stream(torch.cuda.current_stream(self.x.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.advance()
        torch.cuda.current_stream(self.x.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.advance()
        return graph.replay


def _frozen(denoiser: Denoiser) -> AbstractContextManager[object]:
    """The denoiser's own context for inference, if it has one."""
    frozen: Callable[[], AbstractContextManager[object]] = getattr(denoiser, "frozen", nullcontext)
    return frozen()
