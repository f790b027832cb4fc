"""A block on a few small sets as one node of autograd's graph.

On a small network the bookkeeping of autograd costs more than the kernels. Here the operators'
functions are called one after another, forward and backward, and autograd sees only the block's
inputs and outputs. The tensors saved in between are not part of the graph: for second derivatives
the block is run again, operator by operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import recorded
from .backend import backend
from .plan import BlockPlan
from .queries import log_gradients, queries, queries_backward
from .small_sets import small_attention, small_attention_backward
from .update import update, update_backward
from .weights import per_parameter

MOST_ROWS = 4096
"""With more rows, kernels take longer than the bookkeeping, and saved tensors need much memory."""


class Facts(NamedTuple):
    """The arguments of a block other than tensors."""

    counts: tuple[int, int, int, int]
    """Numbers of tensors: prepared weights of the first operator, those of the second, learned
    weights of attention, parameters of the first operator. The rest are the second's."""
    terms: str
    """Letters of the learned weights: see `queries.TERMS`."""
    plan: BlockPlan
    items: int
    """Items of each set."""
    step: int
    """Rows from one item of a set to the next."""


def run(
    facts: Facts,
    x: Tensor,
    delta: Tensor,
    reference: Tensor,
    extra: Tensor | None,
    rotary: Tensor | None,
    *flat: Tensor,
) -> tuple[Tensor, Tensor]:
    """The block, operator by operator. flat: the tensors that `counts` describes."""
    maps, more, logs, first, second = _split(facts, flat)
    x, _, _, q, k, v, _ = queries(
        x, delta, extra, rotary, maps, first, logs, facts.terms, facts.plan
    )
    attended = small_attention(q, k, v, facts.items, facts.step, facts.plan.scale).flatten(1)
    x, _, _, delta, _, _ = update(x, attended, reference, more, second, facts.plan, True)
    return x, delta


def _split(facts: Facts, flat: Sequence[Tensor]) -> list[list[Tensor]]:
    groups, start = [], 0
    for count in facts.counts:
        groups.append(list(flat[start : start + count]))
        start += count
    return [*groups, list(flat[start:])]


class BlockNode(torch.autograd.Function):
    """`run` as one node."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        ctx.facts, x, delta, reference, extra, rotary, *flat = given
        facts: Facts = ctx.facts
        maps, more, logs, first, second = _split(facts, flat)
        with backend(x).one_pass():
            new, *saved, q, k, v, raw = queries.function(
                x, delta, extra, rotary, maps, first, logs, facts.terms, facts.plan
            )
            attended = small_attention.function(q, k, v, facts.items, facts.step, facts.plan.scale)
        out, *rest = update.function(
            new, attended.flatten(1), reference, more, second, facts.plan, True
        )
        y, stat, last, projected, wide = rest
        made = *saved, q, k, v, raw, attended, y, stat, projected, wide
        ctx.save_for_backward(x, delta, reference, extra, rotary, *flat, *made)
        ctx.set_materialize_grads(False)
        return out, last

    @staticmethod
    def backward(ctx: Any, *outer: Tensor | None) -> Any:
        facts: Facts = ctx.facts
        x, delta, reference, extra, rotary, *rest = ctx.saved_tensors
        flat, made = rest[:-_MADE], rest[-_MADE:]
        if recorded.is_wanted(*outer):
            inputs = [x, delta, reference, extra, rotary, *flat]
            return (
                None,
                *recorded.gradients(lambda *given: run(facts, *given), inputs, list(outer)),
            )
        first_y, first_stat, q, k, v, raw, attended, y, stat, projected, wide = made
        maps, more, logs, first, second = _split(facts, flat)
        g_x, g_delta = outer
        if g_delta is None:
            g_delta = torch.zeros_like(delta)
        needed = ctx.needs_input_grad[3]
        with backend(y).one_pass():
            g_x, g_attended, g_reference, g_second = update_backward.function(
                g_x, None, g_delta, attended.flatten(1), reference, y, stat, projected, wide, more,
                facts.plan, needed,
            )  # fmt: skip
            of_attention = small_attention_backward.function(
                q, k, v, g_attended.view(attended.shape), facts.items, facts.step, facts.plan.scale
            )
            g_x, g_delta, g_extra, g_first, g_logs = queries_backward.function(
                g_x, None, *of_attention, first_y, first_stat, extra, rotary, raw, maps, logs,
                facts.terms, facts.plan,
            )  # fmt: skip
        return (
            None, g_x, g_delta if g_delta.numel() else g_x.to(delta.dtype),
            g_reference if needed else None, None if extra is None else g_extra, None,
            *[None] * (len(maps) + len(more)),
            *log_gradients(g_logs, logs, facts.terms, facts.plan),
            *per_parameter(g_first, first), *per_parameter(g_second, second),
        )  # fmt: skip


_MADE = 11
"""Number of intermediate tensors that `BlockNode.forward` saves."""
