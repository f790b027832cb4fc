"""The n-body task: predict the final positions of bodies (section 4.1 of the paper)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...train.settings import ConfigError, RunConfig
from . import EXPERIMENT, models
from .data import load, require
from .metrics import summarise, system_errors
from .systems import Data, SystemsTask

SETS: tuple[str, ...] = ("eval", "more_bodies", "translated")
VAL: tuple[str, ...] = ("val",)
SHIFT = (200.0, 0.0, 0.0)
"""Translation of the set `eval_moved`, which has the systems of `eval`."""
REGULARISER = 0.01
NUMBERS = {
    "scaling": (10.0, "0 (none) to 10", "0.2 makes systems up to 1.2 times as large or as small"),
    "huber": (math.inf, "0 (squared error) up", "0.01 weighs systems with larger errors less"),
}
"""data.options that are numbers: the largest value, what is allowed, an example."""
DEFAULTS: dict[str, Any] = dict.fromkeys(NUMBERS, 0.0) | {"val": False, "test": True}
"""All data.options."""


class NBodyBatch(NamedTuple):
    """Systems of n bodies: their initial states and final positions."""

    mass: Tensor  # (B, n)
    position: Tensor  # (B, n, 3)
    velocity: Tensor  # (B, n, 3)
    target: Tensor  # (B, n, 3)


class NBodyTask(SystemsTask):
    """Train on `train`, select by `val`, report on the three evaluation sets (or on `val`, see
    `_options`).
    """

    option_defaults = DEFAULTS
    batch_type = NBodyBatch

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(device, config.data.train_samples or None)
        options = _options(config.data.options)
        self.scaling, self.huber = (float(options[name]) for name in NUMBERS)
        self.sets = SETS if options["test"] else VAL
        if options["val"] and options["test"]:
            self.sets += VAL
        self.folder = Path(config.data.folder)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = EXPERIMENT.build(config.model.name, dict(config.model.options))
        for name in self.sets:
            require(self.folder, name)  # fail now rather than after the last step

    def load(self, name: str, limit: int | None) -> Data:
        return load(self.folder, name, limit)

    def predict(self, model: nn.Module, batch: NBodyBatch) -> Tensor:
        prediction: Tensor = model(batch.mass, batch.position, batch.velocity)[0]
        return prediction

    def batch(self, indices: Tensor) -> NBodyBatch:
        batch: NBodyBatch = self.gather(indices)
        if not self.scaling:
            return batch
        spread = math.log1p(self.scaling)
        draw = torch.rand(len(indices), device=self.device)
        return rescaled(batch, torch.exp(spread * (2 * draw - 1)))

    def loss(self, model: nn.Module, batch: NBodyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        prediction, regulariser = model(batch.mass, batch.position, batch.velocity)
        errors = (prediction - batch.target).square().mean((-2, -1))
        mse = errors.mean()
        data_loss = pseudo_huber(errors, self.huber).mean() if self.huber else mse
        return data_loss + REGULARISER * regulariser, {"mse": mse.detach()}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        results = {}
        for name in self.sets:
            data = self.load(name, None)
            bodies = data["mass"].shape[1]
            if models.fits(self.model, bodies):
                results[name] = summarise(self.errors(model, data))
            for k in models.fewer_neighbours(self.model, bodies):
                with models.neighbours(self.model, k):
                    results[f"{name}_k{k}"] = summarise(self.errors(model, data))
        if "eval" in self.sets:
            moved = _moved(self.load("eval", None))
            results["eval_moved"] = summarise(self.errors(model, moved))
        return results


def rescaled(batch: NBodyBatch, factor: Tensor) -> NBodyBatch:
    """Scale every system by its factor λ around the mean position of its bodies.

    Lengths and velocities are multiplied by λ, masses by λ³. Accelerations then grow by λ as well,
    and the motion is the same at a larger scale; this also holds exactly for the integrators.
    """
    mass, position, velocity, target = batch
    lengths = factor[:, None, None]
    center = position.mean(1, keepdim=True)
    position, target = (center + lengths * (x - center) for x in (position, target))
    return NBodyBatch(mass * factor[:, None] ** 3, position, lengths * velocity, target)


def pseudo_huber(errors: Tensor, knee: float) -> Tensor:
    """2δ² (√(1 + e²/δ²) - 1) of squared errors e², with δ the knee: quadratic in e below δ, linear
    above.

    Computed in an equivalent form without the difference, which would lose digits.
    """
    return 2 * errors / (1 + torch.sqrt(1 + errors / knee**2))


def _options(options: dict[str, Any]) -> dict[str, Any]:
    """The data.options, with defaults for those that are not given.

    scaling: training systems are scaled by a random factor between 1 / (1 + scaling) and
        1 + scaling, drawn again in every step.
    huber: root mean squared error of a system above which its loss grows linearly.
    test: evaluate on the evaluation sets at the end; otherwise on the validation systems, to
        compare settings.
    val: evaluate on the validation systems as well, to choose among runs that are also tested.
    """
    unknown = set(options) - set(DEFAULTS)
    if unknown:
        *others, last = DEFAULTS
        raise ConfigError(
            f"n-body's data.options are {', '.join(others)} and {last}, got "
            f"{', '.join(sorted(unknown))}; settings of the systems are chosen when the data are "
            "made (flashgatr data nbody)"
        )
    found = DEFAULTS | options
    for name, value in found.items():
        _check(name, value)
    return found


def _check(name: str, value: Any) -> None:
    if name not in NUMBERS:
        if not isinstance(value, bool):
            raise ConfigError(f"data.options.{name} must be true or false, got {value!r}")
        return
    largest, allowed, example = NUMBERS[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= largest:
        raise ConfigError(
            f"data.options.{name} must be a number from {allowed}, got {value!r}; {example}"
        )


def straight_line(data: dict[str, Tensor], time: float) -> Tensor:
    """Errors of the straight-line guess x₀ + v·t."""
    return system_errors(data["position"] + time * data["velocity"], data["target"])


def _moved(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """The systems translated by `SHIFT`, in float64."""
    shift = data["position"].new_tensor(SHIFT)
    return {**data, "position": data["position"] + shift, "target": data["target"] + shift}
