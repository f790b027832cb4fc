"""The task: from the state of five bodies, predict their positions 1,000 to 2,000 steps later."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...geometry import quaternion_to_matrix
from ...train.settings import RunConfig
from ..nbody.metrics import summarise
from ..nbody.systems import Data, SystemsTask
from . import EXPERIMENT
from .data import load, require
from .options import Options
from .simulate import STEP_SIZE


class ChargesBatch(NamedTuple):
    """Systems of n bodies: their states, and their positions at the horizon."""

    charge: Tensor  # (B, n)
    position: Tensor  # (B, n, 3)
    velocity: Tensor  # (B, n, 3)
    target: Tensor  # (B, n, 3)


class ChargesTask(SystemsTask):
    """Train on `train`, select by `val`, report on `test`, which is read for evaluation only (or
    on `val`, see `Options.test`).
    """

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())
    batch_type = ChargesBatch

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(device, config.data.train_samples or None)
        self.options = Options.read(config.data.options)
        self.folder = Path(config.data.folder)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        model: Any = EXPERIMENT.build(config.model.name, dict(config.model.options))
        model.duration = self.options.horizon * STEP_SIZE
        self.model = model
        self.last = "test" if self.options.test else "val"
        require(self.folder, self.options.data, self.last)  # fail now, not after the last step

    def load(self, name: str, limit: int | None) -> Data:
        data = load(self.folder, self.options.data, name, self.options.horizon, limit)
        return with_reversed(data) if name == "train" and self.options.reverse_time else data

    def predict(self, model: nn.Module, batch: ChargesBatch) -> Tensor:
        prediction: Tensor = model(batch.charge, batch.position, batch.velocity)
        return prediction

    def batch(self, indices: Tensor) -> ChargesBatch:
        batch: ChargesBatch = self.gather(indices)
        if self.options.flip_charges:
            sign = (torch.rand(len(indices), 1, device=self.device) - 0.5).sign()
            batch = batch._replace(charge=sign * batch.charge)
        if self.options.rotate:
            batch = rotated(batch, torch.randn(len(indices), 4, device=self.device))
        return batch

    def loss(self, model: nn.Module, batch: ChargesBatch) -> tuple[Tensor, dict[str, Tensor]]:
        mse = (self.predict(model, batch) - batch.target).square().mean()
        return mse, {"mse": mse.detach()}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        return {self.last: summarise(self.errors(model, self.load(self.last, None)))}


def rotated(batch: ChargesBatch, quaternions: Tensor) -> ChargesBatch:
    """Turn every system about the origin; quaternions (B, 4) of any length."""
    turn = quaternion_to_matrix(quaternions).mT
    return ChargesBatch(batch.charge, *(x @ turn for x in batch[1:]))


def with_reversed(data: Data) -> Data:
    """The systems, and then the same ones on their way from the target back to the input."""
    back = {
        "charge": data["charge"],
        "position": data["target"],
        "velocity": -data["leaving"],
        "target": data["position"],
        "leaving": -data["velocity"],
    }
    return {name: torch.cat([x, back[name]]) for name, x in data.items()}
