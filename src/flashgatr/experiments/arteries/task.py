"""The artery experiment as the engine sees it: predict the stress on vessel walls (paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from .. import registry
from ..config import ConfigError, RunConfig, suggest
from ..hashing import hash_of
from . import LABEL_SCALE, models
from .batches import Batch, Packed, pack, sent, turns
from .data import orientation
from .data.mesh import Array, ArteryError, Mesh
from .data.sets import Contents, choose, load
from .metrics import MeshErrors, mesh_errors, relative_change, summarise

assert models  # registers them
DISTANCE = 1e3  # cm
"""How far the meshes of `test_moved` are moved, about 300 lengths of a vessel."""
TOGETHER = 8  # meshes in a batch of an evaluation
MATRICES = (
    orientation.COUNT
)  # at least; a sample beyond the published ones has the next of the same stream


@dataclass(frozen=True)
class Options:
    """data.options of the experiment.

    orientation: "random" (one fixed matrix of O(3) per mesh) or "canonical" (as published).  division: which meshes are for
    training, validation and test.  augment: training meshes are turned and mirrored anew in every step.
    loss: "mse" over the nodes of a batch, as the paper; "relative": mean over meshes of ε²; "epsilon": of ε.
    nodes: train on so many nodes of each mesh, drawn anew in every step (0: on all); steps cost a fraction then, and have one
    shape.  val_limit, test_limit: use the first so many meshes (0: all).
    """

    orientation: Literal["random", "canonical"] = "random"
    division: Literal["original", "published"] = "original"
    augment: bool = False
    loss: Literal["mse", "relative", "epsilon"] = "mse"
    nodes: int = 0
    val_limit: int = 0
    test_limit: int = 0

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                hint = suggest(f"data.options.{name}", [f"data.options.{key}" for key in known])
                raise ConfigError(f"unknown key data.options.{name}; {hint}")
        return cls(**values)

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            choices = get_args(hint)
            if choices:
                fits, expected = value in choices, f"one of {', '.join(map(repr, choices))}"
            elif hint is bool:
                fits, expected = isinstance(value, bool), "true or false"
            else:
                fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
                expected = "an integer of at least 0"
            if not fits:
                raise ConfigError(f"data.options.{name} must be {expected}, got {value!r}")


class ArteryTask:
    """Train on `train`, choose by `val`, report on `test`, there and elsewhere, turned and mirrored."""

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.device = device
        self.options = Options.read(config.data.options)
        self.folder = Path(config.data.folder)
        self.precision = config.train.precision
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = registry.build("arteries", config.model.name, dict(config.model.options))
        self._limits = {
            "train": config.data.train_samples,
            "val": self.options.val_limit,
            "test": self.options.test_limit,
        }
        self._choose("test")  # what is missing is missed now, and not after the last step

    def _choose(self, split: str) -> tuple[Contents, list[int]]:
        """What the folder holds, and which meshes of a set are to be used; an error if they are not there."""
        limit = self._limits[split] or None
        return choose(self.folder, split, limit=limit, division=self.options.division)

    def _count(self, split: str) -> int:
        """How many meshes of a set there are to be used, maybe none."""
        try:
            return len(self._choose(split)[1])
        except ArteryError:
            return 0

    @cached_property
    def samples(self) -> int:
        """Training meshes. Whoever asks is going to train, and needs meshes to validate with."""
        assert self._val
        return len(self._train.counted)

    @cached_property
    def _train(self) -> Packed:
        train = self._read("train")
        self._hash = hash_of(x for m in train for x in (m.position, m.geodesic, _labels(m)))
        smallest = min(train, key=lambda mesh: mesh.nodes)
        if self.options.nodes > smallest.nodes:
            raise ConfigError(
                f"data.options.nodes is {self.options.nodes}, but {smallest.name} has {smallest.nodes} "
                "nodes only; choose at most that, or 0 to train on all nodes"
            )
        return pack(self._oriented(train), self.device)

    @property
    def data_hash(self) -> str:
        assert self._train
        return self._hash

    @cached_property
    def _val(self) -> list[Mesh]:
        return self._oriented(self._read("val"))

    def _read(self, split: str) -> list[Mesh]:
        """Labelled meshes, as in the files."""
        limit = self._limits[split] or None
        found = load(self.folder, split, limit=limit, division=self.options.division)
        for mesh in found:
            if mesh.wss is None or not np.any(np.asarray(mesh.wss)[np.asarray(mesh.mask)]):
                raise ArteryError(
                    f"{mesh.name} has no wall shear stress to learn or compare with on the nodes that "
                    "count; take it out of the data"
                )
        return found

    def _oriented(self, meshes: Sequence[Mesh]) -> list[Mesh]:
        turns = orientations(meshes, self.options.orientation)
        return [orientation.turned(mesh, turn) for mesh, turn in zip(meshes, turns, strict=True)]

    def size(self, number: int) -> int:
        """Nodes of a training mesh."""
        return self._train.size(number)

    @property
    def gathers_on_device(self) -> bool:
        """Whether a captured step can make its batch by itself."""
        return self.options.nodes > 0

    def batch(self, indices: Tensor) -> Batch:
        options = self.options
        if options.nodes:
            numbers = indices.to(self.device)
            return self._train.thinned(numbers, options.nodes, turn=options.augment)
        return self._train.batch(indices.tolist(), turn=options.augment)

    def parts(self, indices: Tensor) -> Iterator[tuple[Batch, float]]:
        """Two meshes of similar size at a time, padded to one of a few sizes, and what they count in the batch's loss.

        A part is (numbers of the meshes, places of their nodes): what they hold is looked up by `loss`, on the device.
        """
        numbers = indices.tolist()
        pairs = self._train.pairs(numbers)
        counts = self.counts(indices)
        matrices = turns(len(numbers), self.device) if self.options.augment else None
        given = [[numbers[i] for i in pair] + [-1] * (2 - len(pair)) for pair, _ in pairs]
        for (pair, length), own in zip(pairs, sent(torch.tensor(given), self.device), strict=True):
            share = sum(counts[i] for i in pair) / sum(counts)
            part: Batch = (own, torch.arange(length, device=self.device))
            if matrices is not None:  # drawn here: graphs that run at the same time must not draw
                part = *part, matrices[[*pair, *pair][:2]]
            yield part, share

    def counts(self, indices: Tensor) -> list[float]:
        """What each mesh counts in a batch's loss: its nodes in the mask, or as many as are drawn of them on average."""
        if self.options.loss != "mse":
            return [1.0] * len(indices)
        counted, nodes = self._train.counted, self.options.nodes
        return [counted[k] * (nodes / self.size(k) if nodes else 1.0) for k in indices.tolist()]

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """On packed, padded or thinned meshes: see `packed`."""
        offsets = None
        if len(batch) < 5:  # a part
            batch = self._train.padded(*batch)
        *inputs, target, mask = batch[:5]
        if target.dim() == 3:
            prediction = model(*inputs, mask=batch[5] if len(batch) > 5 else None)
        else:
            offsets, most = batch[5:]
            prediction = model(*inputs, offsets, int(most))
        squared = (prediction.float() - target).square().sum(-1) * mask
        pooled = squared.sum() / (3 * mask.sum())
        if self.options.loss == "mse":
            return pooled, {}
        sizes = target.square().sum(-1) * mask
        if offsets is not None:
            error, size = (
                torch.segment_reduce(x, "sum", offsets=offsets, axis=0) for x in (squared, sizes)
            )
        else:
            error, size = squared.sum(1), sizes.sum(1)
        share = error / size.clamp(min=1e-12)  # ε² of every mesh
        loss = share if self.options.loss == "relative" else (share + 1e-12).sqrt()
        loss = torch.where(size > 0, loss, 0)  # a pair may lack its second mesh
        return loss.sum() / (size > 0).sum(), {"mse": pooled.detach()}

    def validate(self, model: nn.Module) -> dict[str, float]:
        found = summarise(_errors(self.predictions(model, self._val), self._val))
        return {"score": found["epsilon_mean"], "median": found["epsilon_median"]}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Metrics on `test` (with every mesh's ε) and `val`, if there is one, as configured, without bfloat16's rounding, and on
        the test meshes turned and moved, or mirrored.

        `change` says by how much, relative to them, moving changes the predictions (moved back) in float32 (or TF32,
        where that was trained in): mean and largest of all meshes. Errors are those of the precision of training.
        """
        test = self._oriented(self._read("test"))
        errors = _errors(self.predictions(model, test), test)
        about: dict[str, Any] = {"orientation": self.options.orientation}
        if self._count("train"):  # elsewhere there may be nothing to train on
            about["train_meshes"] = self._count("train")
        contents, _ = self._choose("test")
        if any(header.get("synthetic") for header in contents.headers.values()):
            about["synthetic"] = True
        results: dict[str, dict[str, Any]] = {"test": summarise(errors) | about}
        if self._count("val"):
            validated = _errors(self.predictions(model, self._val), self._val)
            results["val"] = summarise(validated) | about
        results["test"]["per_mesh"] = {
            mesh.name: round(e.epsilon, 4) for mesh, e in zip(test, errors, strict=True)
        }
        still = list(self.predictions(model, test, "float32"))
        if self.precision == "bfloat16":
            results["test_float32"] = summarise(_errors(iter(still), test)) | about
        for name, mirror in (("test_moved", False), ("test_mirrored", True)):
            moves = _moves(len(test), mirror)
            moved = [_moved(mesh, *move) for mesh, move in zip(test, moves, strict=True)]
            found = summarise(_errors(self.predictions(model, moved), moved))
            changes = [
                relative_change(y.double() @ torch.from_numpy(matrix), before)
                for y, before, (matrix, _) in zip(
                    self.predictions(model, moved, "float32"), still, moves, strict=True
                )
            ]
            change = {"change_mean": sum(changes) / len(changes), "change_max": max(changes)}
            results[name] = found | about | change
        return results

    def predictions(
        self, model: nn.Module, meshes: Sequence[Mesh], precision: str | None = None
    ) -> Iterator[Tensor]:
        """The stress on every mesh, in the precision of training unless told."""
        return predict(model, meshes, self.device, precision or self.precision)


def _labels(mesh: Mesh) -> Array:
    assert mesh.wss is not None  # _read saw to it
    return mesh.wss


def orientations(meshes: Sequence[Mesh], kind: str) -> list[Array]:
    """The matrix of O(3) by which each mesh is turned."""
    if kind == "canonical":
        return [np.eye(3) for _ in meshes]
    matrices = orientation.matrices(max([MATRICES, *(mesh.index + 1 for mesh in meshes)]))
    return [matrices[mesh.index] for mesh in meshes]


@torch.no_grad()
def predict(
    model: nn.Module, meshes: Sequence[Mesh], device: torch.device, precision: str = "float32"
) -> Iterator[Tensor]:
    """The stress on every mesh, (N, 3) in dyn/cm², on the CPU. `precision` is one of train.precision."""
    for start in range(0, len(meshes), TOGETHER):
        part = meshes[start : start + TOGETHER]
        packed = pack(part, device).batch(range(len(part)))
        position, normal, geodesic, _, _, offsets, most = packed
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            found = model(position, normal, geodesic, offsets, int(most))
        yield from (LABEL_SCALE * found.float()).cpu().split([mesh.nodes for mesh in part])


def _errors(predictions: Iterator[Tensor], meshes: Sequence[Mesh]) -> list[MeshErrors]:
    return [
        mesh_errors(found, torch.from_numpy(mesh.wss), torch.from_numpy(mesh.mask))
        for found, mesh in zip(predictions, meshes, strict=True)
    ]


def _moves(count: int, mirror: bool) -> list[tuple[Array, Array]]:
    """A rotation (or one with a mirror) and a shift by DISTANCE for each mesh, the same at every call."""
    draw = np.random.default_rng(int(mirror))
    moves = []
    for _ in range(count):
        q, r = np.linalg.qr(draw.normal(size=(3, 3)))
        q = q * np.sign(np.diag(r))
        q = q * (np.linalg.det(q) * (-1 if mirror else 1))
        direction = draw.normal(size=3)
        moves.append((q, DISTANCE * direction / np.linalg.norm(direction)))
    return moves


def _moved(mesh: Mesh, matrix: Array, shift: Array) -> Mesh:
    """The mesh elsewhere; computed in float64, kept in float32 as any mesh."""
    turned = orientation.turned(mesh, matrix)
    exact = mesh.position.astype(np.float64) @ matrix.T + shift
    return replace(turned, position=exact.astype(np.float32))
