"""A block as a handful of operators on rows, each with its own backward pass.

    x, q, k, v = queries(x, delta)              add what the last block found, normalise, one product, features
    x, delta   = update(x, attend(q, k, v))     product, add, normalise, MLP (product, bilinear layer, product, gate, product)

`gpu` and `cpu` implement the steps. What is cheap is computed again in the backward pass instead of saved: the outputs of the
bilinear layer and of the gate, the normalised rows' origin. The layers in `nn` are the plain version of all this; they
serve where these operators do not: see `paths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..nn.attend import attend
from ..nn.linear import EquiLinear
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
from .rows import parameters_of
from .small_attention import small_attention as small_attention
from .weights import Weights as Weights
from .weights import prepare as prepare
from .weights import prepare_ahead as prepare_ahead

if TYPE_CHECKING:
    from ..model import GATrBlock, Surroundings


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
    text, layers = block.plan_text, layers_of(block)
    parameters = [parameters_of(layer) for layer in layers]
    prepared = block.weights.get([p for group in parameters for p in group], text, delta.dtype)
    attention = block.attention.attention
    named = zip("abg", (attention.log_alpha, attention.log_beta, attention.log_gamma), strict=True)
    logs = {name: log for name, log in named if log is not None}
    extra = around.extra if len(layers) > REINSERT else None
    used = [QKV] if extra is None else [QKV, REINSERT]
    x, _, _, q, k, v, _ = queries(
        x,
        delta,
        extra,
        [prepared[i] for i in used],
        [p for i in used for p in parameters[i]],
        list(logs.values()),
        "".join(logs),
        text,
    )
    attended, ready = _attend(q, k, v, attention.scale, around)
    used = [OUT, *range(INPUTS, LAST + 1)]
    x, _, _, delta, _, _ = update(
        x,
        attended,
        around.reference,
        [prepared[i] for i in used],
        [p for i in used for p in parameters[i]],
        text,
        ready,
    )
    return x, delta


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, around: Surroundings
) -> tuple[Tensor, bool]:
    """(T, H·V) from queries, keys and values of all items, and whether a kernel of ours wrote it."""
    sets = around.sets
    is_open = sets.is_plain and around.attention_mask is None
    # A traced graph serves all sizes, so it must not depend on this one.
    is_small = (
        is_open and not torch.compiler.is_compiling() and sets.shape[-1] <= backend(q).SMALL_SET
    )
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
    return out.flatten(1), bool(is_small)
