"""AxialGATr: attention over two item axes in turn, such as time steps and objects.

Even blocks attend over the second axis, odd blocks over the first; the other axis acts as a batch
axis. Join reference and centre are computed over both axes of a sample. Samples of unequal length
along the first axis can be packed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .batch import Sets
from .config import GATrConfig
from .frame import Frame, JoinReference
from .model import GATr, swap_item_axes
from .nn.block import Surroundings


class AxialGATr(GATr):
    """GATr over (..., N1, N2, C, 16); `rotary` is a pair, for positions along each of the two axes.

    `attention_mask` is None or a pair of masks for the two axes; `mask` is (..., N1, N2). Samples
    that differ in N1 only can be packed: mv is then (all of the first axis, N2, C, 16), and
    `offsets` (B + 1) divide the first axis.
    """

    item_axes = 2

    def _check_config(self, config: GATrConfig) -> None:
        """Every `rotary` is valid: a single True or False applies to both axes."""

    def _rotary(self, block: int) -> bool:
        rotary = self.config.rotary
        return rotary[_axis(block)] if isinstance(rotary, tuple) else rotary

    def forward(
        self,
        mv: Tensor,
        s: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        attention_mask: Any = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        join_reference: JoinReference = "data",
        center: Tensor | None = None,
        frame: Frame | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `GATr.forward`, but with two item axes.

        offsets: (B + 1) for samples packed along the first axis; mv is then (T, N2, C, 16).
        max_items: the most of the first axis that a packed sample has, if known; required when
            compiling.
        """
        pair = isinstance(attention_mask, (tuple, list)) and len(attention_mask) == 2
        if attention_mask is not None and not pair:
            raise TypeError(
                "attention_mask of AxialGATr must be a pair: one mask (or None) per item axis"
            )
        if offsets is not None and pair and attention_mask[0] is not None:
            raise ValueError(
                "attention_mask has a mask for the first axis, but packed sets (offsets) take none "
                "there; pass (None, mask), or pad the sets"
            )
        return super().forward(
            mv,
            s,
            mask=mask,
            attention_mask=attention_mask,
            offsets=offsets,
            max_items=max_items,
            join_reference=join_reference,
            center=center,
            frame=frame,
        )

    def _surroundings(
        self, frame: Frame, mv: Tensor, s: Tensor, sets: Sets, attention_mask: Any
    ) -> list[Surroundings]:
        """One for even blocks, which attend over the second axis; one with swapped axes for odd
        blocks.
        """
        masks = attention_mask or (None, None)
        (around,) = super()._surroundings(frame, mv, s, sets, masks[1])
        reference, along_first = around.reference.transpose(-2, -1), sets.along_first()
        if sets.offsets is not None:  # one axis of items, object by object
            reference = reference.expand(sets.shape[::-1]).flatten()
        swapped = around._replace(
            reference=reference,
            reinsert=swap_item_axes(around.reinsert, sets.shape, along_first.shape),
            sets=along_first,
            attention_mask=masks[0],
        )
        return [around._replace(sets=sets.along_second()), swapped]


def _axis(block: int) -> int:
    """Item axis (0 or 1) that this block attends over."""
    return (block + 1) % 2
