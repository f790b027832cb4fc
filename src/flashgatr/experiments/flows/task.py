"""The training task: velocity and stress at anchors and other points of vessels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...anchored import Progress
from ...train.settings import ConfigError, RunConfig
from ..arteries.data.field_points import field_files, load_fields
from ..arteries.data.orientation import matrices
from ..hashing import hash_of
from . import EXPERIMENT
from .metrics import NAMES, errors, summarise
from .options import Options
from .vessels import FlowBatch, Vessels, load

SHIFT = 10.0  # cm, by which the vessels of `test_turned` are moved along each axis


class FlowTask:
    """Train on `train`, choose weights by `val`, report on `test`: as it is, and turned."""

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())
    gathers_on_device = True

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.device = device
        self.options = Options.read(config.data.options)
        self.folder = Path(config.data.folder)
        self.precision = config.train.precision
        self._limits = _limits(config)
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = EXPERIMENT.build(config.model.name, dict(config.model.options))
        field_files(self.folder, "test")  # missing test data are an error now, not after training

    @property
    def samples(self) -> int:
        """The number of training vessels."""
        return len(self._train.names)

    @cached_property
    def _train(self) -> Vessels:
        found = self._load("train")
        options = self.options
        for kind, rows in zip(("lumen", "wall"), found.kinds, strict=True):
            for what in ("anchors", "points"):
                wanted = getattr(options, f"{kind}_{what}")
                if wanted > rows.shape[1]:
                    raise ConfigError(
                        f"data.options.{kind}_{what} is {wanted}, but the vessels have only "
                        f"{rows.shape[1]} points of the {kind}; choose at most that"
                    )
        return found

    @cached_property
    def data_hash(self) -> str:
        """The hash of the training data; a run is not resumed with other data."""
        found = load_fields(self.folder, "train", limit=self._limits["train"] or None)
        return hash_of(x for vessel in found for x in (vessel.position, vessel.target))

    @cached_property
    def _val(self) -> Vessels:
        return self._load("val").first(self.options.val_points)

    def _load(self, split: str) -> Vessels:
        limit, points = self._limits[split], self.options.points
        return load(self.folder, split, self.device, limit=limit, points=points)

    def batch(self, indices: Tensor) -> FlowBatch:
        return self._train.batch(indices.to(self.device), self.options)

    def loss(self, model: nn.Module, batch: FlowBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean of the mean squared errors in the lumen and on the wall."""
        found = model(*batch[:4], batch.anchors, batch.weights).float()
        squared = (found - batch.target).square().mean(-1)
        parts = {}
        for kind, name in enumerate(("mse_velocity", "mse_stress")):
            counts = batch.mask & (batch.kind == kind)
            parts[name] = (squared * counts).sum() / counts.sum().clamp(min=1)
        loss = (parts["mse_velocity"] + parts["mse_stress"]) / 2
        return loss, {name: x.detach() for name, x in parts.items()}

    def validate(self, model: nn.Module) -> dict[str, float]:
        found = summarise(self._errors(model, self._val))
        return {"score": sum(found[name] for name in NAMES) / 2} | {n: found[n] for n in NAMES}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Errors at the points of the test vessels, of the validation vessels, and of test vessels
        that were turned and moved, with the largest change of predictions (turned back, relative,
        in float32).
        """
        test = self.test_vessels().first(self.options.test_points)
        about = {"train_vessels": self.train_vessels}
        about["points"] = _points(test)
        about["anchors"] = sum(self.options.anchors)
        results: dict[str, Any] = {}
        for name, some in (("test", test), ("val", self._val)):
            own = about | {"points": _points(some)}
            results[name] = summarise(self._errors(model, some)) | own
        turn = torch.from_numpy(matrices(len(test.names)).copy())
        turn = (turn * torch.linalg.det(turn)[:, None, None]).to(test.wall)  # no reflections
        turned = test.turned(turn, torch.full((len(turn), 3), SHIFT).to(turn))
        changes = [
            float((after @ matrix - before).norm() / before.norm())
            for before, after, matrix in zip(
                self.predictions(model, test, "float32"),
                self.predictions(model, turned, "float32"),
                turn,
                strict=True,
            )
        ]
        found = summarise(self._errors(model, turned)) | about
        results["test_turned"] = found | {"change_max": max(changes)}
        return results

    def predictions(
        self,
        model: nn.Module,
        vessels: Vessels,
        precision: str | None = None,
        anchors: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """Predictions (L + W, 3) on each vessel. anchors: of the lumen and of the wall.

        progress: called after every tile with the number of finished points and that of all.
        """
        half = (precision or self.precision) == "bfloat16"
        counts = self.options.anchors if anchors is None else anchors

        def report(number: int, done: int, total: int) -> None:
            if progress is not None:
                progress(number * total + done, len(vessels.names) * total)

        for number in range(len(vessels.names)):
            chosen, weights = vessels.fixed_anchors(number, counts, self.options.anchor_method)
            rows = torch.cat([x[number] for x in vessels.kinds])
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
                about = chosen, weights, rows, partial(report, number)
                yield model.predict(*about)  # type: ignore[operator]

    def _errors(
        self,
        model: nn.Module,
        vessels: Vessels,
        anchors: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[dict[str, float]]:
        found = self.predictions(model, vessels, anchors=anchors, progress=progress)
        return [
            errors(y, torch.cat([x[number] for x in vessels.kinds]))
            for number, y in enumerate(found)
        ]

    @property
    def train_vessels(self) -> int:
        """As `samples`, without reading the files."""
        files = len(field_files(self.folder, "train"))
        return min(files, self._limits["train"] or files)

    def test_vessels(self) -> Vessels:
        """All points of the test vessels."""
        return self._load("test")

    def errors_at(
        self,
        model: nn.Module,
        vessels: Vessels,
        points: int,
        anchors: Sequence[int],
        progress: Progress | None = None,
    ) -> dict[str, float]:
        """Mean errors at the first `points` of each kind, with so many anchors among them."""
        return summarise(self._errors(model, vessels.first(points), anchors, progress))


def require(config: RunConfig) -> None:
    """An error if a run lacks vessels of a set, before it trains."""
    for split, limit in _limits(config).items():
        field_files(config.data.folder, split, limit=limit or None)


def _limits(config: RunConfig) -> dict[str, int]:
    """How many vessels of each set are used; 0: all."""
    options = Options.read(config.data.options)
    own = {"val": options.val_limit, "test": options.test_limit}
    return {"train": config.data.train_samples} | own


def _points(vessels: Vessels) -> int:
    """Points of each vessel."""
    return sum(x.shape[1] for x in vessels.kinds)
