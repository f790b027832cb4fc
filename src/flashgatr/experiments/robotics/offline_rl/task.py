"""The training task of CQL and BCQ: learn to act from transitions of demonstrations.

A sample is a transition. What a learner draws comes from torch's random numbers, which the trainer
seeds before every step. No loss on other demonstrations says how well a policy acts. Validation
compares its actions with the expert's; to end with the last weights, as the methods were published,
set train.restore_best = false.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ....precision import full_precision
from ....train.answers import undisturbed
from ....train.settings import ConfigError, RunConfig
from ...hashing import hash_of
from .. import EXPERIMENT, evaluation
from ..demonstrations.sets import divided
from ..options import Options
from .acting import Acting
from .learner import Learner
from .transitions import TransitionBatch, Transitions

FIXED = 20_231_210
"""Seed of the noise of validation and evaluation, which is the same for all runs."""
DENOISING = ("loss", "clamps", "release", "augment", "sampler", "sampling_steps")
"""Options that concern denoisers only."""


class OfflineTask:
    """Train on the transitions of `train`, compare actions on `validation`, act in scenes."""

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())
    gathers_on_device = True

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.device = device
        self.options = Options.read(config.data.options)
        self.folder = Path(config.data.folder)
        _require_options(config, self.option_defaults)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = EXPERIMENT.build(config.model.name, dict(config.model.options))
        self.rate_factors = _learner(self.model).rate_factors
        evaluation.require_scenes(self.options)
        self._limit = config.data.train_samples or None

    @cached_property
    def samples(self) -> int:
        """Number of training transitions. Reads the validation set as well."""
        self._validation  # noqa: B018
        return len(self._train)

    @cached_property
    def _sets(self) -> dict[str, Transitions]:
        parts = divided(self.folder, self.options.held_out, self._limit)
        return {name: Transitions.of(part) for name, part in parts.items()}

    @cached_property
    def _train(self) -> Transitions:
        return self._sets["train"].to(self.device)

    @cached_property
    def data_hash(self) -> str:
        train = self._sets["train"]
        return hash_of(x.numpy() for x in (train.states, train.reward, train.last))

    @cached_property
    def _validation(self) -> TransitionBatch:
        return self._spaced("validation", self.options.validation_windows)

    @cached_property
    def _test(self) -> TransitionBatch:
        return self._spaced("test", self.options.test_windows)

    def _spaced(self, name: str, count: int) -> TransitionBatch:
        """Transitions of a set, evenly spaced over its demonstrations."""
        every = self._sets[name]
        count = min(count, len(every))
        return every.batch(torch.arange(count) * len(every) // count)

    def batch(self, indices: Tensor) -> TransitionBatch:
        return self._train.batch(indices.to(self.device))

    def loss(self, model: nn.Module, batch: TransitionBatch) -> tuple[Tensor, dict[str, Tensor]]:
        losses: dict[str, Tensor] = model(batch)
        return torch.stack(list(losses.values())).sum(), losses

    def after_step(self) -> None:
        _learner(self.model).follow()

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The error of actions is the score; the value of the expert's, and the losses, follow."""
        error, value = self._measure(model, self._validation)
        with torch.no_grad(), undisturbed(self.device):
            torch.manual_seed(FIXED)
            losses = model(self._sent(self._validation))
        return {"score": error, "value": value} | {k: x.item() for k, x in losses.items()}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Rewards of acting, and the error of actions on the test set, if there is one."""
        known = evaluation.can_measure_errors(self.folder, self.options)
        errors: dict[str, dict[str, Any]] = {}
        if known:
            error, value = self._measure(model, self._test)
            cases = len(self._test.reward)
            errors["test"] = {"action_mse": error, "value": value, "cases": cases}
        found = evaluation.rewards(Acting(_learner(model)), self.options) | errors
        count = self._sets["train"].demonstrations if known else self._limit
        return evaluation.with_demonstrations(found, count)

    @torch.no_grad()
    def _measure(self, model: nn.Module, batch: TransitionBatch) -> tuple[float, float]:
        """The mean squared error of actions, in their unit, and the mean value of the expert's."""
        learner, on = _learner(model), self._sent(batch)
        generator = torch.Generator().manual_seed(FIXED)
        noise = torch.randn((len(on.reward), *learner.noise_shape), generator=generator)
        with full_precision(self.device):
            action = learner.act(on.observation, noise.to(self.device))
            value = learner.values(on.observation, on.action.unsqueeze(-2))
        return (action - on.action).square().mean().item(), value.mean().item()

    def _sent(self, batch: TransitionBatch) -> TransitionBatch:
        return TransitionBatch(*(x.to(self.device) for x in batch))


def _learner(model: nn.Module) -> Learner:
    assert isinstance(model, Learner)
    return model


def _require_options(config: RunConfig, defaults: dict[str, Any]) -> None:
    """Refuse settings that have no effect on a policy."""
    for name in DENOISING:
        if config.data.options.get(name, defaults[name]) != defaults[name]:
            raise ConfigError(
                f"data.options.{name} is for denoisers; {config.model.name} acts frame by frame, "
                "so leave it out"
            )
    if config.train.strategy == "fsdp":
        raise ConfigError(
            f"train.strategy = 'fsdp' shards large networks, {config.model.name} has small ones "
            "whose targets follow whole; use 'ddp'"
        )
