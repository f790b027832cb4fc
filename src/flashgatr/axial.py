"""AxialGATr: items along two axes (times x objects), attended to in turn.

Even blocks attend over the second axis, odd blocks over the first; the other axis counts as a batch. Join reference and
centre belong to the whole sample, both axes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .batch import Sets
from .config import GATrConfig
from .model import GATr, JoinReference, Surroundings


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
    ) -> tuple[Tensor, Tensor]:
        """As GATr's, for two item axes; packed sets (`offsets`, `max_items`) have only one and are an error."""
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
        )

    def _run_blocks(self, mv: Tensor, s: Tensor, around: Surroundings) -> tuple[Tensor, Tensor]:
        """Keep the attended axis next to the channels: swap the two before and after odd blocks."""
        masks = around.attention_mask or (None, None)
        along_second = around._replace(attention_mask=masks[1])
        along_first = _swapped(around, masks[0])
        shape, swapped = around.sets.shape, along_first.sets.shape
        for i, block in enumerate(self.blocks):
            if _axis(i) == 1:
                mv, s = self._run_block(block, mv, s, along_second)
            else:
                mv, s = (_swap(x, shape, around.is_fused) for x in (mv, s))
                mv, s = self._run_block(block, mv, s, along_first)
                mv, s = (_swap(x, swapped, around.is_fused) for x in (mv, s))
        return mv, s


def _axis(block: int) -> int:
    """Item axis (0 or 1) that this block attends over."""
    return (block + 1) % 2


def _swap(x: Tensor, shape: tuple[int, ...], is_rows: bool) -> Tensor:
    """The two item axes exchanged; `shape` is that of the items, which rows have in one axis."""
    first, second = len(shape) - 2, len(shape) - 1
    if not is_rows:
        return x.transpose(first, second)
    return x.unflatten(0, shape).transpose(first, second).flatten(0, second)  # type: ignore[no-any-return]


def _swapped(around: Surroundings, attention_mask: Tensor | None) -> Surroundings:
    """The same with the two item axes exchanged."""
    shape = around.sets.shape
    *leading, first, second = shape
    mask = around.sets.mask
    reinsert, extra, reference = around.reinsert, around.extra, around.reference
    if around.is_fused:
        extra = None if extra is None else _swap(extra, shape, True)
        reference = _swap(reference, shape, True)
    else:
        reinsert = _swap(reinsert[0], shape, False), _swap(reinsert[1], shape, False)
        reference = reference.transpose(-2, -1)
    return Surroundings(
        reference,
        reinsert,
        Sets((*leading, second, first), axes=2, mask=None if mask is None else mask.mT),
        attention_mask,
        extra,
        around.is_fused,
        around.weights,
    )
