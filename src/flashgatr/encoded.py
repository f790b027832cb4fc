"""Encoded anchors: what queries read, and the checks of what comes with anchors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import arguments
from .batch import Sets
from .frame import Frame


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

    @property
    def log_weights(self) -> Tensor | None:
        return None if self.weights is None else self.weights.log()

    def sample(self, number: int) -> Anchors:
        """The anchors of one sample of packed sets."""
        if self.sets.offsets is None:
            raise ValueError("these anchors are not packed; `sample` is for packed sets")
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
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights must be a tensor, got {type(weights).__name__}")
    if weights.shape != sets.shape:
        raise ValueError(
            f"weights must have the shape of the anchors, {tuple(sets.shape)}; got "
            f"{tuple(weights.shape)}"
        )
    if sets.mask is not None:
        weights = torch.where(sets.mask, weights, 1)
    if arguments.can_be_read(weights) and not bool((weights > 0).all()):
        raise ValueError(
            "weights must be positive, but some are zero, negative or NaN; leave out anchors "
            "that stand for no items"
        )
    return weights.to(mv)


def check_samples(state: Anchors, sets: Sets) -> None:
    """Raise an error unless `state` holds anchors for the samples of these sets."""
    if not isinstance(state, Anchors):
        raise TypeError(f"state must be what encode returned, got {type(state).__name__}")
    theirs = state.sets
    if (theirs.offsets is None) != (sets.offsets is None):
        packed, other = ("queries", "anchors") if theirs.offsets is None else ("anchors", "queries")
        raise ValueError(f"only the {packed} are packed; pass offsets for the {other}, too")
    if theirs.samples != sets.samples:
        raise ValueError(
            f"the anchors have samples of shape {theirs.samples}, the queries {sets.samples}; they "
            "must agree"
        )
