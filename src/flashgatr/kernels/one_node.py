"""A block on a few small sets as one node of autograd's graph.

On a small network the graph's bookkeeping costs more than the work, so that here the operators' functions are called one after
another, forward and backward, and autograd sees the block's inputs and outputs only. What is saved in between is no
part of the graph: for second derivatives the block is run again, operator by operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference as plain
from .operators import log_gradients, queries, queries_backward, update, update_backward
from .plan import backend
from .small_attention import small_attention, small_attention_backward
from .weights import per_parameter

MOST_ROWS = 4096
"""Beyond, kernels take longer than the bookkeeping, and the memory for what is saved counts."""


class Block(NamedTuple):
    """What there is besides tensors."""

    counts: tuple[int, int, int, int]
    """How many tensors there are of each kind: weights as the backend wants them, of the first and of the second operator;
    learned weights of attention; parameters of the first operator. The rest are parameters of the second."""
    terms: str
    plan: str
    items: int
    scale: float


def run(
    block: Block, x: Tensor, delta: Tensor, reference: Tensor, extra: Tensor | None, *flat: Tensor
) -> tuple[Tensor, Tensor]:
    """The block, operator by operator. flat: as `counts` says."""
    maps, more, logs, first, second = _split(block, flat)
    x, _, _, q, k, v, _ = queries(x, delta, extra, maps, first, logs, block.terms, block.plan)
    attended = small_attention(q, k, v, block.items, block.scale).flatten(1)
    x, _, _, delta, _, _ = update(x, attended, reference, more, second, block.plan, True)
    return x, delta


def _split(block: Block, flat: Sequence[Tensor]) -> list[list[Tensor]]:
    groups, start = [], 0
    for count in block.counts:
        groups.append(list(flat[start : start + count]))
        start += count
    return [*groups, list(flat[start:])]


class OneNode(torch.autograd.Function):
    """`run` as one node."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        ctx.block, x, delta, reference, extra, *flat = given
        block: Block = ctx.block
        maps, more, logs, first, second = _split(block, flat)
        with backend(x).together():
            new, *saved, q, k, v, raw = queries.function(
                x, delta, extra, maps, first, logs, block.terms, block.plan
            )
            attended = small_attention.function(q, k, v, block.items, block.scale)
        out, *rest = update.function(
            new, attended.flatten(1), reference, more, second, block.plan, True
        )
        y, stat, last, projected, wide = rest
        made = *saved, q, k, v, raw, attended, y, stat, projected, wide
        ctx.save_for_backward(x, delta, reference, extra, *flat, *made)
        ctx.set_materialize_grads(False)
        return out, last

    @staticmethod
    def backward(ctx: Any, *outer: Tensor | None) -> Any:
        block: Block = ctx.block
        x, delta, reference, extra, *rest = ctx.saved_tensors
        flat, made = rest[:-_MADE], rest[-_MADE:]
        if plain.is_wanted(*outer):
            inputs = [x, delta, reference, extra, *flat]
            return (None, *plain.gradients(lambda *given: run(block, *given), inputs, list(outer)))
        first_y, first_stat, q, k, v, raw, attended, y, stat, projected, wide = made
        maps, more, logs, first, second = _split(block, flat)
        g_x, g_delta = outer
        if g_delta is None:
            g_delta = torch.zeros_like(delta)
        needed = ctx.needs_input_grad[3]
        with backend(y).together():
            g_x, g_attended, g_reference, g_second = update_backward.function(
                g_x, None, g_delta, attended.flatten(1), reference, y, stat, projected, wide, more,
                block.plan, needed,
            )  # fmt: skip
            of_attention = small_attention_backward.function(
                q, k, v, g_attended.view(attended.shape), block.items, block.scale
            )
            g_x, g_delta, g_extra, g_first, g_logs = queries_backward.function(
                g_x, None, *of_attention, first_y, first_stat, extra, raw, maps, logs, block.terms,
                block.plan,
            )  # fmt: skip
        return (
            None, g_x, g_delta if g_delta.numel() else g_x.to(delta.dtype),
            g_reference if needed else None, None if extra is None else g_extra,
            *[None] * (len(maps) + len(more)),
            *log_gradients(g_logs, logs, block.terms, block.plan),
            *per_parameter(g_first, first), *per_parameter(g_second, second),
        )  # fmt: skip


_MADE = 11
