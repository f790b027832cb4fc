"""The task: from the state of five bodies, predict their positions 1,000 to 2,000 steps later."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...geometry import quaternion_to_matrix
from ...train.settings import ConfigError, RunConfig, check_options, read_options
from ..hashing import hash_of
from ..nbody.metrics import summarise, system_errors
from . import EXPERIMENT
from .data import data_name, load, require


@dataclass(frozen=True)
class Options:
    """data.options of the experiment.

    force, clip: which data: "charges" with forces limited per "coordinate" (as published) or by
        their "norm", or "gravity" (of which `clip` says nothing)
    horizon: number of steps between input and target
    flip_charges: reverse all charges of a training system at random in every step, which leaves its
        motion as it is
    rotate: turn training systems at random in every step
    """

    force: Literal["charges", "gravity"] = "charges"
    clip: Literal["coordinate", "norm"] = "coordinate"
    horizon: int = 1000
    flip_charges: bool = False
    rotate: bool = False

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        return read_options(cls, values)

    def __post_init__(self) -> None:
        check_options(self, horizon=1)
        if self.flip_charges and self.force == "gravity":
            raise ConfigError(
                "data.options.flip_charges needs charges, but data.options.force is gravity"
            )

    @property
    def data(self) -> str:
        """The name of the data."""
        return data_name(self.force, self.clip if self.force == "charges" else "none")


class ChargesBatch(NamedTuple):
    """Systems of n bodies: their states, and their positions at the horizon."""

    charge: Tensor  # (B, n)
    position: Tensor  # (B, n, 3)
    velocity: Tensor  # (B, n, 3)
    target: Tensor  # (B, n, 3)


class ChargesTask:
    """Train on `train`, select by `val`, report on `test`, which is read for evaluation only."""

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())
    gathers_on_device = True
    """Batches are gathered on the device, so that a captured training step can do it."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.options = Options.read(config.data.options)
        self.device = device
        self.folder = Path(config.data.folder)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = EXPERIMENT.build(config.model.name, dict(config.model.options))
        self._limit = config.data.train_samples or None
        require(self.folder, self.options.data, "test")  # fail now rather than after the last step

    @cached_property
    def samples(self) -> int:
        """Number of training systems. Reads the validation set as well, which training needs."""
        self._val  # noqa: B018  fail now rather than at the first validation
        return len(self._train["charge"])

    @cached_property
    def _train(self) -> dict[str, Tensor]:
        return self._load("train", self._limit)

    @cached_property
    def _val(self) -> dict[str, Tensor]:
        return self._load("val", None)

    @cached_property
    def data_hash(self) -> str:
        return hash_of(x.numpy() for x in self._train.values())

    def _load(self, name: str, limit: int | None) -> dict[str, Tensor]:
        return load(self.folder, self.options.data, name, self.options.horizon, limit)

    def batch(self, indices: Tensor) -> ChargesBatch:
        if not hasattr(self, "_resident"):
            self._resident = _to_batch(self._train, self.device)
        chosen = indices.to(self.device)
        batch = ChargesBatch(*(x.index_select(0, chosen) for x in self._resident))
        if self.options.flip_charges:
            sign = (torch.rand(len(chosen), 1, device=self.device) - 0.5).sign()
            batch = batch._replace(charge=sign * batch.charge)
        if self.options.rotate:
            batch = rotated(batch, torch.randn(len(chosen), 4, device=self.device))
        return batch

    def loss(self, model: nn.Module, batch: ChargesBatch) -> tuple[Tensor, dict[str, Tensor]]:
        prediction = model(batch.charge, batch.position, batch.velocity)
        mse = (prediction - batch.target).square().mean()
        return mse, {"mse": mse.detach()}

    def validate(self, model: nn.Module) -> dict[str, float]:
        found = summarise(self.errors(model, self._val))
        return {"score": found["mse"], "median": found["median"], "trimmed": found["trimmed"]}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        return {"test": summarise(self.errors(model, self._load("test", None)))}

    @torch.no_grad()
    def errors(self, model: nn.Module, data: dict[str, Tensor], chunk: int = 1000) -> Tensor:
        """Squared error of every system, in the order of the file."""
        found = []
        for start in range(0, len(data["charge"]), chunk):
            part = {name: x[start : start + chunk] for name, x in data.items()}
            batch = _to_batch(part, self.device)
            prediction = model(batch.charge, batch.position, batch.velocity)
            found.append(system_errors(prediction.cpu(), part["target"]))
        return torch.cat(found)


def rotated(batch: ChargesBatch, quaternions: Tensor) -> ChargesBatch:
    """Turn every system about the origin; quaternions (B, 4) of any length."""
    turn = quaternion_to_matrix(quaternions).mT
    return ChargesBatch(batch.charge, *(x @ turn for x in batch[1:]))


def _to_batch(data: dict[str, Tensor], device: torch.device) -> ChargesBatch:
    return ChargesBatch(*(data[name].to(device, torch.float32) for name in ChargesBatch._fields))
