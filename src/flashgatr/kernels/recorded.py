"""Gradients that can be differentiated again: the operators in terms of `functional`.

If a backward pass is itself recorded (`create_graph=True`) or mapped by vmap, these functions
replace the operators' own gradients. They consist of ordinary operations, which torch can
differentiate any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import functional
from ..algebra import EUCLIDEAN
from ..constants import indices, is_transformed
from ..functional.features import DISTANCE_FEATURES, LogitWeights, inner_blades
from ..functional.linear import MAPS, LinearWeights
from ..functional.norm import ACTIVATIONS
from ..functional.rotary import rotate_by
from ..precision import at_least_float32
from ..versors import SHIFT
from .plan import BlockPlan, HeadLayout, Sizes
from .rows import LinearPlan, columns, from_rows, linear_plan, to_rows

MultivectorsAndScalars = tuple[Tensor, Tensor]


def is_wanted(*given: Tensor | None) -> bool:
    """Whether the backward pass is recorded, or one of the given gradients is mapped by vmap."""
    if torch.is_grad_enabled() or is_transformed():
        return True
    if torch.compiler.is_compiling():
        return False
    try:
        mapped = torch._C._functorch.is_legacy_batchedtensor
    except AttributeError:  # private in torch; recorded gradients are always correct
        return True
    return any(g is not None and mapped(g) for g in given)


def gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], outer: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Recorded gradients of the function's inputs, given the gradients of its outputs."""
    with torch.enable_grad():
        # Aliases separate the inputs from each other, even if one was computed from another.
        own = [x.view_as(x) if x is not None and x.requires_grad else x for x in inputs]
        wanted = [x for x in own if x is not None and x.requires_grad]
        if not wanted:
            return [None] * len(inputs)
        found = function(*own)
        pairs = [(y, g) for y, g in zip(found, outer, strict=True) if g is not None]
        results = torch.autograd.grad(
            [y for y, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    given = iter(results)
    return [next(given) if x is not None and x.requires_grad else None for x in inputs]


def linear_gradients(
    x: Tensor, parameters: Sequence[Tensor], plan: LinearPlan, g: Tensor | None
) -> list[Tensor | None]:
    """Gradients of the input rows and parameters of a linear map with outputs in standard order."""

    def forward(x: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        rows = x.index_select(1, indices(_standard_order(plan), x))
        mv, s = _linear(*_split(rows, Sizes(plan.in_mv, plan.in_s)), parameters, plan)
        return (to_rows(mv, s).to(x.dtype),)

    return gradients(forward, [x, *parameters], [g])


def _standard_order(plan: LinearPlan) -> tuple[int, ...]:
    """The columns of the map's inputs that give rows in standard order."""
    standard = columns(range(plan.in_mv), range(plan.in_s))
    place = {
        key: i for i, key in enumerate(zip(plan.inputs.blade, plan.inputs.channel, strict=True))
    }
    return tuple(place[key] for key in zip(standard.blade, standard.channel, strict=True))


def _split(rows: Tensor, sizes: Sizes) -> MultivectorsAndScalars:
    """Multivectors (T, C, 16) and scalars (T, S) of rows, at least float32; drops extra columns."""
    rows = at_least_float32(rows[:, : sizes.width])
    return from_rows(rows, rows.shape[:1], (sizes.mv, sizes.s))


def _linear(
    mv: Tensor, s: Tensor, parameters: Sequence[Tensor], plan: LinearPlan
) -> MultivectorsAndScalars:
    """Apply the map, given its non-empty parameters."""
    c_in, c_out, s_in, s_out = plan.in_mv, plan.out_mv, plan.in_s, plan.out_s
    shapes = (c_out, c_in, MAPS), (c_out, s_in), (s_out, c_in), (s_out, s_in), (c_out,), (s_out,)
    left = iter(parameters)
    given = [
        next(left).to(mv.dtype).view(shape) if size else None
        for shape, size in zip(shapes, plan.sizes, strict=True)
    ]
    weight = mv.new_zeros(shapes[0]) if given[0] is None else given[0]
    weights = LinearWeights(weight, *given[1:])
    if plan.types is not None:
        weights = functional.masked(weights, *plan.types)
    return functional.linear(mv, s, weights, s_out)


def norm_gradient(
    g_new: Tensor | None,
    g_y: Tensor | None,
    g_stat: Tensor | None,
    y: Tensor,
    stat: Tensor,
    plan: BlockPlan,
) -> Tensor:
    """Gradient of x and delta, from the normalised rows y and their statistics alone.

    The statistics are the inverse norm r = 1/√n of multivectors, where n is the mean over channels
    of the sum of x² over blades without e0, and the inverse standard deviation r of scalars. Their
    differentials are dr = -r² y·dx / C and dr = -r² y·dx / S.
    """
    c, s = plan.mv, plan.s
    width, wide = plan.sizes.width, stat.dtype
    y = y.narrow(1, 0, width).to(wide)
    y_s, y_mv = y.split([s, width - s], dim=1)
    g = torch.zeros_like(y) if g_y is None else g_y.narrow(1, 0, width).to(wide)
    g_s, g_mv = g.split([s, width - s], dim=1)
    r, deviation = stat[:, :1], stat[:, 1:]
    euclidean = len(EUCLIDEAN) * c  # columns of the blades in the norm; they come first
    seen = torch.cat([y_mv[:, :euclidean], torch.zeros_like(y_mv[:, euclidean:])], dim=1)
    seen = torch.where(r > 0, seen, 0)  # r < 0: the norm was clamped to epsilon, a constant
    along = -(g_mv * y_mv).sum(1, keepdim=True) / c
    if g_stat is not None:
        along = along - g_stat[:, :1] * r / c
    out_mv = r.abs() * (g_mv + along * seen)
    if s:
        along_s = -(g_s * y_s).mean(1, keepdim=True)
        if g_stat is not None:
            along_s = along_s - g_stat[:, 1:] * deviation / s
        out_s = deviation * (g_s - g_s.mean(1, keepdim=True) + along_s * y_s)
    else:
        out_s = g_s
    out = torch.cat([out_s, out_mv], dim=1)
    return out if g_new is None else out + g_new


def qkv(
    y: Tensor,
    extra: Tensor | None,
    rotary: Tensor | None,
    parameters: Sequence[Tensor],
    extra_parameters: Sequence[Tensor],
    logs: Sequence[Tensor | None],
    plan: BlockPlan,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of normalised rows, in the layout of the kernels."""
    heads, total = plan.heads, plan.heads.total
    types = plan.types
    map_ = linear_plan(plan.mv, total * heads.mv, plan.s, total * heads.s, types=types.qkv)
    mv, s = _linear(*_split(y, plan.sizes), parameters, map_)
    if extra is not None:
        sizes, reached = Sizes(plan.reinsert_mv, plan.reinsert_s), plan.reached
        map_ = linear_plan(
            sizes.mv, reached * heads.mv, sizes.s, reached * heads.s, bias=False,
            types=types.reinsert,
        )  # fmt: skip
        more_mv, more_s = _linear(*_split(extra, sizes), extra_parameters, map_)
        mv = mv + F.pad(more_mv, (0, 0, 0, mv.shape[1] - more_mv.shape[1]))
        s = s + F.pad(more_s, (0, s.shape[1] - more_s.shape[1]))
    mv, s = mv.unflatten(1, (total, heads.mv)), s.unflatten(1, (total, heads.s))
    cut = [heads.queries, heads.keys, heads.keys]
    (q_mv, k_mv, v_mv), (q_s, k_s, v_s) = mv.split(cut, dim=1), s.split(cut, dim=1)
    if rotary is not None:
        q_s, k_s = (rotate_by(x, rotary) for x in (q_s, k_s))
    how = heads.distance_aware, plan.distance_epsilon
    q = functional.query_features(q_mv, q_s, *how, LogitWeights(*logs))
    k = functional.key_features(k_mv, k_s, *how)
    v = to_rows(v_mv, v_s).unflatten(0, v_s.shape[:2])
    order = indices(_feature_order(heads), q)
    padding = (0, heads.features - heads.used_features)
    q, k = (F.pad(x.index_select(-1, order), padding).to(y.dtype) for x in (q, k))
    return q, k, v.to(y.dtype)


def _feature_order(heads: HeadLayout) -> tuple[int, ...]:
    """Positions of the kernels' features (scalars first, channels innermost) in `functional`'s."""
    c, inner = heads.mv, len(inner_blades(heads.distance_aware))
    distances = DISTANCE_FEATURES if heads.distance_aware else 0
    start = c * (inner + distances)
    return (
        *range(start, start + heads.s),
        *(channel * inner + i for i in range(inner) for channel in range(c)),
        *(c * inner + channel * distances + i for i in range(distances) for channel in range(c)),
    )


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, step: int, scale: float) -> Tensor:
    """Attention within sets of `items` items, `step` rows apart."""
    # (groups, step, heads, items, features)
    q, k, v = (x.unflatten(0, (-1, items, step)).permute(0, 2, 3, 1, 4) for x in (q, k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    weights = (q.to(wide) @ k.to(wide).mT * scale).softmax(-1)
    out = (weights @ v.to(wide)).to(v.dtype)
    return out.permute(0, 3, 1, 2, 4).flatten(0, 2)


def leave_gradient(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    """Gradient of the rows that `leave` takes, from those of its multivectors and scalars."""
    items = g_mv.shape[0] // max(center.shape[0], 1)
    shift = center.repeat_interleave(items, 0)[:, None]
    found = g_mv
    for axis, (source, sign) in enumerate(SHIFT):
        moved = g_mv * g_mv.new_tensor(sign) * shift[..., axis, None]
        found = found.index_add(-1, indices(source, g_mv), moved)
    return to_rows(found, g_s)


def mlp(
    y: Tensor, reference: Tensor, parameters: Sequence[Sequence[Tensor]], plan: BlockPlan
) -> Tensor:
    """The geometric MLP of normalised rows."""
    c, s_channels, types = plan.mv, plan.s, plan.types
    mv, s = _split(y, plan.sizes)
    inputs = linear_plan(c, 4 * c, s_channels, 0, types=types.inputs)
    projected, _ = _linear(mv, s, parameters[0], inputs)
    both = functional.bilinear(projected, reference)
    wide = linear_plan(2 * c, 2 * c, s_channels, 2 * s_channels, types=types.wide)
    mv, s = _linear(both, s, parameters[1], wide)
    mv, s = functional.gate(mv, s, tuple(ACTIVATIONS)[plan.activation], plan.is_typed)
    last = linear_plan(2 * c, c, 2 * s_channels, s_channels, types=types.last)
    return to_rows(*_linear(mv, s, parameters[2], last)).to(y.dtype)
