"""The frame of a sample: the coordinates in which the network processes it.

    f(x) = T_c f(T_-c x)      the centre c moves to the origin and back, lengths are scaled

For an equivariant f this changes only the rounding. A frame also holds the join's reference. It
is made once, from the network's input or from another set (a decoder works in the frame of the
set it reads), and applied at the input and at the output. Centre and reference are per sample,
not per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from . import arguments
from .algebra import BLADES, E123, PSEUDOSCALAR
from .batch import Sets
from .constants import constant
from .versors import rescale, translate, working_center

JoinReference = Literal["data", "canonical"] | Tensor


@dataclass(frozen=True)
class Frame:
    """Centre, unit of length and join reference of every sample."""

    reference: Tensor
    """(samples, 1): the e123 component of the join's reference."""
    center: Tensor | None = None
    """(samples, 3); None means the origin."""
    length: float = 1.0
    """The unit of length."""

    def for_input(self, mv: Tensor, sets: Sets) -> Frame:
        """The frame in the dtype and on the device of mv, for every sample of these sets."""

        def checked(x: Tensor, size: int, name: str, what: str) -> Tensor:
            return arguments.per_sample(x, size, sets.samples, f"the frame's {name}", what).to(mv)

        center = None if self.center is None else checked(self.center, 3, "center", "a point")
        return Frame(checked(self.reference, 1, "reference", "an e123"), center, self.length)

    def enter(self, mv: Tensor, sets: Sets) -> Tensor:
        """Transform multivectors (items, C, 16) of these sets into the frame."""
        if self.center is not None:
            mv = translate(mv, -self._shift(sets))
        return mv if self.length == 1 else rescale(mv, 1 / self.length)

    def leave(self, mv: Tensor, sets: Sets) -> Tensor:
        """The inverse of `enter`."""
        if self.length != 1:
            mv = rescale(mv, self.length)
        return mv if self.center is None else translate(mv, self._shift(sets))

    def references(self, sets: Sets) -> Tensor:
        """The e123 component of the reference, broadcastable to the items of these sets."""
        return sets.spread(self.reference).squeeze(-1)

    def _shift(self, sets: Sets) -> Tensor:
        assert self.center is not None
        return sets.spread(self.center).unsqueeze(-2)


def with_constant(mv: Tensor) -> Tensor:
    """Multivectors (..., C, 16) with one more channel, e0123, which no motion changes if it is odd.

    Networks with types have it, because products and joins with it are the equivariant maps between
    channels of unlike types.
    """
    one = constant(tuple(int(i == PSEUDOSCALAR) for i in range(BLADES)), mv)
    return torch.cat([mv, one.expand(*mv.shape[:-2], 1, BLADES)], dim=-2)


def frame_of(
    mv: Tensor,
    sets: Sets,
    *,
    recenter: bool = True,
    length: float = 1.0,
    join_reference: JoinReference = "data",
    center: Tensor | None = None,
) -> Frame:
    """The frame of sets of multivectors (items, C, 16).

    recenter: the centre of a sample is its centroid. center: (..., 3) per sample, instead of it.
    join_reference: "data" (mean of a sample's multivectors), "canonical" (e123 = 1) or a tensor.
    """
    if center is None and recenter and mv.shape[-2]:
        center = working_center(mv, sets)
    if center is not None:
        center = arguments.per_sample(center, 3, sets.samples, "center", "a point").to(mv)
    value = _reference(mv, sets, join_reference).expand(*sets.samples, 1)
    return Frame(value, center, length)


def _without_item_axes(reference: Tensor, sets: Sets) -> Tensor:
    """A reference that broadcasts to the multivectors, (..., 1, 1, 16), as one per sample."""
    ones = sets.axes + 1  # the item axes and the channels
    too_many = reference.dim() - 1 > len(sets.samples)
    if too_many and reference.shape[-1 - ones : -1] == (1,) * ones:
        return reference.flatten(-1 - ones)
    return reference


def _reference(mv: Tensor, sets: Sets, join_reference: JoinReference) -> Tensor:
    if isinstance(join_reference, Tensor):
        name, what = "join_reference", "a multivector"
        given = _without_item_axes(join_reference, sets)
        given = arguments.per_sample(given, BLADES, sets.samples, name, what)
        return given.to(mv)[..., E123, None]
    if join_reference == "canonical":
        return mv.new_ones(1)
    if join_reference != "data":
        raise ValueError(
            f"unknown join_reference {join_reference!r}; expected 'data', 'canonical' or a "
            "multivector tensor"
        )
    if not mv.shape[-2]:
        return mv.new_zeros(1)
    return sets.mean(mv[..., E123].mean(-1, keepdim=True))
