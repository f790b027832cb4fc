"""Meshes on a device, one after another with one row per node, and batches of them.

    PackedBatch   whole meshes one after another; mesh b owns rows offsets[b]:offsets[b+1] of T
    PaddedBatch   B meshes of L rows each: whole meshes with padding, or L nodes of each mesh, of
                  which the first may be anchors
    MeshPair      the numbers of two meshes, of which a captured step makes a PaddedBatch

Targets are in units of LABEL_SCALE; `mask` marks the nodes that count in the loss. Pairs are padded
to a few sizes only, so that each size is captured as a CUDA graph once, and meshes of similar size
form a pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..baselines.surfaces.levels import Levels, PackedLevels
from . import LABEL_SCALE
from .anchoring import AnchorChoice
from .data.mesh import Mesh

ROUND = 256
"""Pairs are padded to a multiple of this: 18 sizes for the published 3,684 to 8,003 nodes."""
_COLUMNS = [3, 3, 1, 3, 1]


class PackedBatch(NamedTuple):
    """Whole meshes, one after another. `levels` hold row numbers of the batch."""

    position: Tensor  # (T, 3)
    normal: Tensor  # (T, 3)
    geodesic: Tensor  # (T,)
    target: Tensor  # (T, 3)
    mask: Tensor  # (T,) bool
    offsets: Tensor  # (B + 1,)
    max_items: Tensor  # () nodes of the largest mesh; on the CPU, where it is read without waiting
    levels: Levels | None = None  # scales and neighbours, if the meshes have them


class PaddedBatch(NamedTuple):
    """Meshes of one length. `valid` marks the rows that are no padding; None: all of them."""

    position: Tensor  # (B, L, 3)
    normal: Tensor  # (B, L, 3)
    geodesic: Tensor  # (B, L)
    target: Tensor  # (B, L, 3)
    mask: Tensor  # (B, L) bool
    valid: Tensor | None = None  # (B, L) bool
    anchors: Tensor | None = None  # (B, M) rows that all rows attend to; None: they attend to all
    weights: Tensor | None = None  # (B, M) nodes that each anchor stands for


class MeshPair(NamedTuple):
    """Two training meshes, to be padded to L rows by `PackedMeshes.padded`."""

    meshes: Tensor  # (2,) numbers; -1: none (`padded` takes any number of meshes)
    places: Tensor  # (L,) 0, 1, 2, ...
    matrices: Tensor | None = None  # (2, 3, 3), by which the meshes are turned


Batch: TypeAlias = PackedBatch | PaddedBatch | MeshPair


class PackedMeshes(NamedTuple):
    """Inputs and targets of all nodes, where each mesh begins, and how many of its nodes count.

    Meshes may have levels, which packed batches then carry; padded batches do not.
    """

    nodes: Tensor  # (T, 11): position, normal, geodesic, target, mask
    starts: list[int]
    counted: list[int]
    begins: Tensor  # starts, on the device
    levels: PackedLevels | None = None

    def size(self, number: int) -> int:
        return self.starts[number + 1] - self.starts[number]

    def batch(self, numbers: Sequence[int], *, turn: bool = False) -> PackedBatch:
        """These meshes, packed. With `turn`, each is rotated at random, and half are mirrored."""
        sizes = [self.size(k) for k in numbers]
        nodes = torch.cat([self._rows(k) for k in numbers])
        offsets = sent(torch.tensor([0, *sizes]).cumsum(0), nodes.device)
        most = torch.tensor(max(sizes))
        matrices = None
        if turn:
            places = torch.arange(len(nodes), device=nodes.device)
            own = torch.bucketize(places, offsets[1:], right=True)
            matrices = turns(len(numbers), nodes.device)[own]
        levels = None if self.levels is None else self.levels.batch(numbers)
        return PackedBatch(*_split(nodes, matrices), offsets, most, levels)

    def pairs(self, numbers: Sequence[int]) -> list[tuple[list[int], int]]:
        """Pairs of meshes of similar size, as indices into `numbers`, and the size to pad to.

        The last pair has one mesh if their number is odd.
        """
        order = sorted(range(len(numbers)), key=lambda i: (-self.size(numbers[i]), numbers[i]))
        pairs = [order[start : start + 2] for start in range(0, len(order), 2)]
        return [(pair, _rounded(self.size(numbers[pair[0]]))) for pair in pairs]

    def padded(self, pair: MeshPair) -> PaddedBatch:
        """Look up meshes, pad them, and turn each by its matrix, if there are matrices.

        Like `thinned`, this runs on the device alone, so that a CUDA graph can contain it.
        """
        numbers, places, matrices = pair
        known = numbers.clamp(min=0)
        begin, end = self.begins[known], self.begins[known + 1]
        size = torch.where(numbers < 0, 0, end - begin)[:, None]
        valid = places < size
        rows = self.nodes[begin[:, None] + torch.where(valid, places, 0)] * valid[..., None]
        return PaddedBatch(*_split(rows, None if matrices is None else matrices[:, None]), valid)

    def thinned(
        self,
        numbers: Tensor,
        count: int,
        *,
        turn: bool = False,
        anchors: AnchorChoice | None = None,
    ) -> PaddedBatch:
        """Draw `count` nodes of each mesh, one from each of `count` equal ranges of node
        numbers.

        anchors: how to choose the nodes of each mesh that all nodes attend to. They come first, and
            are other ones in every call; the choice's seed is not used.
        """
        begin, end = self.begins[numbers][:, None], self.begins[numbers + 1][:, None]
        place = torch.arange(count, device=begin.device)
        place = place + torch.rand(len(numbers), count, device=begin.device)
        place = begin + (place * ((end - begin) / count)).long()
        place, index, weights = torch.minimum(place, end - 1), None, None
        if anchors is not None:
            index, weights = self._anchors(numbers, anchors)
            place = torch.cat([begin + index, place], dim=1)
            index = torch.arange(anchors.count, device=begin.device).expand(index.shape)
        matrices = turns(len(numbers), begin.device)[:, None] if turn else None
        return PaddedBatch(*_split(self.nodes[place], matrices), None, index, weights)

    def _anchors(self, numbers: Tensor, choice: AnchorChoice) -> tuple[Tensor, Tensor | None]:
        """Anchors of each mesh among all its nodes (B, M), and their weights."""
        longest = max(self.size(k) for k in range(len(self.starts) - 1))
        device = self.nodes.device
        whole = self.padded(MeshPair(numbers, torch.arange(longest, device=device)))
        seed = torch.randint(torch.iinfo(torch.int64).max, (1,), device=device)
        return choice.on(whole.position, mask=whole.valid, seed=seed)

    def _rows(self, number: int) -> Tensor:
        return self.nodes[self.starts[number] : self.starts[number + 1]]


def pack(meshes: Sequence[Mesh], device: torch.device) -> PackedMeshes:
    """All nodes of these meshes on the device. Meshes without labels have targets of zero."""
    rows = []
    for mesh in meshes:
        target = np.zeros_like(mesh.position) if mesh.wss is None else mesh.wss / LABEL_SCALE
        mask = np.asarray(mesh.mask)[:, None]
        parts = [mesh.position, mesh.normal, mesh.geodesic[:, None], target, mask]
        rows.append(np.concatenate([np.asarray(x, np.float32) for x in parts], axis=1))
    starts = np.cumsum([0, *map(len, rows)]).tolist()
    counted = [int(np.sum(mesh.mask)) for mesh in meshes]
    nodes = torch.from_numpy(np.concatenate(rows)).to(device)
    begins = torch.tensor(starts, device=device)
    return PackedMeshes(nodes, starts, counted, begins, _levels(meshes, device))


def _levels(meshes: Sequence[Mesh], device: torch.device) -> PackedLevels | None:
    found = [mesh.levels for mesh in meshes if mesh.levels is not None]
    if found and len(found) < len(meshes):
        raise ValueError(f"{len(found)} of {len(meshes)} meshes have levels; expected all or none")
    return PackedLevels(found, device) if found else None


def _rounded(size: int) -> int:
    return math.ceil(size / ROUND) * ROUND


def _split(nodes: Tensor, matrices: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    position, normal, geodesic, target, mask = nodes.split(_COLUMNS, dim=-1)
    if matrices is not None:
        position, normal, target = (_turned(matrices, x) for x in (position, normal, target))
    return position, normal, geodesic[..., 0], target, mask[..., 0] > 0


def turns(count: int, device: torch.device) -> Tensor:
    """Random matrices of O(3), uniformly distributed, drawn on the device; half are reflections."""
    q = torch.nn.functional.normalize(torch.randn(count, 4, device=device), dim=-1)
    w, x, y, z = q.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    sign = torch.where(torch.rand(count, 1, 1, device=device) < 0.5, 1.0, -1.0)
    matrices: Tensor = torch.stack(rows, dim=-1).unflatten(-1, (3, 3))
    return sign * matrices


def _turned(matrices: Tensor, x: Tensor) -> Tensor:
    """Not a matrix product, which might be computed with fewer bits (TF32)."""
    return (matrices * x.unsqueeze(-2)).sum(-1)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A copy on the device; from pinned memory, so that the host does not wait for it."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
