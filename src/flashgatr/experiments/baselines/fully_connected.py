"""Networks on all pairs of items of a sample, without pairs of an item with itself.

They work on padded sets; packed ones are padded and packed again. Shapes: N items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...batch import Sets, packed_to_padded

Run = Callable[[list[Tensor], Tensor], Tensor]
"""Inputs (..., N, ...) and valid pairs (..., N, N), the receiving item first, to (..., N, ...)."""


def run_on_pairs(
    run: Run,
    inputs: Sequence[Tensor],
    items: Sequence[int],
    *,
    mask: Tensor | None = None,
    offsets: Tensor | None = None,
    max_items: int | None = None,
) -> Tensor:
    """The result of `run` for inputs (*items, ...); it is zero for padding.

    mask: (..., N), True for valid items. offsets: (B + 1) for packed sets. max_items: size of the
    largest packed set, if known.
    """
    sets = Sets(items, mask=mask, offsets=offsets, max_items=max_items)
    if offsets is None:
        valid = valid_pairs(items, mask, inputs[0].device)
        return sets.keep(run([sets.keep(x) for x in inputs], valid))
    padded = [packed_to_padded(x, offsets, sets.max_items) for x in inputs]
    valid = padded[0][1]
    out = run([x for x, _ in padded], valid_pairs(valid.shape, valid, valid.device))
    return out[sets.sample, sets.positions(out.device)]


def valid_pairs(
    items: Sequence[int], mask: Tensor | None, device: torch.device, rows: slice = slice(None)
) -> Tensor:
    """Which pairs (receiver, sender) are of two different items, and the sender valid:
    (*items, N), or these rows of receivers only.
    """
    number = torch.arange(items[-1], device=device)
    different = number[rows].unsqueeze(-1) != number
    if mask is not None:
        return different & mask.unsqueeze(-2)
    return different.expand(*items[:-1], -1, -1)
