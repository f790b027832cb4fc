"""The scales of a surface: which nodes each keeps, and which rows lie near which.

    Hierarchy      how to make the scales; `build` makes those of one surface
    Levels         one `Level` per scale, the finest first
    PackedLevels   the levels of many surfaces on a device, and batches of them

Every entry of a level is a row number, of its own scale or of the next finer one; -1 ends a list.
There are no coordinates and no angles in it: networks compute them from the positions of a batch,
so that the same levels serve a surface that is moved, turned or mirrored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .sampling import Array, farthest_points, members, nearest, within


class Level(NamedTuple):
    """One scale of M rows, of which the next finer scale has L; numpy arrays or tensors, int32.

    None: the network does not use it, or there is no finer scale.
    """

    kept: Any = None  # (M,) the rows of the finer scale that this one keeps
    pooled: Any = None  # (M, K) the rows of the finer scale around each kept row, nearest first
    near: Any = None  # (L, k) the rows of this scale nearest to each row of the finer one
    members: Any = None  # (M, K) the rows of the finer scale whose nearest row is this one
    linked: Any = None  # (M, K) the rows of this scale around each of its rows, itself included

    @property
    def rows(self) -> int:
        return len(self.linked if self.kept is None else self.kept)


Levels: TypeAlias = tuple[Level, ...]
_OF_THE_FINER_SCALE = ("kept", "pooled", "members")
"""The fields whose entries are rows of the finer scale."""
_PARTS = (0.9, 1.0)
"""Where `by_length` cuts the sorted rows. More parts mean more kernels, and gain little."""


@dataclass(frozen=True)
class Hierarchy:
    """How to make the levels of a surface.

    ratios: share of the finer scale's nodes that each scale keeps, rounded up; a first ratio of 1
        makes all nodes the first level.
    radii: of the neighbourhoods of each scale, in the unit of the positions.
    most: largest number of neighbours; the nearest ones are taken.
    convolves: neighbours are rows of the scale itself, for convolutions on it, and every finer row
        has one row that it is pooled to; otherwise they are rows of the finer scale, which are
        pooled, and every finer row has three rows to interpolate between.
    """

    ratios: tuple[float, ...]
    radii: tuple[float, ...]
    most: int
    convolves: bool

    def __post_init__(self) -> None:
        if len(self.ratios) != len(self.radii) or not self.ratios:
            raise ValueError(
                f"expected one ratio and one radius per scale, got {self.ratios} and {self.radii}"
            )
        least = [1] if self.convolves else []
        if list(self.ratios[: len(least)]) != least or not all(0 < r <= 1 for r in self.ratios):
            raise ValueError(
                f"ratios must be above 0 and at most 1{', the first 1' * self.convolves}, "
                f"got {self.ratios}"
            )
        if not all(math.isfinite(r) and r > 0 for r in self.radii):
            raise ValueError(f"radii must be positive numbers, got {self.radii}")
        if self.most < 1:
            raise ValueError(f"most must be at least 1, got {self.most}")

    def build(self, position: Array) -> Levels:
        """The levels of a surface with these nodes (N, 3), as arrays."""
        if np.ndim(position) != 2 or np.shape(position)[1] != 3 or not len(position):
            raise ValueError(f"expected positions (N, 3), got {np.shape(position)}")
        levels: list[Level] = []
        for ratio, radius in zip(self.ratios, self.radii, strict=True):
            if not levels and self.convolves:
                linked = within(position, position, radius, self.most)
                levels.append(Level(linked=linked))
                continue
            kept = farthest_points(position, math.ceil(ratio * len(position) - 1e-9))
            coarse = position[kept]
            if self.convolves:
                near = nearest(position, coarse, 1)
                linked = within(coarse, coarse, radius, self.most)
                own = members(near[:, 0], len(kept))
                levels.append(Level(kept=kept, near=near, members=own, linked=linked))
            else:
                pooled = within(position, coarse, radius, self.most)
                levels.append(Level(kept=kept, pooled=pooled, near=nearest(position, coarse, 3)))
            position = coarse
        return tuple(levels)

    def batch(self, position: Tensor, offsets: Tensor | None = None) -> Levels:
        """The levels of packed surfaces: nodes (T, 3), surface b from offsets[b] to offsets[b + 1].

        They are computed here, on the CPU. To use them again, keep those of each surface in
        `PackedLevels`.
        """
        nodes = position.detach().cpu().numpy()
        cuts = [] if offsets is None else offsets[1:-1].tolist()
        surfaces = [self.build(own) for own in np.split(nodes, cuts)]
        return PackedLevels(surfaces, position.device).batch(range(len(surfaces)))


class PackedLevels:
    """The levels of many surfaces, one after another on a device."""

    def __init__(self, surfaces: Sequence[Levels], device: torch.device) -> None:
        if len({len(levels) for levels in surfaces}) != 1:
            raise ValueError("surfaces must have the same number of scales, and there must be one")
        self._scales = [_packed(own, device) for own in zip(*surfaces, strict=True)]
        self._device = device

    def batch(self, numbers: Sequence[int]) -> Levels:
        """The levels of these surfaces as one: rows are renumbered, lists do not mix."""
        return tuple(scale.batch(numbers, self._device) for scale in self._scales)


def rows(x: Tensor, numbers: Tensor) -> Tensor:
    """x[numbers] for numbers of any shape; where a number is -1, some row of x."""
    found = x.index_select(0, numbers.clamp(min=0).flatten())
    return found.view(*numbers.shape, *x.shape[1:])


def shares(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights (M, K) that make a sum over lists a mean: 1 / length of the list, 0 after its end."""
    valid = (numbers >= 0).to(dtype)
    return valid / valid.sum(1, keepdim=True).clamp(min=1)


