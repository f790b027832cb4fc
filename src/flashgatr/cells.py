"""Cells: every item belongs to its nearest anchor. A medoid is the item nearest to a cell's mean.

    own_BN = argmin_m |x_n - y_m|²         up to a tolerance, of which the first anchor is taken
    medoid = argmin_n |x_n - mean(cell)|²  over the items of the cell, likewise the first item

Motions preserve distances, but not their rounding. On regular shapes many distances are equal, and
rounding would decide between them. All squared distances within a tolerance of the smallest (in
`anchors`, of the largest) therefore count as equal, and the lowest number is taken.

Shapes: B samples, N items, M anchors; x_BN3, index_BM. Everything is computed in float64. Nothing
is read from the device, so that a CUDA graph can hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .batch import Sets

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
"""The tolerance of squared distances, relative to the sample's squared radius.

A motion changes them by about 1e-7 in float32 and 1e-16 in float64.
"""
PAIRS = 1 << 22
"""`nearest` computes about this many distances at a time."""
ROUNDS = 5
"""How often medoids are replaced by those of their new cells. The first round helps most."""


def centred(position: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
    """Positions relative to the centroid in float64, padding at zero, and the squared radius."""
    wide = sets.keep(position.double())
    moved = sets.keep(wide - sets.spread(sets.mean(wide)))
    square = moved.square().sum(-1)
    if not square.shape[-1]:
        return moved, square.new_zeros(sets.samples)
    return moved, square.amax(-1)


def nearest(x_BN3: Tensor, index_BM: Tensor, tolerance_B: Tensor) -> Tensor:
    """Which of its sample's anchors (0 to M - 1) each item belongs to, (B, N).

    index: the anchors' item numbers. An anchor belongs to itself, also if another is as near.
    """
    y_BM3 = x_BN3.take_along_dim(index_BM[..., None], 1)
    square_B1M = y_BM3.square().sum(-1).unsqueeze(1)
    found = []
    for tile in x_BN3.split(max(PAIRS // max(index_BM.numel(), 1), 1), dim=1):
        # less |x|², which is the same for all anchors
        distance = torch.baddbmm(square_B1M, tile, y_BM3.mT, alpha=-2)
        most = distance.amin(-1, keepdim=True) + tolerance_B[:, None, None]
        found.append((distance <= most).byte().argmax(-1))  # the first of these
    own_BN = torch.cat(found, dim=1)
    numbers = torch.arange(index_BM.shape[1], device=x_BN3.device)
    return own_BN.scatter(1, index_BM, numbers.expand_as(index_BM))


def counts(own_BN: Tensor, valid_BN: Tensor | None, anchors: int) -> Tensor:
    """Valid items per anchor (B, M), in float64."""
    ones = own_BN.new_ones(own_BN.shape, dtype=torch.float64)
    if valid_BN is not None:
        ones = ones * valid_BN
    return ones.new_zeros(len(own_BN), anchors).scatter_add(1, own_BN, ones)


def medoids(
    x_BN3: Tensor, valid_BN: Tensor | None, index_BM: Tensor, tolerance_B: Tensor
) -> Tensor:
    """Anchors (B, M) that are nearest to the centroids of their cells.

    Each anchor is replaced by the item of its cell that is nearest to the cell's centroid, ROUNDS
    times. Different anchors stay different, because cells do not overlap.
    """
    numbers_BN = torch.arange(x_BN3.shape[1], device=x_BN3.device).expand(x_BN3.shape[:2])
    for _ in range(ROUNDS):
        own_BN = nearest(x_BN3, index_BM, tolerance_B)
        size_BM1 = counts(own_BN, valid_BN, index_BM.shape[1]).unsqueeze(-1)
        given = x_BN3 if valid_BN is None else x_BN3 * valid_BN[..., None]
        total_BM3 = torch.zeros_like(size_BM1).expand(-1, -1, 3)
        total_BM3 = total_BM3.scatter_add(1, own_BN[..., None].expand(-1, -1, 3), given)
        center_BN3 = (total_BM3 / size_BM1).take_along_dim(own_BN[..., None], 1)
        distance_BN = (x_BN3 - center_BN3).square().sum(-1)
        if valid_BN is not None:
            distance_BN = distance_BN.masked_fill(~valid_BN, torch.inf)
        least_BM = torch.full_like(size_BM1[..., 0], torch.inf)
        least_BM = least_BM.scatter_reduce(1, own_BN, distance_BN, "amin")
        most_BN = least_BM.take_along_dim(own_BN, 1) + tolerance_B[:, None]
        number_BN = torch.where(distance_BN <= most_BN, numbers_BN, numbers_BN.shape[1])
        first_BM = torch.full_like(index_BM, numbers_BN.shape[1])
        index_BM = first_BM.scatter_reduce(1, own_BN, number_BN, "amin")
    return index_BM
