"""AxialGATr: items along two axes (times x objects), attended to in turn.

Even blocks attend over the second axis, odd blocks over the first; the other axis counts as a batch. Join reference and
centre belong to the whole sample, both axes.
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
    """GATr over (..., N1, N2, C, 16), with `rotary` a pair: positions along the first, the second axis.

    `attention_mask` is None or a pair of masks for the two axes; `mask` is (..., N1, N2).
    """

    item_axes = 2

    def _check_config(self, config: GATrConfig) -> None:
        """Any `rotary` will do: True means both axes."""

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
        """As GATr's, for two item axes; packed sets (`offsets`) have only one and are an error."""
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
        """Along the second axis, for even blocks; along the first, which is last then, for odd ones."""
        masks = attention_mask or (None, None)
        (around,) = super()._surroundings(frame, mv, s, sets, masks[1])
        *leading, first, second = sets.shape
        mask = None if sets.mask is None else sets.mask.mT
        swapped = Surroundings(
            around.reference.transpose(-2, -1),
            swap_item_axes(around.reinsert, sets.shape),
            Sets((*leading, second, first), axes=2, mask=mask),
            masks[0],
        )
        return [around, swapped]


def _axis(block: int) -> int:
    """Item axis (0 or 1) that this block attends over."""
    return (block + 1) % 2