class ByLength(NamedTuple):
    """Rows in the order of the lengths of their lists."""

    order: Tensor  # (M,) the rows in that order
    back: Tensor  # (M,) the inverse of `order`
    lists: Tensor  # (M, K) the lists in that order, with its row numbers
    cuts: list[tuple[int, int]]
    """Where parts of rows end, and the length of the longest list of each."""


def by_length(lists: Tensor) -> ByLength:
    """Sort the rows of a scale by the lengths of their lists (M, K) of its own rows.

    Networks compute as much for a short list as for the longest one of its part. On 20 artery
    meshes, the lists of GEM-CNN's first scale have 7.6 entries on average and up to 26; with two
    parts, the network computes for 10.7.
    """
    count = len(lists)
    lengths, order = (lists >= 0).sum(1).sort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(count, device=order.device)
    sorted_lists = lists[order]
    sorted_lists = torch.where(sorted_lists < 0, -1, back[sorted_lists.clamp(min=0)])
    ends = sorted({math.ceil(share * count) for share in _PARTS})
    widths = lengths[[end - 1 for end in ends]].tolist()
    return ByLength(order, back, sorted_lists.int(), list(zip(ends, widths, strict=True)))


class _PackedScale(NamedTuple):
    fields: dict[str, Tensor]  # the rows of all surfaces, one after another
    starts: dict[str, list[int]]  # where those of each surface begin
    rows: list[int]
    finer: list[int]

    def batch(self, numbers: Sequence[int], device: torch.device) -> Level:
        shifts = {
            name: np.cumsum([0, *(sizes[k] for k in numbers)])[:-1].tolist()
            for name, sizes in (("rows", self.rows), ("finer", self.finer))
        }
        found = {}
        for name, x in self.fields.items():
            starts = self.starts[name]
            own = torch.cat([x[starts[k] : starts[k + 1]] for k in numbers])
            counts = [starts[k + 1] - starts[k] for k in numbers]
            shift = shifts["finer" if name in _OF_THE_FINER_SCALE else "rows"]
            both = torch.tensor([shift, counts], dtype=torch.int32, device=device)
            moved = torch.repeat_interleave(both[0], both[1], output_size=len(own))
            moved = moved.view(-1, *[1] * (own.dim() - 1))
            found[name] = torch.where(own < 0, own, own + moved)
        return Level(**found)


def _packed(levels: Sequence[Level], device: torch.device) -> _PackedScale:
    fields, starts = {}, {}
    for name in Level._fields:
        own = [getattr(level, name) for level in levels]
        if own[0] is not None:
            fields[name] = torch.from_numpy(np.concatenate(_padded(own))).to(device)
            starts[name] = np.cumsum([0, *map(len, own)]).tolist()
    finer = [0 if level.near is None else len(level.near) for level in levels]
    return _PackedScale(fields, starts, [level.rows for level in levels], finer)


def _padded(lists: Sequence[Array]) -> list[Array]:
    """Lists (M, K) of one length K, filled with -1."""
    if lists[0].ndim == 1:
        return list(lists)
    width = max(x.shape[1] for x in lists)
    return [np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=-1) for x in lists]
