"""The operators of `fused` in plain torch: what they mean, and how they are differentiated more than once.

Rows as everywhere in this folder; every step is an ordinary operation, so that torch can differentiate it as often as it
likes. When a backward pass is itself recorded (`create_graph=True`) or mapped, the operators' own gradients step aside for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algebra import BLADES, E123, EUCLIDEAN, POINT
from ..constants import indices, is_transformed
from ..nn.norm import ACTIVATIONS
from ..versors import SHIFT
from . import bilinear
from .rows import FACTORS, ORDER, LinearPlan, dense_table, linear_plan

if TYPE_CHECKING:
    from .plan import BlockPlan, Heads, Sizes


def is_wanted(*given: Tensor | None) -> bool:
    """Whether a backward pass is recorded (to be differentiated again), or mapped over many of the given gradients."""
    if torch.is_grad_enabled() or is_transformed():
        return True
    mapped = torch._C._functorch.is_legacy_batchedtensor
    return not torch.compiler.is_compiling() and any(g is not None and mapped(g) for g in given)


def gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], outer: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of the inputs, recorded, given those of the function's outputs."""
    with torch.enable_grad():
        # An alias is reached by this function alone, even if one input was made from another.
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


def linear(x: Tensor, parameters: Sequence[Tensor], plan: LinearPlan) -> Tensor:
    """The map with its matrix written out; columns of x beyond the map's inputs are ignored."""
    theta = torch.cat([p.reshape(-1) for p in parameters] or [x.new_zeros(0)])
    table = dense_table(plan).to(x.device).long()
    factors = torch.tensor(FACTORS, dtype=theta.dtype, device=x.device)[table % 16]
    matrix = (factors * theta[table // 16]).to(x.dtype)
    return x[:, : len(plan.inputs)] @ matrix[:-1] + matrix[-1]


def _split(x: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Scalars (T, S), and multivectors (T, C, 16) with the algebra's order of blades."""
    s, mv = x[:, : sizes.width].split([sizes.s, BLADES * sizes.mv], dim=1)
    inverse = tuple(ORDER.index(i) for i in range(BLADES))
    mv = mv.unflatten(1, (BLADES, sizes.mv)).index_select(1, indices(inverse, mv))
    return s, mv.transpose(1, 2)


def _join(s: Tensor, mv: Tensor) -> Tensor:
    mv = mv.index_select(2, indices(ORDER, mv)).transpose(1, 2)
    return torch.cat([s, mv.flatten(1)], dim=1)


def norm_gradient(
    g_new: Tensor | None,
    g_y: Tensor | None,
    g_stat: Tensor | None,
    y: Tensor,
    stat: Tensor,
    plan: BlockPlan,
) -> Tensor:
    """Gradient of x and delta, from the normalised rows y and the statistics alone: inverse norm and deviation.

    With r = 1/√n and n the mean of x² over blades without e0:  dr = -r² y·dx / C;  for scalars dr = -r² y·dx / S.
    """
    c, s = plan.mv, plan.s
    width, wide = plan.sizes.width, stat.dtype
    y = y.narrow(1, 0, width).to(wide)
    y_s, y_mv = y.split([s, width - s], dim=1)
    g = torch.zeros_like(y) if g_y is None else g_y.narrow(1, 0, width).to(wide)
    g_s, g_mv = g.split([s, width - s], dim=1)
    r, deviation = stat[:, :1], stat[:, 1:]
    seen = torch.cat([y_mv[:, : width - s >> 1], y_mv.new_zeros(y_mv.shape[0], width - s >> 1)], 1)
    seen = torch.where(r > 0, seen, 0)  # where epsilon decided, the norm is a constant
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
    parameters: Sequence[Tensor],
    extra_parameters: Sequence[Tensor],
    logs: Sequence[Tensor | None],
    plan: BlockPlan,
) -> tuple[Tensor, Tensor, Tensor]:
    heads = plan.heads
    total = heads.queries + 2 * heads.keys
    raw = linear(y, parameters, linear_plan(plan.mv, total * heads.mv, plan.s, total * heads.s))
    if extra is not None:
        reached = heads.queries + heads.keys * (1 + plan.reinsert_values)
        sizes = reached * heads.mv, reached * heads.s
        map_ = linear_plan(plan.reinsert_mv, sizes[0], plan.reinsert_s, sizes[1], bias=False)
        raw = raw + _spread(linear(extra, extra_parameters, map_), sizes, total, heads)
    s = raw[:, : total * heads.s].unflatten(1, (total, heads.s))
    mv = raw[:, total * heads.s :].unflatten(1, (BLADES, total, heads.mv)).transpose(1, 2)
    cut = [heads.queries, heads.keys, heads.keys]
    (q_s, k_s, v_s), (q_mv, k_mv, v_mv) = s.split(cut, dim=1), mv.split(cut, dim=1)
    q = _features(q_s, q_mv, heads, plan.distance_epsilon, logs, True)
    k = _features(k_s, k_mv, heads, plan.distance_epsilon, logs, False)
    return q, k, torch.cat([v_s, v_mv.flatten(2)], dim=2)


def _spread(x: Tensor, sizes: tuple[int, int], total: int, heads: Heads) -> Tensor:
    """Rows of the first heads as rows of all heads."""
    s, mv = x.split([sizes[1], BLADES * sizes[0]], dim=1)
    s = F.pad(s, (0, total * heads.s - sizes[1]))
    mv = F.pad(mv.unflatten(1, (BLADES, sizes[0])), (0, total * heads.mv - sizes[0]))
    return torch.cat([s, mv.flatten(1)], dim=1)


def _features(
    s: Tensor, mv: Tensor, heads: Heads, epsilon: float, logs: Sequence[Tensor | None], query: bool
) -> Tensor:
    """(T, H, D) from scalars (T, H, S) and multivectors (T, H, 16, C) in the order of rows."""
    wide = torch.promote_types(s.dtype, torch.float32)
    dtype, s, mv = s.dtype, s.to(wide), mv.to(wide)
    alpha, beta, gamma = (None if x is None or not query else x.exp() for x in logs)
    blades = [i for i, b in enumerate(ORDER) if b in EUCLIDEAN and not (heads.aware and b == E123)]
    inner = mv[:, :, blades].flatten(2)
    parts = [s if gamma is None else s * gamma, inner if alpha is None else inner * alpha]
    if heads.aware:
        weight = mv[:, :, ORDER.index(E123)]
        omega = weight / (weight * weight + epsilon)
        point = mv[:, :, [ORDER.index(i) for i in POINT]] * omega.unsqueeze(2)
        weight = weight * omega
        squared = (point * point).sum(2)
        along = (weight.unsqueeze(2) * point).unbind(2)
        found = [weight * weight, squared, *along]
        if not query:
            found = [-squared, -weight * weight, *(2 * x for x in along)]
        parts += found if beta is None else [x * beta for x in found]
    out = torch.cat(parts, dim=2)
    return F.pad(out, (0, heads.features - out.shape[2])).to(dtype)


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    q, k, v = (x.unflatten(0, (-1, items)).transpose(1, 2) for x in (q, k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    weights = (q.to(wide) @ k.to(wide).mT * scale).softmax(-1)
    out = (weights @ v.to(wide)).to(v.dtype)
    return out.transpose(1, 2).flatten(0, 1)


def leave_gradient(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    """Gradient of rows from those of the multivectors (T, C, 16) moved by the centres, and of the scalars."""
    items = g_mv.shape[0] // max(center.shape[0], 1)
    shift = center.repeat_interleave(items, 0)[:, None]
    found = g_mv
    for axis, (source, sign) in enumerate(SHIFT):
        moved = g_mv * g_mv.new_tensor(sign) * shift[..., axis, None]
        found = found.index_add(-1, indices(source, g_mv), moved)
    return _join(g_s, found)


def mlp(
    y: Tensor, reference: Tensor, parameters: Sequence[Sequence[Tensor]], plan: BlockPlan
) -> Tensor:
    c, s = plan.mv, plan.s
    projected = linear(y, parameters[0], linear_plan(c, 4 * c, s, 0))
    wide = torch.promote_types(projected.dtype, torch.float32)
    four = projected.to(wide).unflatten(1, (BLADES, 4 * c)).transpose(1, 2)
    inverse = tuple(ORDER.index(i) for i in range(BLADES))
    four = four.index_select(2, indices(inverse, four))
    left, right, join_left, join_right = four.chunk(4, dim=1)
    joined = reference[:, None, None] * bilinear.join(join_left, join_right)
    both = torch.cat([bilinear.product(left, right), joined], dim=1)
    x = _join(y[:, :s], both.to(y.dtype))
    x = linear(x, parameters[1], linear_plan(2 * c, 2 * c, s, 2 * s))
    scalars, mv = _split(x, plan.wide)
    gate, activate = ACTIVATIONS[tuple(ACTIVATIONS)[plan.activation]]
    x = _join(activate(scalars), gate(mv[..., :1]) * mv)
    return linear(x, parameters[2], linear_plan(2 * c, c, 2 * s, s))
