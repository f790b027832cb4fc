"""AxialGATr: attention over two item axes in turn, such as time steps and objects.

Even blocks attend over the second axis, odd blocks over the first; the other axis acts as a batch
axis. Join reference and centre are computed over both axes of a sample.
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

    `attention_mask` is None or a pair of masks for the two axes; `mask` is (..., N1, N2).
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
        """As `GATr.forward`, but with two item axes; packed sets (`offsets`) are not supported."""
        if offsets is not None or max_items is not None:
            raise ValueError("AxialGATr takes padded sets (mask), not packed ones (offsets)")
        pair = isinstance(attention_mask, (tuple, list)) and len(attention_mask) == 2
        if attention_mask is not None and not pair:
            raise TypeError(
                "attention_mask of AxialGATr must be a pair: one mask (or None) per item axis"
            )
        return super().forward(
            mv,
            s,
            mask=mask,
            attention_mask=attention_mask,
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
        *leading, first, second = sets.shape
        mask = None if sets.mask is None else sets.mask.mT
        swapped = Surroundings(
            around.reference.transpose(-2, -1),
            swap_item_axes(around.reinsert, sets.shape),
            Sets((*leading, second, first), axes=2, mask=mask),
            masks[0],
            around.recompute,
        )
        return [around, swapped]


def _axis(block: int) -> int:
    """Item axis (0 or 1) that this block attends over."""
    return (block + 1) % 2
