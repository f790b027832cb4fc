"""A sample's frame: where the network works on it.

    f(x) = T_c f(T_-c x)      the centre c is moved to the origin and back, lengths are divided by a unit

For an equivariant f neither changes anything but the rounding. The third part of a frame is the join's
reference. A frame is made once, from the network's input (or from another set's: a decoder works in the
frame of what it reads), and applied at both ends. Centre and reference belong to samples, not to items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from . import arguments
from .algebra import BLADES, E123
from .batch import Sets
from .versors import rescale, translate, working_center

JoinReference = Literal["data", "canonical"] | Tensor


@dataclass(frozen=True)
class Frame:
    """Centre, unit of length and join reference of every sample."""

    reference: Tensor
    """(samples, 1): e123 of the join's reference."""
    center: Tensor | None = None
    """(samples, 3); None: the origin."""
    length: float = 1.0
    """The unit of length."""

    def enter(self, mv: Tensor, sets: Sets) -> Tensor:
        """Multivectors (items, C, 16) of these sets as seen in the frame."""
        if self.center is not None:
            mv = translate(mv, -self._shift(sets))
        return mv if self.length == 1 else rescale(mv, 1 / self.length)

    def leave(self, mv: Tensor, sets: Sets) -> Tensor:
        """The inverse of `enter`."""
        if self.length != 1:
            mv = rescale(mv, self.length)
        return mv if self.center is None else translate(mv, self._shift(sets))

    def references(self, sets: Sets) -> Tensor:
        """The reference's e123, broadcastable to the items of these sets."""
        return sets.spread(self.reference).squeeze(-1)

    def _shift(self, sets: Sets) -> Tensor:
        assert self.center is not None
        return sets.spread(self.center).unsqueeze(-2)


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

    recenter: the centre is the samples' centroid. center: (..., 3) per sample, instead of it.
    join_reference: "data" (mean of the sample's multivectors), "canonical" (e123 = 1) or a multivector.
    """
    if center is None and recenter and mv.shape[-2]:
        center = working_center(mv, sets)
    if center is not None:
        center = arguments.per_sample(center, 3, sets.samples, "center", "a point").to(mv)
    value = _reference(mv, sets, join_reference).expand(*sets.samples, 1)
    return Frame(value, center, length)


def _reference(mv: Tensor, sets: Sets, join_reference: JoinReference) -> Tensor:
    if isinstance(join_reference, Tensor):
        name, what = "join_reference", "a multivector"
        given = arguments.per_sample(join_reference, BLADES, sets.samples, name, what)
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
