"""Anchors: a few items of a large set that stand for all of it.

    farthest   first the item farthest from the centroid (or a random one, for a seed other than 0),
               then always the item farthest from all anchors so far; sorted in the end, because
               rounding can exchange two of them that come one after the other
    random     the items with the largest random keys, which depend on item numbers alone
    medoids    random items, each then replaced by the item nearest to the centroid of its cell

All squared distances within a tolerance of the largest count as equal, and the item of the lowest
number is taken: see `cells`, which says why.

Shapes: B samples, N items, M anchors; position_BN3.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from . import arguments
from .batch import Sets, packed_to_padded
from .cells import TOLERANCES, centred, counts, medoids, nearest
from .precision import check_tensor

METHODS = ("medoids", "farthest", "random")
_SEEN = 64
"""Medoids are computed among so many random items per anchor, of a sample that has more."""
_FARTHEST = 1e150
"""Squares of larger coordinates are not finite in float64."""
_STEP, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""The constants of SplitMix64, as signed integers."""


def choose_anchors(
    position: Tensor,
    count: int,
    *,
    method: Literal["farthest", "random", "medoids"] = "farthest",
    mask: Tensor | None = None,
    offsets: Tensor | None = None,
    seed: int | Tensor = 0,
) -> Tensor:
    """Numbers of `count` items of every sample: (..., count), or (B · count) for packed sets.

    Farthest anchors are sorted by number; the order of the others is that of the random items with
    which they begin.

    position: (..., N, 3), float32 or float64.
    method: "farthest" spreads the anchors evenly over the shape; "random" does not look at the
        positions; "medoids" are as dense as the items, and each is the item nearest to the mean of
        its cell. All of them choose an item at most once.
    mask, offsets: as for `GATr`. For packed sets the numbers count the items of all samples, so
        that `position[index]` is packed again, with `count` items per sample.
    seed: of the random item numbers, which depend on it, on the number of the sample and on how
        many valid items the sample has. They are the same on every device. "random" takes them as
        anchors, and "medoids" begins with them. "farthest" begins with the first of them, or, for
        seed 0, with the item farthest from the centroid. A tensor (one 64-bit integer on the device
        of the positions) may change between the replays of a CUDA graph.

    >>> line = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [5, 0, 0]])
    >>> choose_anchors(line, 3)
    tensor([0, 2, 3])
    """
    sets = _checked_sets(position, mask, offsets)
    _check_choice(count, method, seed, sets)
    begins = None
    if sets.offsets is not None:
        begins = sets.offsets[:-1, None]
        position, mask = packed_to_padded(position, sets.offsets)
        sets = Sets(position.shape[:-1], mask=mask)
    if method == "random":
        index = _random(sets, count, seed, position.device)
    elif method == "medoids":
        index = _medoids(position, sets, count, seed)
    else:
        index = _farthest(position, sets, count, seed)
    return index if begins is None else (index + begins).flatten()


