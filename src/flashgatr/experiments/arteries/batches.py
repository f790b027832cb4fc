"""Meshes on a device, packed one after another, one row per node; and batches of them, in three forms.

    packed   position (T, 3)     normal (T, 3)     geodesic (T)     target (T, 3)     mask (T)     offsets (B + 1)  largest ()
    padded   position (2, L, 3)  normal (2, L, 3)  geodesic (2, L)  target (2, L, 3)  mask (2, L)  valid (2, L)
    thinned  position (B, n, 3)  normal (B, n, 3)  geodesic (B, n)  target (B, n, 3)  mask (B, n)

Targets are in units of LABEL_SCALE; `mask` says which nodes count, `valid` which are there. Padded pairs have only a few different
sizes L, so that each can be captured as a CUDA graph once; meshes are paired by size, so that little is padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from . import LABEL_SCALE
from .data.mesh import Mesh

Batch: TypeAlias = tuple[Tensor, ...]
ROUND = 256  # nodes
"""Pairs are padded to a multiple of this: at most 18 sizes for the published meshes of 3,684 to 8,003 nodes."""
_COLUMNS = [3, 3, 1, 3, 1]


class Packed(NamedTuple):
    """Inputs and targets of every node, where each mesh begins, and how many of its nodes count."""

    nodes: Tensor  # (T, 11): position, normal, geodesic, target, mask
    starts: list[int]
    counted: list[int]
    begins: Tensor  # starts, on the device

    def size(self, number: int) -> int:
        return self.starts[number + 1] - self.starts[number]

    def batch(self, numbers: Sequence[int], *, turn: bool = False) -> Batch:
        """These meshes, packed; with `turn`, each turned and maybe mirrored at random."""
        sizes = [self.size(k) for k in numbers]
        nodes = torch.cat([self._rows(k) for k in numbers])
        offsets = sent(torch.tensor([0, *sizes]).cumsum(0), nodes.device)
        most = torch.tensor(max(sizes))  # stays where it can be read at once
        matrices = None
        if turn:
            places = torch.arange(len(nodes), device=nodes.device)
            own = torch.bucketize(places, offsets[1:], right=True)
            matrices = turns(len(numbers), nodes.device)[own]
        return *_split(nodes, matrices), offsets, most

    def pairs(self, numbers: Sequence[int]) -> list[tuple[list[int], int]]:
        """Places in `numbers` of two meshes of similar size, and the size to pad them to; the last pair may lack one."""
        order = sorted(range(len(numbers)), key=lambda i: (-self.size(numbers[i]), numbers[i]))
        pairs = [order[start : start + 2] for start in range(0, len(order), 2)]
        return [(pair, _rounded(self.size(numbers[pair[0]]))) for pair in pairs]

    def padded(self, numbers: Tensor, places: Tensor, matrices: Tensor | None = None) -> Batch:
        """Meshes (-1: none) padded to the length of `places`, which counts from 0; each turned by its matrix, if given.

        All on the device, so that a CUDA graph can hold it; so is `thinned`.
        """
        known = numbers.clamp(min=0)
        begin, end = self.begins[known], self.begins[known + 1]
        size = torch.where(numbers < 0, 0, end - begin)[:, None]
        valid = places < size
        rows = self.nodes[begin[:, None] + torch.where(valid, places, 0)] * valid[..., None]
        return *_split(rows, None if matrices is None else matrices[:, None]), valid

    def thinned(self, numbers: Tensor, count: int, *, turn: bool = False) -> Batch:
        """`count` nodes of each mesh, drawn anew: one of every `count`-th part of the mesh, in the order of its nodes."""
        begin, end = self.begins[numbers][:, None], self.begins[numbers + 1][:, None]
        place = torch.arange(count, device=begin.device)
        place = place + torch.rand(len(numbers), count, device=begin.device)
        place = begin + (place * ((end - begin) / count)).long()
        matrices = turns(len(numbers), begin.device)[:, None] if turn else None
        return _split(self.nodes[torch.minimum(place, end - 1)], matrices)

    def _rows(self, number: int) -> Tensor:
        return self.nodes[self.starts[number] : self.starts[number + 1]]


def pack(meshes: Sequence[Mesh], device: torch.device) -> Packed:
    """All nodes of these meshes on the device; without labels, targets are zero."""
    rows = []
    for mesh in meshes:
        target = np.zeros_like(mesh.position) if mesh.wss is None else mesh.wss / LABEL_SCALE
        mask = np.asarray(mesh.mask)[:, None]
        parts = [mesh.position, mesh.normal, mesh.geodesic[:, None], target, mask]
        rows.append(np.concatenate([np.asarray(x, np.float32) for x in parts], axis=1))
    starts = np.cumsum([0, *map(len, rows)]).tolist()
    counted = [int(np.sum(mesh.mask)) for mesh in meshes]
    nodes = torch.from_numpy(np.concatenate(rows)).to(device)
    return Packed(nodes, starts, counted, torch.tensor(starts, device=device))


def _rounded(size: int) -> int:
    return math.ceil(size / ROUND) * ROUND


def _split(nodes: Tensor, matrices: Tensor | None) -> Batch:
    position, normal, geodesic, target, mask = nodes.split(_COLUMNS, dim=-1)
    if matrices is not None:
        position, normal, target = (_turned(matrices, x) for x in (position, normal, target))
    return position, normal, geodesic[..., 0], target, mask[..., 0] > 0


def turns(count: int, device: torch.device) -> Tensor:
    """Matrices of O(3), evenly distributed, made on the device: those of random quaternions, half of them with a mirror."""
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
    """No matrix product, which might run in fewer bits."""
    return (matrices * x.unsqueeze(-2)).sum(-1)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """On the device; from pinned memory, so that nobody waits for the copy."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
