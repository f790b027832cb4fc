"""A block on rows: two operators around attention.

    x, q, k, v = queries(x, delta)              add delta, normalise, project, compute features
    x, delta   = update(x, attend(q, k, v))     project, add, normalise, geometric MLP

A block takes and returns the residual stream x and delta, the update still to be added to it: the
sum is fused with the next norm. The backward pass recomputes cheap results instead of saving
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import functional
from ..batch import Sets
from ..functional import LogitWeights
from ..recomputation import recomputed
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


class RowMemory(NamedTuple):
    """What the items attend to, instead of each other."""

    sets: Sets
    log_weights: Tensor | None
    """Added to the logits, in the shape of the sets."""
    rows: Tensor | None = None
    """The rows that are attended to; None for all of them."""
    keys: Tensor | None = None
    """(M, 1 or H, D): keys of other items; the rows' own keys are not computed then."""
    values: Tensor | None = None
    """(M, 1 or H, V)"""
    kept: list[tuple[Tensor, Tensor]] | None = None
    """If not None, every block appends the keys and values that its items attend to."""
    joined: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """Joins the chosen rows' keys and values with those of other processes."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, sets: Sets) -> Tensor:
        """Attention of the items of `sets`, whose own keys and values are k and v: (T, H, V)."""
        if self.keys is not None and self.values is not None:
            k, v = self.keys.to(q.dtype), self.values.to(q.dtype)
        elif self.rows is not None:
            k, v = k.index_select(0, self.rows), v.index_select(0, self.rows)
        if self.joined is not None:
            k, v = self.joined(k, v)
        if self.kept is not None:
            self.kept.append((k, v))
        out = functional.attend(
            q.unflatten(0, sets.shape),
            k.unflatten(0, self.sets.shape),
            v.unflatten(0, self.sets.shape),
            scale=scale,
            sets=sets,
            context_sets=self.sets,
            attention_mask=None,
            log_weights=self.log_weights,
        )
        return out.flatten(0, -3)


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
    recompute: str | None = None
    """"attention": the backward pass computes queries and attention again; "mlp": `update`."""
    across: tuple[int, ...] | None = None
    """If attention runs over the first of two item axes: the shape (..., first, second) of the
    items in the order of the rows. The items of `sets` are ordered by the second axis first.
    """
    memory: RowMemory | None = None
    """What the items attend to, if not each other."""

    @property
    def items(self) -> int:
        """Items of each set (of plain sets), at least one."""
        return max(self.sets.shape[-1], 1)

    @property
    def step(self) -> int:
        """Rows from one item of a set to the next."""
        return 1 if self.across is None else max(self.across[-1], 1)

    def by_set(self, x: Tensor) -> Tensor:
        """Rows (T, H, D) in the order of the sets: (..., items, H, D)."""
        if self.across is None:
            return x.unflatten(0, self.sets.shape)  # type: ignore[no-any-return]
        swapped = x.unflatten(0, self.across).transpose(-4, -3)
        out: Tensor = swapped.reshape(*self.sets.shape, *x.shape[1:])
        return out  # a view unless sets are packed

    def by_row(self, x: Tensor) -> Tensor:
        """The inverse of `by_set`."""
        if self.across is not None:
            *leading, first, second = self.across
            x = x.reshape(*leading, second, first, *x.shape[-2:]).transpose(-4, -3)
        return x.flatten(0, -3)


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
    may_be_node = is_small and x.shape[0] <= MOST_ROWS and context.recompute is None
    if may_be_node and torch.is_grad_enabled() and BLOCK_NODE.is_on:
        given = (
            x, delta, context.reference, context.reinsert, context.rotary,
            *first_maps, *second_maps, *logs, *first, *second,
        )  # fmt: skip
        if not is_watched(given):
            counts = len(first_maps), len(second_maps), len(logs), len(first)
            facts = Facts(counts, terms, plan, context.items, context.step)
            return BlockNode.apply(facts, *given)  # type: ignore[no-any-return, no-untyped-call]

    def attention(x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        new, _, _, q, k, v, _ = queries(
            x, delta, context.reinsert, context.rotary, first_maps, first, logs, terms, plan
        )
        return new, _attend(q, k, v, plan.scale, context, is_small)

    def mlp(x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        new, _, _, delta, _, _ = update(
            x, attended, context.reference, second_maps, second, plan, is_small
        )
        return new, delta

    x, attended = recomputed(context.recompute == "attention", attention, x, delta)
    return recomputed(context.recompute == "mlp", mlp, x, attended)


def _is_small(x: Tensor, context: RowContext) -> bool:
    """Whether our own kernel for attention within small sets can be used."""
    if not context.sets.is_plain or context.attention_mask is not None or context.memory:
        return False
    # A traced graph is used for all sizes, so it must not depend on this one.
    return not torch.compiler.is_compiling() and context.sets.shape[-1] <= backend(x).SMALL_SET


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, context: RowContext, is_small: bool
) -> Tensor:
    """Attention of all items: (T, H·V)."""
    sets, mask, across = context.sets, context.attention_mask, context.across
    if context.memory is not None:
        out = context.memory.attend(q, k, v, scale, sets)
    elif is_small:
        out = small_attention(q, k, v, context.items, context.step, scale)
    elif across and sets.is_plain and mask is None and k.shape[1] == q.shape[1]:
        out = _attend_folded(q, k, v, scale, across)
    else:
        out = functional.attend(
            context.by_set(q),
            context.by_set(k),
            context.by_set(v),
            scale=scale,
            sets=sets,
            context_sets=sets,
            attention_mask=mask,
        )
        out = context.by_row(out)
    return out.flatten(1)


def _attend_folded(q: Tensor, k: Tensor, v: Tensor, scale: float, shape: tuple[int, ...]) -> Tensor:
    """Attention over the first of two item axes without moving rows: (T, H, V).

    The second axis is folded into the heads, which do not mix either: rows (T, H, D) are read as
    (..., first, second · H, D). shape: (..., first, second).
    """
    *leading, first, second = shape
    folded = [x.reshape(*leading, first, second * x.shape[1], x.shape[2]) for x in (q, k, v)]
    out = functional.attend(
        folded[0],
        folded[1],
        folded[2],
        scale=scale,
        sets=None,
        context_sets=None,
        attention_mask=None,
    )
    return out.reshape(*q.shape[:2], v.shape[2])
