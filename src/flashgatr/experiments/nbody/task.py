"""The n-body experiment as the engine sees it: predict where bodies are after a while (paper, section 4.1)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import registry
from ..config import ConfigError, RunConfig
from . import models
from .data import load
from .metrics import summarise, system_errors

SETS = ("eval", "more_bodies", "translated")
SHIFT = (200.0, 0.0, 0.0)
"""How far the systems of `eval_moved` are moved: the same systems elsewhere."""
REGULARISER = 0.01


class NBodyTask:
    """Train on `train`, choose by `val`, report on the three evaluation sets."""

    gathers_on_device = True
    """A batch is looked up on the device, which a captured step can do by itself."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.scaling = _scaling(config.data.options)
        self.device = device
        self.folder = Path(config.data.folder)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = registry.build("nbody", config.model.name, dict(config.model.options))
        self._train = self._load("train", config.data.train_samples or None)
        self._val = self._load("val", None)
        self.samples = len(self._train["mass"])

    def _load(self, name: str, limit: int | None) -> dict[str, Tensor]:
        return load(self.folder, name, limit)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        if not hasattr(self, "_resident"):
            self._resident = _on(self._train, self.device)
        place = indices.to(self.device)
        batch = tuple(x.index_select(0, place) for x in self._resident)
        if not self.scaling:
            return batch
        spread = math.log1p(self.scaling)
        draw = torch.rand(len(place), device=self.device)
        return rescaled(batch, torch.exp(spread * (2 * draw - 1)))

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        *inputs, target = batch
        prediction, regulariser = model(*inputs)
        mse = (prediction - target).square().mean()
        return mse + REGULARISER * regulariser, {"mse": mse.detach()}

    def validate(self, model: nn.Module) -> dict[str, float]:
        found = summarise(self.errors(model, self._val))
        return {"score": found["mse"], "median": found["median"], "trimmed": found["trimmed"]}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        results = {}
        for name in SETS:
            data = self._load(name, None)
            if models.fits(self.model, data["mass"].shape[1]):
                results[name] = summarise(self.errors(model, data))
        moved = _moved(self._load("eval", None))
        results["eval_moved"] = summarise(self.errors(model, moved))
        return results

    @torch.no_grad()
    def errors(self, model: nn.Module, data: dict[str, Tensor], chunk: int = 1000) -> Tensor:
        """Squared error of every system, in the order of the file."""
        found = []
        for start in range(0, len(data["mass"]), chunk):
            part = {name: x[start : start + chunk] for name, x in data.items()}
            *inputs, _ = _on(part, self.device)
            prediction, _ = model(*inputs)
            found.append(system_errors(prediction.cpu(), part["target"]))
        return torch.cat(found)


def rescaled(batch: tuple[Tensor, ...], factor: Tensor) -> tuple[Tensor, ...]:
    """Every system larger by its factor λ: lengths and velocities λ times, masses λ³ times, around the mean of its bodies.

    Gravity then accelerates λ times as much at λ times the distance, so that the motion is the same motion, larger: exactly
    so also for the integrators.
    """
    mass, position, velocity, target = batch
    lengths = factor[:, None, None]
    center = position.mean(1, keepdim=True)
    position, target = (center + lengths * (x - center) for x in (position, target))
    return mass * factor[:, None] ** 3, position, lengths * velocity, target


def _scaling(options: dict[str, Any]) -> float:
    """data.options.scaling: training systems are made up to so much larger or smaller, anew in every step."""
    unknown = set(options) - {"scaling"}
    if unknown:
        raise ConfigError(
            f"n-body has one of data.options, scaling, got {', '.join(sorted(unknown))}; settings of "
            "the systems are chosen when the data are made (flashgatr data nbody)"
        )
    value = options.get("scaling", 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 10:
        raise ConfigError(
            f"data.options.scaling must be a number from 0 (none) to 10, got {value!r}; 0.2 makes "
            "systems up to 1.2 times as large or as small"
        )
    return float(value)


def straight_line(data: dict[str, Tensor], time: float) -> Tensor:
    """Errors of the guess x₀ + v·t."""
    return system_errors(data["position"] + time * data["velocity"], data["target"])


def _on(data: dict[str, Tensor], device: torch.device) -> tuple[Tensor, ...]:
    names = ("mass", "position", "velocity", "target")
    return tuple(data[name].to(device, torch.float32) for name in names)


def _moved(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same systems elsewhere; moved in float64."""
    shift = data["position"].new_tensor(SHIFT)
    return {**data, "position": data["position"] + shift, "target": data["target"] + shift}
