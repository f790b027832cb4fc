"""The training task of the robotics experiment: estimate the noise of trajectories (paper, 4.3).

A sample is a window of a demonstration. Its noise and its diffusion step are drawn on the device
with torch's random numbers, which the trainer seeds before every step, so batch k is a function of
the seed and k. Weights are chosen by the loss on windows of other demonstrations, at fixed
diffusion steps and with fixed noise; success at planning is measured apart from training.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...train import Task
from ...train.settings import RunConfig
from ..hashing import hash_of
from . import EXPERIMENT, evaluation
from .demonstrations.sets import divided, require_enough, rest
from .demonstrations.shards import to_tensors
from .demonstrations.windows import Demonstrations
from .diffusion import (
    Schedule,
    clamped,
    denoising_errors,
    draw_clamps,
    mean_over_free_frames,
    target_tables,
)
from .evaluation import Planning
from .layouts import HORIZON
from .metrics import summarise, window_errors
from .normalised import Scale, about_vertical, mirrored, released, rotated
from .offline_rl.learners import LEARNERS
from .offline_rl.task import OfflineTask
from .options import Options

FIXED = 20_231_210
"""Seed of the noise of validation and evaluation, which is the same for all runs."""


class TrajectoryBatch(NamedTuple):
    """Windows, what is added to them, and which of their frames are not noisy."""

    clean: Tensor  # (B, H, 49)
    noise: Tensor  # (B, H, 49)
    t: Tensor  # (B)
    clamp: Tensor  # (B, H)


class RoboticsTask:
    """Train on `train`, choose weights by `validation`, report on `test`, and on `test` turned and
    mirrored.
    """

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())
    gathers_on_device = True
    """Batches are gathered on the device, so that a captured training step can do it."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.device = device
        self.options = Options.read(config.data.options)
        self.folder = Path(config.data.folder)
        self.schedule = Schedule.cosine().to(device, torch.float32)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = EXPERIMENT.build(config.model.name, dict(config.model.options))
        _, scale = target_tables(config.model.options.get("predict", "noise"))
        self._per_error = (1 / scale.abs()).to(device, torch.float32)
        """Errors of what the network predicts, per error of the noise (T)."""
        evaluation.require_scenes(self.options)
        self._limit = config.data.train_samples or None
        """Number of training demonstrations."""
        self._how = config.train.precision, config.train.compile

    @cached_property
    def samples(self) -> int:
        """Number of training windows. Reads the validation set as well, which training needs."""
        self._validation  # noqa: B018
        return self._train.count

    @cached_property
    def _sets(self) -> dict[str, Demonstrations]:
        """The demonstrations of the three sets."""
        parts = divided(self.folder, self.options.held_out, self._limit)
        after = rest(self.folder)
        return {name: to_tensors(part, after) for name, part in parts.items()}

    @cached_property
    def _train(self) -> Demonstrations:
        return _normalised(self._sets["train"]).to(self.device)

    @cached_property
    def data_hash(self) -> str:
        train = self._sets["train"]
        return hash_of(x.numpy() for x in (train.states, train.offsets))

    @cached_property
    def _validation(self) -> TrajectoryBatch:
        return self._fixed("validation", self.options.validation_windows)

    @cached_property
    def _test(self) -> TrajectoryBatch:
        return self._fixed("test", self.options.test_windows)

    def _fixed(self, name: str, count: int) -> TrajectoryBatch:
        """Windows of a set, evenly spaced in time, with evenly spaced diffusion steps and noise.

        They are on the CPU: the numbers are the same for every device.
        """
        demonstrations = _normalised(self._sets[name])
        count = min(count, demonstrations.count)
        clean = demonstrations.windows(torch.arange(count) * demonstrations.count // count)
        generator = torch.Generator().manual_seed(FIXED)
        t = (torch.arange(count) * 2 + 1) * self.schedule.steps // (2 * count)
        t = t[torch.randperm(count, generator=generator)]
        noise = torch.randn(clean.shape, generator=generator)
        clamp = draw_clamps("first", count, HORIZON, clean.device)
        return TrajectoryBatch(clean, noise, t, clamp)

    def noisy_windows(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """What a denoiser is given for a few test windows: x, t and clamp, on the device."""
        every = self._fixed("test", count)
        clean, noise, t, clamp = (x.to(self.device) for x in every)
        x = clamped(self.schedule, clean, noise, t, clamp, self._known(clean))
        return x, t, clamp

    def batch(self, indices: Tensor) -> TrajectoryBatch:
        clean = self._train.windows(indices.to(self.device))
        count = len(clean)
        if self.options.augment:
            angle = 2 * math.pi * torch.rand(count, device=self.device)
            clean = rotated(clean, about_vertical(angle)[:, None])
        return TrajectoryBatch(
            clean,
            torch.randn_like(clean),
            torch.randint(self.schedule.steps, (count,), device=self.device),
            draw_clamps(self.options.clamps, count, HORIZON, self.device),
        )

    def loss(self, model: nn.Module, batch: TrajectoryBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self._losses(self._errors(model, batch), batch).mean(), {}

    def _losses(self, errors: Tensor, batch: TrajectoryBatch) -> Tensor:
        """The loss of every window, from errors of its noise."""
        errors = errors * self._per_error.index_select(0, batch.t)[:, None, None]
        values = errors.abs() if self.options.loss == "l1" else errors.square()
        return mean_over_free_frames(values, batch.clamp)

    def _errors(self, model: nn.Module, batch: TrajectoryBatch) -> Tensor:
        clean, noise, t, clamp = batch
        return denoising_errors(model, self.schedule, clean, noise, t, clamp, self._known(clean))

    def _known(self, clean: Tensor) -> Tensor:
        """What a denoiser sees in clamped frames."""
        return released(clean) if self.options.release else clean

    def validate(self, model: nn.Module) -> dict[str, float]:
        losses, found = self._measure(model, self._validation)
        return {"score": losses.mean().item(), "position": found["position"], "flag": found["flag"]}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Rewards of planning; errors on the test set, and on its scenes turned at random or
        mirrored. Without demonstrations, the rewards alone.
        """
        known = evaluation.can_measure_errors(self.folder, self.options)
        errors = self._test_errors(model) if known else {}
        planning = Planning(model, self.options, *self._how)
        found = evaluation.rewards(planning, self.options) | errors
        count = len(self._sets["train"]) if known else self._limit
        return evaluation.with_demonstrations(found, count)

    def _test_errors(self, model: nn.Module) -> dict[str, dict[str, float]]:
        """Errors on the test set, as it is, turned and mirrored."""
        plain = self._test
        generator = torch.Generator().manual_seed(FIXED)
        angle = 2 * math.pi * torch.rand(len(plain.t), generator=generator)
        turn = about_vertical(angle)[:, None]
        turned = plain._replace(clean=rotated(plain.clean, turn), noise=rotated(plain.noise, turn))
        reflected = plain._replace(clean=mirrored(plain.clean), noise=mirrored(plain.noise))
        sets = {"test": plain, "test_turned": turned, "test_mirrored": reflected}
        return {name: self._measure(model, batch)[1] for name, batch in sets.items()}

    @torch.no_grad()
    def _measure(
        self, model: nn.Module, batch: TrajectoryBatch, chunk: int = 256
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss of every window, and the summary of their errors."""
        losses, errors = [], []
        for start in range(0, len(batch.t), chunk):
            part = TrajectoryBatch(*(x[start : start + chunk].to(self.device) for x in batch))
            found = self._errors(model, part)
            losses.append(self._losses(found, part).cpu())
            errors.append(window_errors(found, part.clamp).cpu())
        return torch.cat(losses), summarise(torch.cat(errors), batch.t, self.schedule.steps)


class TaskOfModel:
    """The task of a run: denoisers learn from windows, policies from transitions."""

    option_defaults = RoboticsTask.option_defaults

    def __call__(self, config: RunConfig, device: torch.device) -> Task:
        kind = OfflineTask if config.model.name in LEARNERS else RoboticsTask
        return kind(config, device)


TASK = TaskOfModel()


def require(config: RunConfig) -> None:
    """An error if a run lacks demonstrations, engines or scenes, before hours of training."""
    options = Options.read(config.data.options)
    evaluation.require_scenes(options)
    folder, limit = Path(config.data.folder), config.data.train_samples or None
    require_enough(folder, options.held_out, limit)


def _normalised(demonstrations: Demonstrations) -> Demonstrations:
    return replace(demonstrations, states=Scale().normalize(demonstrations.states))
