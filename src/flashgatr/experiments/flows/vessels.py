"""Points of vessels on a device: one row per point; batches of anchors and other points.

The points of a file are random ones, so its first points are a random sample. Anchors are chosen
among a few random points per anchor: their cost does not depend on the number of points. Their
weights are the candidates that each stands for, with a mean of one for the lumen and for the wall.

Legend: V vessels, L points of the lumen and W of the wall of each, B vessels of a batch, M anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...anchors import cell_weights, choose_anchors
from ..arteries.batches import turns
from ..arteries.data.field_points import FieldPoints, load_fields
from ..arteries.data.mesh import ArteryError
from .options import Options

SCALES = 15.0, 15.0
"""cm/s and dyn/cm², by kind: models predict velocity and stress divided by them.

They are about the root mean square of a component in the vessels of the generator.
"""
CANDIDATES = 16
"""Random points per anchor, among which anchors are chosen."""
_COLUMNS = [3, 3, 1, 1, 3, 1]


class Points(NamedTuple):
    """Points as models see them, and what they should predict there."""

    position: Tensor  # (..., 3) cm
    normal: Tensor  # (..., 3) of the wall; zero in the lumen
    distance: Tensor  # (...) cm from the inlet
    kind: Tensor  # (...) 0 in the lumen, 1 on the wall
    target: Tensor  # (..., 3) in units of SCALES
    mask: Tensor  # (...) bool: whether the point counts


class FlowBatch(NamedTuple):
    """Points of B vessels, first the anchors: `Points`, and what they attend to."""

    position: Tensor
    normal: Tensor
    distance: Tensor
    kind: Tensor
    target: Tensor
    mask: Tensor
    anchors: Tensor  # (B, M) numbers of rows
    weights: Tensor  # (B, M)


class Vessels(NamedTuple):
    """All points of some vessels, as rows (see `points_of`)."""

    names: list[str]
    lumen: Tensor  # (V, L, 12)
    wall: Tensor  # (V, W, 12)

    @property
    def kinds(self) -> tuple[Tensor, Tensor]:
        return self.lumen, self.wall

    def first(self, points: int) -> Vessels:
        """The first points of each kind; 0 for all."""
        end = points or None
        return Vessels(self.names, self.lumen[:, :end], self.wall[:, :end])

    def turned(self, matrices: Tensor, shifts: Tensor) -> Vessels:
        """Vessels rotated by matrices (V, 3, 3), then moved by shifts (V, 3)."""
        return Vessels(self.names, *(_turned(x, matrices, shifts) for x in self.kinds))

    def batch(self, numbers: Tensor, options: Options) -> FlowBatch:
        """New anchors and other points of these vessels (B), drawn on the device."""
        anchors, weights, others = [], [], []
        counts = options.lumen_points, options.wall_points
        for rows, most, points in zip(self.kinds, options.anchors, counts, strict=True):
            seed = torch.randint(torch.iinfo(torch.int64).max, (1,), device=rows.device)
            candidates = drawn(rows, numbers, CANDIDATES * most)
            chosen, own = anchors_of(candidates, most, options.anchor_method, seed)
            anchors.append(chosen)
            weights.append(own)
            others.append(drawn(rows, numbers, points))
        rows, kept = torch.cat([*anchors, *others], dim=1), torch.cat(weights, dim=1)
        if options.augment:
            matrices = turns(len(numbers), rows.device)
            first, second, third = matrices.unbind(1)
            sign = (torch.linalg.cross(first, second) * third).sum(-1)
            matrices = matrices * sign[:, None, None]  # no reflections
            rows = _turned(rows, matrices, rows.new_zeros(len(numbers), 3))
        index = torch.arange(kept.shape[1], device=rows.device).expand(kept.shape)
        return FlowBatch(*points_of(rows), index, kept)

    def fixed_anchors(
        self, number: int, counts: Sequence[int], method: str = "medoids"
    ) -> tuple[Tensor, Tensor]:
        """The rows (M, 12) and weights (M) of a vessel's anchors, always the same."""
        found = [
            anchors_of(rows[number, : CANDIDATES * most][None], most, method, 0)
            for rows, most in zip(self.kinds, counts, strict=True)
        ]
        rows, weights = (torch.cat(x, dim=1)[0] for x in zip(*found, strict=True))
        return rows, weights


def load(
    folder: Path, split: str, device: torch.device, *, limit: int = 0, points: int = 0
) -> Vessels:
    """The vessels of a set; all files must have equal numbers of points."""
    found = load_fields(folder, split, limit=limit or None)
    counts = {(len(x.normal), len(x.position)) for x in found}
    if len(counts) > 1 or not all(0 < walls < total for walls, total in counts):
        raise ArteryError(
            f"the vessels in {folder} must have equal numbers of points of the lumen and of the "
            "wall, and some of both; make them with one `flashgatr data flows`"
        )
    end = points or None
    kinds = ("lumen", "wall")
    rows = (np.stack([_rows(x, kind)[:end] for x in found]) for kind in kinds)
    return Vessels([x.name for x in found], *(torch.from_numpy(x).to(device) for x in rows))


def points_of(rows: Tensor) -> Points:
    """Rows (..., 12) as points."""
    position, normal, distance, kind, target, mask = rows.split(_COLUMNS, dim=-1)
    return Points(position, normal, distance[..., 0], kind[..., 0], target, mask[..., 0] > 0)


def drawn(rows: Tensor, numbers: Tensor, count: int) -> Tensor:
    """`count` random points of each of these vessels (B, count, 12), or all if there are fewer.

    They are one from each of `count` equal ranges, so that none is drawn twice.
    """
    total = rows.shape[1]
    count = min(count, total)
    begin = torch.arange(count + 1, device=rows.device) * total // count
    size = begin.diff()
    place = (torch.rand(len(numbers), count, device=rows.device) * size).long()
    place = begin[:-1] + torch.minimum(place, size - 1)  # rand may round up to the next range
    return rows[numbers[:, None], place]


def anchors_of(
    candidates: Tensor, count: int, method: str, seed: int | Tensor
) -> tuple[Tensor, Tensor]:
    """The rows (B, count, 12) of anchors among candidates (B, P, 12), and their weights."""
    position = candidates[..., :3].contiguous()
    index = choose_anchors(position, count, method=method, seed=seed)  # type: ignore[arg-type]
    weights = cell_weights(position, index) * (count / candidates.shape[1])
    return candidates.take_along_dim(index[..., None], 1), weights


def _rows(points: FieldPoints, kind: str) -> np.ndarray:
    part = points.lumen if kind == "lumen" else points.wall
    is_wall = kind == "wall"
    normal = points.normal if is_wall else np.zeros_like(points.position[part])
    count = len(normal)
    columns = [
        points.position[part],
        normal,
        points.distance[part, None],
        np.full((count, 1), is_wall),
        points.target[part] / SCALES[is_wall],
        points.mask[part, None],
    ]
    return np.concatenate([np.asarray(x, np.float32) for x in columns], axis=1)


def _turned(rows: Tensor, matrices: Tensor, shifts: Tensor) -> Tensor:
    position, normal, distance, kind, target, mask = rows.split(_COLUMNS, dim=-1)

    def turn(x: Tensor) -> Tensor:  # not a product of matrices, which might round to TF32
        return (matrices[:, None] * x.unsqueeze(-2)).sum(-1)

    moved = turn(position) + shifts[:, None]
    return torch.cat([moved, turn(normal), distance, kind, turn(target), mask], dim=-1)
