"""Encoded anchors: what queries read, and the checks of what comes with anchors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import arguments
from .batch import Sets
from .config import GATrConfig
from .frame import Frame
from .precision import check_tensor
from .processes import Processes

_WITHOUT_EFFECT = ("checkpoint", "dropout", "initialization")
"""Options in which the encoding and the decoding network may differ: no output depends on them."""


class Anchors(NamedTuple):
    """What queries need to know of encoded anchors, and the anchors' own outputs."""

    mv: Tensor
    """(..., M, C, 16): output of the anchors."""
    s: Tensor
    """(..., M, S): output of the anchors."""
    keys: tuple[Tensor, ...]
    """Keys of every block, in the layout of the kernels or of the plain modules."""
    values: tuple[Tensor, ...]
    """Values of every block."""
    frame: Frame
    sets: Sets
    weights: Tensor | None
    """(..., M): how many items an anchor stands for; None for one each."""
    is_fused: bool
    """Whether keys and values are in the layout of the kernels."""
    config: GATrConfig
    """That of the network which encoded the anchors."""

    @property
    def log_weights(self) -> Tensor | None:
        return None if self.weights is None else self.weights.log()

    def sample(self, number: int) -> Anchors:
        """The anchors of one sample of packed sets."""
        if self.sets.offsets is None:
            raise ValueError("these anchors are not packed; `sample` is for packed sets")
        (samples,) = self.sets.samples
        if not 0 <= number < samples:
            raise ValueError(
                f"there are {samples} samples, numbered from 0; got the number {number}"
            )
        begin, end = self.sets.offsets[number : number + 2].tolist()
        center = self.frame.center
        return self._replace(
            mv=self.mv[begin:end],
            s=self.s[begin:end],
            keys=tuple(x[begin:end] for x in self.keys),
            values=tuple(x[begin:end] for x in self.values),
            frame=Frame(
                self.frame.reference[number],
                None if center is None else center[number],
                self.frame.length,
            ),
            sets=Sets((end - begin,)),
            weights=None if self.weights is None else self.weights[begin:end],
        )


def checked_weights(weights: Tensor | None, sets: Sets, mv: Tensor) -> Tensor | None:
    """The weights of anchors in the dtype of mv; one in the padding."""
    if weights is None:
        return None
    check_tensor("weights", weights)
    if weights.shape != sets.shape:
        raise ValueError(
            f"weights must have the shape of the anchors, {tuple(sets.shape)}; got "
            f"{tuple(weights.shape)}"
        )
    if sets.mask is not None:
        weights = torch.where(sets.mask, weights, 1)
    ways_out = ("leave out anchors that stand for no items", "divide them by their mean")
    for x, way_out in zip((weights, weights.to(mv)), ways_out, strict=True):
        if arguments.can_be_read(x) and not bool(((x > 0) & x.isfinite()).all()):
            raise ValueError(
                "weights must be positive and finite, but some are zero, negative, infinite or NaN "
                f"in {x.dtype}; {way_out}"
            )
    return weights.to(mv)


def check_network(state: Anchors, config: GATrConfig) -> None:
    """Raise an error unless a network with this configuration can read the keys of `state`."""
    if not isinstance(state, Anchors):
        raise TypeError(f"state must be what encode returned, got {type(state).__name__}")
    if state.config is config:
        return
    theirs, ours = state.config.to_dict(), config.to_dict()
    for name in sorted((theirs.keys() | ours.keys()) - set(_WITHOUT_EFFECT)):
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"the anchors were encoded by a network with {name}={theirs.get(name)!r}, but this "
                f"one has {name}={ours.get(name)!r}; encode them with the network that decodes"
            )


def check_samples(state: Anchors, sets: Sets) -> None:
    """Raise an error unless `state` holds anchors for the samples of these sets."""
    theirs = state.sets
    if (theirs.offsets is None) != (sets.offsets is None):
        packed, other = ("queries", "anchors") if theirs.offsets is None else ("anchors", "queries")
        raise ValueError(f"only the {packed} are packed; pass offsets for the {other}, too")
    if theirs.samples != sets.samples:
        raise ValueError(
            f"the anchors have samples of shape {theirs.samples}, the queries {sets.samples}; they "
            "must agree"
        )


def check_answered(anchors: Sets, items: Sets, processes: Processes | None = None) -> None:
    """Raise an error if a sample has items, but no anchors that they could attend to.

    processes: they share the items, and all of them raise the error together.
    """
    if anchors.is_plain and anchors.shape[-1]:
        return
    without = _is_empty(anchors)
    if not arguments.can_be_read(without) or not bool(without.any()):
        return
    asking = ~_is_empty(items)
    if processes is not None and processes.size > 1:
        everyone = processes.exchange(asking.flatten().long().tolist(), asking.device)
        asking = everyone.any(0).reshape(asking.shape).to(asking.device)
    unanswered = (without.cpu() & asking.cpu()).flatten().nonzero()[:, 0].tolist()
    if unanswered:
        raise ValueError(
            f"sample {unanswered[0]} has items, but no anchors to attend to; expected at least one "
            "anchor for every sample that has items"
        )


def _is_empty(sets: Sets) -> Tensor:
    """Which samples have no valid items, in the shape of the samples."""
    if sets.offsets is not None:
        return sets.offsets.diff() == 0
    if sets.mask is not None:
        return ~sets.mask.any(-1)
    return torch.full(sets.samples, not sets.shape[-1])


def check_tile(tile: int | None) -> None:
    is_count = isinstance(tile, int) and not isinstance(tile, bool)
    if tile is not None and (not is_count or tile < 1):
        raise ValueError(f"tile must be an integer of at least 1, or None; got {tile!r}")