@torch.no_grad()
def cell_weights(
    position: Tensor,
    index: Tensor,
    *,
    mask: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """The number of items for which each anchor is the nearest one, in the shape of `index`.

    index: as `choose_anchors` returns it. If several anchors are nearest, up to the tolerance of
    `choose_anchors`, the item counts for the first; an anchor counts for itself. The weights of a
    sample add up to its number of valid items. Their dtype is that of `position`.

    >>> line = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [5, 0, 0]])
    >>> cell_weights(line, torch.tensor([3, 1]))
    tensor([1., 3.])
    """
    sets = _checked_sets(position, mask, offsets)
    anchors = anchor_sets(index, sets)
    if sets.offsets is None:
        return _cells(position, sets, index)
    if not len(sets.lengths):
        return position.new_zeros(index.shape)
    groups = zip(
        position.split(sets.lengths),
        index.split(anchors.lengths),
        sets.offsets,  # one more than there are groups
        strict=False,
    )
    return torch.cat([_cells(x, Sets(x.shape[:-1]), i - begin) for x, i, begin in groups])


def anchor_sets(index: Tensor, sets: Sets) -> Sets:
    """The sets that the items of these numbers form. Invalid numbers raise an error."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        got = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"anchors must be a tensor of integers, the numbers of items; got {got}")
    is_packed = sets.offsets is not None
    if index.dim() < 1 or (index.dim() > 1 if is_packed else index.shape[:-1] != sets.samples):
        expected = "(all anchors)" if is_packed else f"{(*sets.samples, 'M')}"
        raise ValueError(
            f"anchors must have the shape {expected}, one number per anchor; got "
            f"{tuple(index.shape)}"
        )
    if index.numel() and arguments.can_be_read(index):
        _check_numbers(index, sets)
    if sets.sample is None or sets.offsets is None:
        return Sets(index.shape)
    ends = torch.arange(sets.offsets.shape[0], device=index.device)
    offsets = torch.searchsorted(sets.sample[index], ends)
    # a graph cannot read how many the largest sample has
    most = index.shape[0] if torch.compiler.is_compiling() else None
    return Sets(index.shape, offsets=offsets, max_items=most)


def rows_of(index: Tensor, sets: Sets) -> Tensor:
    """The numbers of these items, per sample or packed, among the items of all samples."""
    if sets.offsets is not None:
        return index
    begins = torch.arange(math.prod(sets.samples), device=index.device) * sets.shape[-1]
    return (index + begins.reshape(*sets.samples, 1)).flatten()


def select(x: Tensor, rows: Tensor, sets: Sets, index: Tensor) -> Tensor:
    """x (items, ...) at the items of `index`: (*index.shape, ...). rows: `rows_of(index, sets)`."""
    flat = x.flatten(0, len(sets.shape) - 1).index_select(0, rows)
    return flat.reshape(*index.shape, *x.shape[len(sets.shape) :])


@torch.no_grad()
def _farthest(position: Tensor, sets: Sets, count: int, seed: int | Tensor) -> Tensor:
    """Farthest points of padded sets, (..., count), sorted.

    The loop only launches kernels on tensors of fixed shape and reads nothing from the device, so
    that a CUDA graph can capture it.
    """
    x, radius = centred(position, sets)
    tolerance = TOLERANCES[position.dtype] * radius.reshape(-1, 1)
    x_BN3 = x.reshape(-1, *x.shape[-2:])
    square_BN1 = x_BN3.square().sum(-1, keepdim=True)
    distance_BN1, nearest_BN = square_BN1.clone(), square_BN1.squeeze(-1).clone()
    if sets.mask is not None:
        nearest_BN.masked_fill_(~sets.mask.reshape(nearest_BN.shape), -math.inf)
    index_BM = torch.empty(x_BN3.shape[0], count, dtype=torch.int64, device=x_BN3.device)
    for i in range(count):
        least = nearest_BN.amax(-1, keepdim=True).sub_(tolerance)
        chosen_B1 = (nearest_BN >= least).byte().argmax(-1, keepdim=True)  # the first of these
        if i == 0 and isinstance(seed, Tensor):
            random_B1 = _random(sets, 1, seed, x.device).reshape(-1, 1)
            chosen_B1 = torch.where(seed.reshape(()) == 0, chosen_B1, random_B1)
        elif i == 0 and seed != 0:
            chosen_B1 = _random(sets, 1, seed, x.device).reshape(-1, 1)
        index_BM[:, i : i + 1].copy_(chosen_B1)
        at = chosen_B1[..., None]
        point_B31 = x_BN3.gather(1, at.expand(-1, -1, 3)).mT
        torch.baddbmm(square_BN1, x_BN3, point_B31, alpha=-2, out=distance_BN1)
        distance_BN1.add_(square_BN1.gather(1, at))
        if i == 0:  # so far the distances were those from the centroid
            nearest_BN.masked_fill_(nearest_BN > -math.inf, math.inf)
        torch.minimum(nearest_BN, distance_BN1.squeeze(-1), out=nearest_BN)
        nearest_BN.scatter_(1, chosen_B1, -math.inf)
    return index_BM.sort(-1).values.reshape(*sets.samples, count)


def _random(sets: Sets, count: int, seed: int | Tensor, device: torch.device) -> Tensor:
    """The items of padded sets with the largest random keys, (..., count).

    SplitMix64 maps (seed, sample, number of the valid item) to the key. For one sample it is a
    bijection, so no two keys are equal.
    """
    if isinstance(seed, int):
        seed = torch.full((1,), seed, dtype=torch.int64, device=device)
    samples = torch.arange(math.prod(sets.samples), device=device).reshape(*sets.samples, 1)
    key = _mixed(_mixed(_mixed(seed) + samples) + sets.positions(device))
    if sets.mask is not None:
        key = key.masked_fill(~sets.mask, torch.iinfo(torch.int64).min)
    return key.topk(count, dim=-1).indices


def _mixed(x: Tensor) -> Tensor:
    """One step of SplitMix64 from the state x. Products of 64-bit integers wrap around."""

    def folded(x: Tensor, bits: int) -> Tensor:
        return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))  # a shift that fills with zeros

    return folded(folded(folded(x + _STEP, 30) * _FIRST, 27) * _SECOND, 31)


@torch.no_grad()
def _medoids(position: Tensor, sets: Sets, count: int, seed: int | Tensor) -> Tensor:
    """Medoids of padded sets, (..., count), among _SEEN random items per anchor."""
    shape, few = sets.samples, min(sets.shape[-1], _SEEN * count)
    x, radius = centred(position, sets)
    index = _random(sets, count, seed, position.device).reshape(-1, count)
    mask = None if sets.mask is None else sets.mask.reshape(-1, sets.shape[-1])
    x_BN3, seen = x.reshape(-1, *x.shape[-2:]), None
    if few < sets.shape[-1]:  # the anchors are the first of these items
        seen = _random(sets, few, seed, position.device).reshape(-1, few).sort(-1).values
        index = torch.searchsorted(seen, index)
        x_BN3 = x_BN3.take_along_dim(seen[..., None], 1)
        mask = None if mask is None else mask.take_along_dim(seen, 1)
    found = medoids(x_BN3, mask, index, TOLERANCES[position.dtype] * radius.reshape(-1))
    if seen is not None:
        found = seen.take_along_dim(found, 1)
    return found.reshape(*shape, count)


def _cells(position: Tensor, sets: Sets, index: Tensor) -> Tensor:
    """Valid items per nearest anchor, of padded or plain sets."""
    if not index.numel():
        return position.new_zeros(index.shape)
    x, radius = centred(position, sets)
    x_BN3, index_BM = x.reshape(-1, *x.shape[-2:]), index.reshape(-1, index.shape[-1]).long()
    own = nearest(x_BN3, index_BM, TOLERANCES[position.dtype] * radius.reshape(-1))
    mask = None if sets.mask is None else sets.mask.reshape(own.shape)
    return counts(own, mask, index.shape[-1]).to(position).reshape(index.shape)


def _checked_sets(position: Tensor, mask: Tensor | None, offsets: Tensor | None) -> Sets:
    check_tensor("position", position)
    if position.dim() < 2 or position.shape[-1] != 3:
        raise ValueError(f"expected positions (..., N, 3), got {tuple(position.shape)}")
    if position.dtype not in TOLERANCES:
        raise TypeError(
            f"position must be float32 or float64, got {position.dtype}; convert it with .float()"
        )
    sets = Sets(position.shape[:-1], mask=mask, offsets=offsets, device=position.device)
    if arguments.can_be_read(position):
        most = min(_FARTHEST, torch.finfo(position.dtype).max)
        if not bool((sets.keep(position).abs() <= most).all()):
            raise ValueError(
                f"position has NaN or infinite values, or some beyond {most:.0e}; check your data"
            )
    return sets


def _check_choice(count: int, method: str, seed: int | Tensor, sets: Sets) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of {', '.join(METHODS)}")
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise ValueError(
                f"a seed that is a tensor must be one 64-bit integer, got {seed.numel()} of "
                f"{seed.dtype}"
            )
    elif not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a 64-bit integer, got {seed!r}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be an integer of at least 1, got {count!r}")
    fewest = _fewest_items(sets)
    if fewest is not None and count > fewest:
        raise ValueError(
            f"got count={count}, but a sample has only {fewest} items; choose fewer anchors"
        )


def _fewest_items(sets: Sets) -> int | None:
    """Valid items of the smallest sample; None if there is no sample or it cannot be read."""
    if sets.is_plain:
        return sets.shape[-1]
    sizes = sets.offsets.diff() if sets.mask is None else sets.mask.sum(-1)  # type: ignore[union-attr]
    return int(sizes.min()) if sizes.numel() and arguments.can_be_read(sizes) else None


def _check_numbers(index: Tensor, sets: Sets) -> None:
    """Read the numbers and raise an error if they do not belong to valid items in order."""
    least, most, items = int(index.min()), int(index.max()), sets.shape[-1]
    if least < 0 or most >= items:
        raise ValueError(
            f"anchors must be numbers of items, from 0 to {items - 1}; got {least} to {most}"
        )
    if sets.mask is not None and not bool(sets.mask.take_along_dim(index.long(), -1).all()):
        raise ValueError("anchors must be valid items, but for some of them mask is False")
    if sets.sample is not None and bool((sets.sample[index].diff() < 0).any()):
        raise ValueError("anchors of packed sets must be ordered by sample; sort them")
