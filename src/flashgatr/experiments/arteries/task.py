"""The training task of the artery experiment: predict the stress on vessel walls (paper, 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...train.settings import ConfigError, RunConfig, check_options, read_options
from ..baselines.surfaces.levels import Hierarchy
from ..hashing import hash_of
from . import EXPERIMENT
from .anchoring import AnchorChoice, GivenAnchors, anchored
from .batches import Batch, MeshPair, PackedBatch, PackedMeshes, PaddedBatch, pack, sent, turns
from .data.levels import with_levels
from .data.mesh import Array, ArteryError, Mesh
from .data.orientation import orientations, turned
from .data.sets import DataFolder, choose, load
from .inference import predict_meshes, predicted
from .metrics import MeshErrors, mesh_errors, relative_change, summarise

DISTANCE = 1e3  # cm
"""How far the meshes of `test_moved` are moved: about 300 times the length of a vessel."""

POOLED = ("mse", "l1")
"""Losses that are means over the nodes of a batch, not over its meshes."""


@dataclass(frozen=True)
class Options:
    """data.options of the experiment.

    orientation: "random" (one fixed matrix of O(3) per mesh) or "canonical" (as published)
    division: which meshes are for training, validation and test
    augment: training meshes are rotated and mirrored at random in every step
    loss: "mse" over the nodes of a batch, as in the paper; "l1": their mean absolute error;
        "relative": mean of ε² over meshes; "epsilon": mean of ε
    nodes: train on this many nodes of each mesh, drawn again in every step (0: on all nodes, which
        networks on surfaces need)
    anchors: the nodes attend to this many others of their mesh, chosen among all of its nodes again
        in every step; the loss counts both (0: they attend to each other). Validation and test use
        anchors, too, and predict all nodes.
    anchor_method: how anchors are chosen, see `choose_anchors`
    anchor_weights: an anchor counts as the nodes that it stands for
    val_limit, test_limit: use the first meshes only (0: all)
    test: evaluate on the test meshes at the end; otherwise on the validation meshes, to compare
        settings
    """

    orientation: Literal["random", "canonical"] = "random"
    division: Literal["original", "published"] = "original"
    augment: bool = False
    loss: Literal["mse", "l1", "relative", "epsilon"] = "mse"
    nodes: int = 0
    anchors: int = 0
    anchor_method: Literal["farthest", "random", "medoids"] = "medoids"
    anchor_weights: bool = True
    val_limit: int = 0
    test_limit: int = 0
    test: bool = True

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        return read_options(cls, values)

    def __post_init__(self) -> None:
        check_options(self)
        if self.anchors and not self.nodes:
            raise ConfigError(
                f"data.options.anchors is {self.anchors}, but data.options.nodes is 0; set it to "
                "the number of nodes of each mesh that are trained on beside the anchors, such as "
                "512"
            )

    @property
    def choice(self) -> AnchorChoice | None:
        """How anchors are chosen; None for attention among all nodes."""
        if not self.anchors:
            return None
        return AnchorChoice(self.anchors, self.anchor_method, self.anchor_weights)


class ArteryTask:
    """Train on `train`, choose weights by `val`, report on `test`: plain, moved and mirrored (or
    on `val`, see `Options.test`).
    """

    option_defaults: ClassVar[dict[str, Any]] = asdict(Options())

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        self.device = device
        self.options = Options.read(config.data.options)
        self.folder = Path(config.data.folder)
        self.precision = config.train.precision
        torch.manual_seed(config.seed)  # initial weights are a function of the seed
        self.model = EXPERIMENT.build(config.model.name, dict(config.model.options))
        if self.options.anchors:
            self.model = anchored(self.model)
        self._hierarchy: Hierarchy | None = getattr(self.model, "hierarchy", None)
        if self._hierarchy is not None:
            self._require_whole_meshes(config)
        self._limits = {
            "train": config.data.train_samples,
            "val": self.options.val_limit,
            "test": self.options.test_limit,
        }
        self.last = "test" if self.options.test else "val"
        self._choose(self.last)  # missing data are an error now, not after the last step

    def _require_whole_meshes(self, config: RunConfig) -> None:
        """Refuse settings that a network on surfaces has no use for."""
        name = config.model.name
        if self.options.nodes:
            raise ConfigError(
                f"{name} needs whole meshes, but data.options.nodes is {self.options.nodes}; set "
                "it to 0"
            )
        if config.train.cuda_graph:
            raise ConfigError(
                f"{name} does not run as CUDA graphs, which take two meshes at a time: its batch "
                "normalisation needs them all; set train.cuda_graph = false"
            )

    def _choose(self, split: str) -> tuple[DataFolder, list[int]]:
        """What the folder holds, and the meshes of a set to use; an error if they are missing."""
        limit = self._limits[split] or None
        return choose(self.folder, split, limit=limit, division=self.options.division)

    def _count(self, split: str) -> int:
        """The number of meshes of a set to use; 0 if the folder has none."""
        try:
            return len(self._choose(split)[1])
        except ArteryError:
            return 0

    @cached_property
    def samples(self) -> int:
        """The number of training meshes. Training also needs validation meshes: load them here."""
        if not self._val:
            raise ArteryError(f"{self.folder} has no val meshes to choose the best weights by")
        return len(self._train.counted)

    @cached_property
    def _loaded(self) -> tuple[PackedMeshes, str]:
        """The training meshes, and the hash of their files' numbers."""
        train = self._read("train")
        hash_of_train = hash_of(x for m in train for x in (m.position, m.geodesic, _labels(m)))
        smallest = min(train, key=lambda mesh: mesh.nodes)
        for name in ("nodes", "anchors"):
            wanted = getattr(self.options, name)
            if wanted > smallest.nodes:
                raise ConfigError(
                    f"data.options.{name} is {wanted}, but {smallest.name} has {smallest.nodes} "
                    "nodes only; choose at most that, or 0 for all nodes"
                )
        return pack(self._oriented(train), self.device), hash_of_train

    @cached_property
    def _train(self) -> PackedMeshes:
        return self._loaded[0]

    @property
    def data_hash(self) -> str:
        """The hash of the training data; a run is not resumed with other data."""
        return self._loaded[1]

    @cached_property
    def _val(self) -> list[Mesh]:
        return self._oriented(self._read("val"))

    def last_meshes(self, most: int | None = None) -> list[Mesh]:
        """The meshes that the end of a run evaluates in their orientation, or the first ones."""
        if not self.options.test:
            return self._val[:most]
        limit = None if most is None else min(most, self._count("test"))
        return self._oriented(self._read("test", limit))

    def _read(self, split: str, limit: int | None = None) -> list[Mesh]:
        """The meshes of a set as in the files; all of them must have labels."""
        limit = limit or self._limits[split] or None
        found = self._linked(load(self.folder, split, limit=limit, division=self.options.division))
        for mesh in found:
            if mesh.wss is None or not np.any(np.asarray(mesh.wss)[np.asarray(mesh.mask)]):
                raise ArteryError(
                    f"{mesh.name} has no wall shear stress to learn or compare with on the nodes "
                    "that "
                    "count; take it out of the data"
                )
        return found

    def _linked(self, meshes: list[Mesh], *, keep: bool = True) -> list[Mesh]:
        """These meshes with scales and neighbours, if the model wants them. They are computed
        before the meshes are turned; `keep` writes them beside the data.
        """
        if self._hierarchy is None:
            return meshes
        return with_levels(meshes, self._hierarchy, self.folder if keep else None)

    def _oriented(self, meshes: Sequence[Mesh]) -> list[Mesh]:
        matrices = orientations(meshes, self.options.orientation)
        return [turned(mesh, matrix) for mesh, matrix in zip(meshes, matrices, strict=True)]

    def size(self, number: int) -> int:
        """The number of nodes of a training mesh."""
        return self._train.size(number)

    @property
    def gathers_on_device(self) -> bool:
        """Whether a captured step can make its batch on the device."""
        return self.options.nodes > 0

    def batch(self, indices: Tensor) -> PackedBatch | PaddedBatch:
        """Whole meshes, packed; or data.options.nodes nodes of each, and anchors."""
        options = self.options
        if options.nodes:
            numbers = indices.to(self.device)
            about: dict[str, Any] = dict(turn=options.augment, anchors=options.choice)
            return self._train.thinned(numbers, options.nodes, **about)
        return self._train.batch(indices.tolist(), turn=options.augment)

    def parts(self, indices: Tensor) -> Iterator[tuple[MeshPair, float]]:
        """Pairs of meshes of similar size, each with its share of the batch's loss.

        A pair names its meshes; `loss` looks up their nodes on the device.
        """
        numbers = indices.tolist()
        pairs = self._train.pairs(numbers)
        counts = self.counts(indices)
        matrices = turns(len(numbers), self.device) if self.options.augment else None
        given = [[numbers[i] for i in pair] + [-1] * (2 - len(pair)) for pair, _ in pairs]
        for (pair, length), own in zip(pairs, sent(torch.tensor(given), self.device), strict=True):
            share = sum(counts[i] for i in pair) / sum(counts)
            places = torch.arange(length, device=self.device)
            # Drawn here, because graphs that run at the same time must not draw random numbers.
            turn = None if matrices is None else matrices[[*pair, *pair][:2]]
            yield MeshPair(own, places, turn), share

    def counts(self, indices: Tensor) -> list[float]:
        """The weight of each mesh in the loss: its masked nodes, or how many are drawn on
        average (of anchors, about as many as of other nodes).
        """
        if self.options.loss not in POOLED:
            return [1.0] * len(indices)
        counted, nodes = self._train.counted, self.options.nodes + self.options.anchors
        return [counted[k] * (nodes / self.size(k) if nodes else 1.0) for k in indices.tolist()]

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if isinstance(batch, MeshPair):
            batch = self._train.padded(batch)
        target, mask = batch.target, batch.mask
        if isinstance(batch, PackedBatch):
            prediction = predicted(model, batch)
        else:
            about = {} if batch.anchors is None else dict(anchors=batch.anchors)
            if batch.weights is not None:
                about["weights"] = batch.weights
            prediction = model(*batch[:3], mask=batch.valid, **about)
        difference = prediction.float() - target
        squared = difference.square().sum(-1) * mask
        pooled = squared.sum() / (3 * mask.sum())
        if self.options.loss == "mse":
            return pooled, {}
        if self.options.loss == "l1":
            return (difference.abs().sum(-1) * mask).sum() / (3 * mask.sum()), {
                "mse": pooled.detach()
            }
        sizes = target.square().sum(-1) * mask
        if isinstance(batch, PackedBatch):
            error, size = (
                torch.segment_reduce(x, "sum", offsets=batch.offsets, axis=0)
                for x in (squared, sizes)
            )
        else:
            error, size = squared.sum(1), sizes.sum(1)
        share = error / size.clamp(min=1e-12)  # ε² of each mesh
        loss = share if self.options.loss == "relative" else (share + 1e-12).sqrt()
        loss = torch.where(size > 0, loss, 0)  # the last pair may have one mesh
        return loss.sum() / (size > 0).sum(), {"mse": pooled.detach()}

    def validate(self, model: nn.Module) -> dict[str, float]:
        found = summarise(_errors(self.predictions(model, self._val), self._val))
        return {"score": found["epsilon_mean"], "median": found["epsilon_median"]}

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """Metrics on the test meshes (with ε of each) and on the validation meshes, if any; with
        data.options.test = false on the validation meshes alone (with ε of each).

        If training ran in bfloat16, `test_float32` has the metrics without its rounding.
        A run with anchors predicts with anchors; `test_full` has its metrics with attention among
        all nodes. `test_moved` and `test_mirrored` have the metrics on test meshes that were
        rotated and moved, or mirrored, too. `change_mean` and `change_max` say how much that
        changes the predictions (moved back, relative to those on `test`, computed in float32, or in
        TF32 if training used it). Moved and mirrored meshes keep the anchors of the test meshes.
        """
        test = self.last_meshes()
        errors = _errors(self.predictions(model, test), test)
        about: dict[str, Any] = {"orientation": self.options.orientation}
        if self._count("train"):  # a folder may hold test meshes only
            about["train_meshes"] = self._count("train")
        contents, _ = self._choose(self.last)
        if any(header.get("synthetic") for header in contents.headers.values()):
            about["synthetic"] = True
        results: dict[str, dict[str, Any]] = {self.last: summarise(errors) | about}
        results[self.last]["per_mesh"] = {
            mesh.name: round(e.epsilon, 4) for mesh, e in zip(test, errors, strict=True)
        }
        if not self.options.test:
            return results
        if self._count("val"):
            validated = _errors(self.predictions(model, self._val), self._val)
            results["val"] = summarise(validated) | about
        kept = self._anchors(test)
        still = list(self.predictions(model, test, "float32", kept))
        if self.precision == "bfloat16":
            results["test_float32"] = summarise(_errors(iter(still), test)) | about
        if self.options.anchors:
            full = predict_meshes(model, test, self.device, self.precision)
            results["test_full"] = summarise(_errors(full, test)) | about
        for name, mirror in (("test_moved", False), ("test_mirrored", True)):
            moves = _moves(len(test), mirror)
            moved = [_moved(mesh, *move) for mesh, move in zip(test, moves, strict=True)]
            moved = self._linked(moved, keep=False)  # rounding may change who is near
            found = summarise(_errors(self.predictions(model, moved, None, kept), moved))
            changes = [
                relative_change(y.double() @ torch.from_numpy(matrix), before)
                for y, before, (matrix, _) in zip(
                    self.predictions(model, moved, "float32", kept), still, moves, strict=True
                )
            ]
            change = {"change_mean": sum(changes) / len(changes), "change_max": max(changes)}
            results[name] = found | about | change
        return results

    def predictions(
        self,
        model: nn.Module,
        meshes: Sequence[Mesh],
        precision: str | None = None,
        anchors: list[GivenAnchors] | None = None,
    ) -> Iterator[Tensor]:
        """The stress on each mesh, by default in the precision of training; with these anchors, or
        those of data.options.
        """
        how, choice = precision or self.precision, anchors or self.options.choice
        return predict_meshes(model, meshes, self.device, how, anchors=choice)

    def _anchors(self, meshes: Sequence[Mesh]) -> list[GivenAnchors] | None:
        """The anchors of every mesh; None for attention among all nodes."""
        choice = self.options.choice
        if choice is None:
            return None
        places = (torch.from_numpy(mesh.position).to(self.device).float() for mesh in meshes)
        return [GivenAnchors(*choice.on(place)) for place in places]


def _labels(mesh: Mesh) -> Array:
    assert mesh.wss is not None  # checked by _read
    return mesh.wss


def _errors(predictions: Iterator[Tensor], meshes: Sequence[Mesh]) -> list[MeshErrors]:
    return [
        mesh_errors(found, torch.from_numpy(mesh.wss), torch.from_numpy(mesh.mask))
        for found, mesh in zip(predictions, meshes, strict=True)
    ]


def _moves(count: int, mirror: bool) -> list[tuple[Array, Array]]:
    """A rotation (with `mirror`, a reflection too) and a shift by DISTANCE per mesh; always the
    same.
    """
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
    """The mesh rotated and moved; computed in float64, stored in float32 like any mesh."""
    exact = mesh.position.astype(np.float64) @ matrix.T + shift
    return replace(turned(mesh, matrix), position=exact.astype(np.float32))
