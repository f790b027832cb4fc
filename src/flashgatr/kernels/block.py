"""A block on rows: two operators around attention.

    x, q, k, v = queries(x, delta)              add delta, normalise, project, compute features
    x, delta   = update(x, attend(q, k, v))     project, add, normalise, geometric MLP

A block takes and returns the residual stream x and delta, the update still to be added to it: the
sum is fused with the next norm. The backward pass recomputes cheap results instead of saving
them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import functional
from ..batch import Sets
from ..functional import LogitWeights
from ..shortcuts import BLOCK_NODE
from .backend import backend
from .block_node import MOST_ROWS, BlockNode, Facts
from .operator import is_watched
from .plan import BlockMaps, BlockPlan
from .queries import TERMS, queries
from .small_sets import small_attention
from .update import update


class RowBlock(NamedTuple):
    """The plan and the tensors of one block."""

    plan: BlockPlan
    parameters: BlockMaps[list[Tensor]]
    """The non-empty parameters of each linear map."""
    prepared: list[Tensor]
    """The prepared weights of each linear map, in the order of `BlockMaps`."""
    logit_weights: LogitWeights


class RowContext(NamedTuple):
    """The inputs of a block besides its rows."""

    reference: Tensor
    """(T): the e123 component of the join's reference."""
    reinsert: Tensor | None
    """Rows of the input channels that are re-inserted into queries and keys."""
    rotary: Tensor | None
    """(T, S): cosines and sines of the items' rotary angles; see `functional.rotary`."""
    sets: Sets
    attention_mask: Tensor | None


def run_block(
    block: RowBlock, x: Tensor, delta: Tensor, context: RowContext
) -> tuple[Tensor, Tensor]:
    """The residual stream and the update still to be added to it, after the block."""
    plan, maps, own = block.plan, BlockMaps(*block.prepared), block.parameters
    learned = dict(zip(TERMS, block.logit_weights, strict=True))
    logs = [log for log in learned.values() if log is not None]
    terms = "".join(name for name, log in learned.items() if log is not None)
    first_maps, first = [maps.qkv], list(own.qkv)
    if maps.reinsert is not None and own.reinsert is not None:
        first_maps, first = [maps.qkv, maps.reinsert], [*own.qkv, *own.reinsert]
    second_maps = [maps.output, maps.inputs, maps.wide, maps.last]
    second = [*own.output, *own.inputs, *own.wide, *own.last]
    is_small = _is_small(x, context)
    if is_small and x.shape[0] <= MOST_ROWS and torch.is_grad_enabled() and BLOCK_NODE.is_on:
        given = (
            x, delta, context.reference, context.reinsert, context.rotary,
            *first_maps, *second_maps, *logs, *first, *second,
        )  # fmt: skip
        if not is_watched(given):
            counts = len(first_maps), len(second_maps), len(logs), len(first)
            facts = Facts(counts, terms, plan, max(context.sets.shape[-1], 1))
            return BlockNode.apply(facts, *given)  # type: ignore[no-any-return, no-untyped-call]
    x, _, _, q, k, v, _ = queries(
        x, delta, context.reinsert, context.rotary, first_maps, first, logs, terms, plan
    )
    attended = _attend(q, k, v, plan.scale, context, is_small)
    x, _, _, delta, _, _ = update(
        x, attended, context.reference, second_maps, second, plan, is_small
    )
    return x, delta


def _is_small(x: Tensor, context: RowContext) -> bool:
    """Whether our own kernel for attention within small sets can be used."""
    if not context.sets.is_plain or context.attention_mask is not None:
        return False
    # A traced graph is used for all sizes, so it must not depend on this one.
    return not torch.compiler.is_compiling() and context.sets.shape[-1] <= backend(x).SMALL_SET


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, context: RowContext, is_small: bool
) -> Tensor:
    """Attention of all items: (T, H·V)."""
    sets = context.sets
    if is_small:
        out = small_attention(q, k, v, max(sets.shape[-1], 1), scale)
    else:
        shape = sets.shape
        out = functional.attend(
            q.unflatten(0, shape),
            k.unflatten(0, shape),
            v.unflatten(0, shape),
            scale=scale,
            sets=sets,
            context_sets=sets,
            attention_mask=context.attention_mask,
        ).flatten(0, -3)
    return out.flatten(1)  # type: ignore[no-any-return]
