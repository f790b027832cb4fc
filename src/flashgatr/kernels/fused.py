"""A block as a handful of operators on rows, each with its own backward pass.

    x, q, k, v = queries(x, delta)              add what the last block found, normalise, one product, features
    x, delta   = update(x, attend(q, k, v))     product, add, normalise, MLP (product, bilinear layer, product, gate, product)

`gpu` and `cpu` implement the steps. What is cheap is computed again in the backward pass instead of saved: the outputs of the
bilinear layer and of the gate, the normalised rows' origin. The layers in `nn` are the plain version of all this; they
serve where these operators do not: see `paths`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..nn.attend import attend
from ..nn.linear import EquiLinear
from . import gpu, one_node
from .ends import SMALL_SAMPLE as SMALL_SAMPLE
from .ends import enter as enter
from .ends import leave as leave
from .operators import linear as linear
from .operators import queries as queries
from .operators import update as update
from .plan import INPUTS, LAST, OUT, QKV, REINSERT, backend, layers_of
from .plan import BlockPlan as BlockPlan
from .plan import Heads as Heads
from .plan import Sizes as Sizes
from .plan import block_plan as block_plan
from .plan import read_plan as read_plan
from .registered import is_watched
from .rows import parameters_of
from .small_attention import small_attention as small_attention
from .weights import Ready as Ready
from .weights import Weights as Weights
from .weights import prepare as prepare
from .weights import prepare_ahead, prepare_together

if TYPE_CHECKING:
    from ..model import GATrBlock, Surroundings


def prepared_for(
    blocks: Sequence[GATrBlock], x: Tensor, around: Surroundings, dtype: torch.dtype
) -> Surroundings:
    """The surroundings with the blocks' weights, where it saves time to prepare them before the first one is run."""
    if gpu.SideStream.active is not None:
        prepare_ahead(blocks, dtype)
    elif x.shape[0] <= one_node.MOST_ROWS:
        return around._replace(weights=prepare_together(blocks, dtype))
    return around


def apply_linear(layer: EquiLinear, weights: Weights, x: Tensor) -> Tensor:
    """An equivariant linear map of rows, by itself."""
    sizes = layer.in_mv_channels, layer.out_mv_channels, layer.in_s_channels, layer.out_s_channels
    text = " ".join(map(str, ("linear", *sizes)))
    parameters = parameters_of(layer)
    (prepared,) = weights.get(parameters, text, x.dtype)
    return linear(x, prepared, parameters, text, 0)  # type: ignore[no-any-return]


def run_block(
    block: GATrBlock, x: Tensor, delta: Tensor, around: Surroundings
) -> tuple[Tensor, Tensor]:
    """The block on rows: takes and returns the residual stream and what is still to be added to it."""
    text, ready = block.plan_text, around.weights and around.weights.get(id(block))
    if ready:
        parameters, prepared = ready
    else:
        parameters = [parameters_of(layer) for layer in layers_of(block)]
        flat = [p for group in parameters for p in group]
        prepared = block.weights.get(flat, text, delta.dtype)
    attention = block.attention.attention
    named = zip("abg", (attention.log_alpha, attention.log_beta, attention.log_gamma), strict=True)
    learned = {name: log for name, log in named if log is not None}
    logs, terms = list(learned.values()), "".join(learned)
    extra = around.extra if len(parameters) > REINSERT else None
    ours = [QKV] if extra is None else [QKV, REINSERT], [OUT, *range(INPUTS, LAST + 1)]
    maps = [prepared[i] for i in ours[0]], [prepared[i] for i in ours[1]]
    first, second = ([p for i in some for p in parameters[i]] for some in ours)
    is_small = _is_small(x, around)
    if is_small and x.shape[0] <= one_node.MOST_ROWS and torch.is_grad_enabled():
        given = x, delta, around.reference, extra, *maps[0], *maps[1], *logs, *first, *second
        if not is_watched(given):
            counts = len(maps[0]), len(maps[1]), len(logs), len(first)
            items = max(around.sets.shape[-1], 1)
            facts = one_node.Block(counts, terms, text, items, attention.scale)
            return one_node.OneNode.apply(facts, *given)  # type: ignore[no-any-return, no-untyped-call]
    x, _, _, q, k, v, _ = queries(x, delta, extra, maps[0], first, logs, terms, text)
    attended = _attend(q, k, v, attention.scale, around, is_small)
    x, _, _, delta, _, _ = update(x, attended, around.reference, maps[1], second, text, is_small)
    return x, delta


def _is_small(x: Tensor, around: Surroundings) -> bool:
    """Whether our own kernel for attention within small sets serves."""
    sets = around.sets
    if not sets.is_plain or around.attention_mask is not None:
        return False
    # A traced graph serves all sizes, so it must not depend on this one.
    return not torch.compiler.is_compiling() and sets.shape[-1] <= backend(x).SMALL_SET


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, around: Surroundings, is_small: bool
) -> Tensor:
    """(T, H·V) from queries, keys and values of all items."""
    sets = around.sets
    if is_small:
        out = small_attention(q, k, v, max(sets.shape[-1], 1), scale)
    else:
        shape = sets.shape
        out = attend(
            q.unflatten(0, shape),
            k.unflatten(0, shape),
            v.unflatten(0, shape),
            scale=scale,
            sets=sets,
            context_sets=sets,
            attention_mask=around.attention_mask,
        ).flatten(0, -3)
    return out.flatten(1)  # type: ignore[no-any-return]
