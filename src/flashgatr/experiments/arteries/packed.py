"""Meshes on a device, packed one after another, one row per node; and batches of them, in three forms.

    packed   position (T, 3)     normal (T, 3)     geodesic (T)     target (T, 3)     mask (T)     offsets (B + 1)  largest ()
    padded   position (2, L, 3)  normal (2, L, 3)  geodesic (2, L)  target (2, L, 3)  mask (2, L)  numbers (2)      valid (2, L)
    thinned  position (B, n, 3)  normal (B, n, 3)  geodesic (B, n)  target (B, n, 3)  mask (B, n)

Targets are in units of LABEL_SCALE; `mask` says which nodes count, `valid` which are there. Padded pairs have only a few different
sizes L, so that each can be captured as a CUDA graph once; meshes are paired by size, so that little is padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from . import LABEL_SCALE
from .mesh import Mesh

Batch: TypeAlias = tuple[Tensor, ...]
ROUND = 256  # nodes
"""Pairs are padded to a multiple of this: 18 sizes for the published meshes, at 3 % more nodes."""
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
        offsets = _sent(torch.tensor([0, *sizes]).cumsum(0), nodes.device)
        most = torch.tensor(max(sizes))  # stays where it can be read at once
        position, normal, geodesic, target, mask = nodes.split(_COLUMNS, dim=-1)
        if turn:
            places = torch.arange(len(nodes), device=nodes.device)
            own = orthogonal(len(numbers), nodes.device)[
                torch.bucketize(places, offsets[1:], right=True)
            ]
            position, normal, target = (_turned(own, x) for x in (position, normal, target))
        return position, normal, geodesic[..., 0], target, mask[..., 0] > 0, offsets, most

    def pairs(
        self, numbers: Sequence[int], *, turn: bool = False
    ) -> Iterator[tuple[list[int], Batch]]:
        """Padded pairs of neighbours in size, each with the places of its meshes in `numbers`; the last may lack one."""
        order = sorted(range(len(numbers)), key=lambda i: (self.size(numbers[i]), numbers[i]))
        order.reverse()
        device = self.nodes.device
        matrices = orthogonal(len(numbers), device) if turn else None
        for start in range(0, len(order), 2):
            pair = order[start : start + 2]
            length = math.ceil(self.size(numbers[pair[0]]) / ROUND) * ROUND
            nodes = self.nodes.new_zeros(2, length, self.nodes.shape[1])
            for row, i in zip(nodes, pair, strict=False):
                row[: self.size(numbers[i])] = self._rows(numbers[i])
            counts = [self.size(numbers[i]) for i in pair] + [0] * (2 - len(pair))
            given = _sent(torch.tensor([counts, [*pair, *pair][:2]]), device)
            position, normal, geodesic, target, mask = nodes.split(_COLUMNS, dim=-1)
            if matrices is not None:
                own = matrices[given[1]][:, None]
                position, normal, target = (_turned(own, x) for x in (position, normal, target))
            valid = torch.arange(length, device=device) < given[0][:, None]
            parts = position, normal, geodesic[..., 0], target, mask[..., 0] > 0, given[1], valid
            yield pair, parts

    def thinned(self, numbers: Tensor, count: int, *, turn: bool = False) -> Batch:
        """`count` nodes of each mesh, drawn anew: one of every `count`-th part of the mesh, in the order of its nodes.

        All on the device, so that a CUDA graph can hold it.
        """
        device = self.nodes.device
        starts = self.begins.index_select(0, torch.cat([numbers, numbers + 1]))
        begin, end = starts.chunk(2)
        place = torch.arange(count, device=device) + torch.rand(len(numbers), count, device=device)
        place = (place * ((end - begin)[:, None] / count)).long()
        place = torch.minimum(begin[:, None] + place, end[:, None] - 1)
        nodes = self.nodes[place]
        position, normal, geodesic, target, mask = nodes.split(_COLUMNS, dim=-1)
        if turn:
            own = turns(len(numbers), device)[:, None]
            position, normal, target = (_turned(own, x) for x in (position, normal, target))
        return position, normal, geodesic[..., 0], target, mask[..., 0] > 0

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


def orthogonal(count: int, device: torch.device) -> Tensor:
    """Matrices of O(3), evenly distributed: (count, 3, 3). The seed of torch's generator on the CPU determines them."""
    q, r = torch.linalg.qr(torch.randn(count, 3, 3))
    return _sent(q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :], device)


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
    return sign * torch.stack(rows, dim=-1).unflatten(-1, (3, 3))


def _turned(matrices: Tensor, x: Tensor) -> Tensor:
    """No matrix product, which might run in fewer bits."""
    return (matrices * x.unsqueeze(-2)).sum(-1)


def _sent(x: Tensor, device: torch.device) -> Tensor:
    """On the device; from pinned memory, so that nobody waits for the copy."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
