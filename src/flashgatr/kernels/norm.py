"""What both operators of a block do for their norm: shapes of outputs, gradients of the statistics.

Both operators return the normalised rows y and the norm's statistics as outputs. What the
backward pass saves is therefore part of the graph and can be differentiated again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..precision import stream_dtype
from . import recorded
from .backend import backend
from .plan import BlockPlan


def normed_shapes(x: Tensor, dtype: torch.dtype, plan: BlockPlan) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors in the shapes of x + delta, its normalised rows and their statistics."""
    width = backend(x).normed_width(plan.sizes)
    y = x.new_empty(x.shape[0], width, dtype=dtype)
    return x.new_empty(x.shape), y, x.new_empty(x.shape[0], 2)


def gradient_shapes(y: Tensor, plan: BlockPlan) -> tuple[Tensor, Tensor]:
    """Empty tensors in the shapes of the gradients of x and delta; the second one has no elements
    if it equals the first."""
    shape, stream = (y.shape[0], plan.sizes.width), stream_dtype(y.dtype)
    same = y.dtype == stream and y.device.type == "cpu"
    low = y.new_empty(0) if same else y.new_empty(shape)
    return y.new_empty(shape, dtype=stream), low


def with_statistics(
    g_new: Tensor | None, g_stat: Tensor | None, y: Tensor, stat: Tensor, plan: BlockPlan
) -> Tensor | None:
    """The gradient of x + delta, including the contribution of the norm's statistics."""
    if g_stat is None:
        return g_new
    return recorded.norm_gradient(g_new, None, g_stat, y, stat, plan)


def recorded_norm(
    outer: tuple[Tensor | None, Tensor | None, Tensor | None],
    found: Tensor | None,
    y: Tensor,
    stat: Tensor,
    plan: BlockPlan,
) -> Tensor:
    """Gradient of x and delta, from the gradients of the sum, its normalised rows, the statistics.

    found: a further contribution to the gradient of the normalised rows.
    """
    g_new, g_y, g_stat = outer
    if found is not None:
        g_y = found if g_y is None else g_y + found
    return recorded.norm_gradient(g_new, g_y, g_stat, y, stat, plan)
