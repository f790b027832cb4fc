"""Operators of a block besides attention itself, and a linear map by itself.

    queries   x, delta          ->  x + delta, its normalised rows y, and queries, keys, values of y
    update    x, attended rows  ->  x + map(attended), its normalised rows y, and what the geometric MLP makes of y

Both give y and the norm's statistics away as outputs: what a backward pass saves is then part of the graph, and can be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import BLADES
from ..nn.precision import stream_dtype
from . import reference
from .plan import LAST, QKV, REINSERT, backend, grouped, linear_plans, read_plan
from .registered import operator
from .weights import per_parameter


@operator("linear")
def linear(
    x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: str, which: int
) -> Tensor:
    """A linear map: rows to rows."""
    return backend(x).linear(x, prepared, linear_plans(plan, x.device.type)[which], ready=False)  # type: ignore[no-any-return]


@linear.register_fake
def _(x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: str, which: int) -> Tensor:
    width = len(linear_plans(plan, x.device.type)[which].outputs)
    return x.new_empty(x.shape[0], width)


@operator("linear_backward")
def linear_backward(
    g: Tensor, x: Tensor, prepared: Tensor, plan: str, which: int
) -> tuple[Tensor, Tensor]:
    be, p = backend(x), linear_plans(plan, x.device.type)[which]
    gradients = be.WeightGradients((p,), x)
    gradients.add(0, x, g)
    g_x = be.linear_input_gradient(g, prepared, p, x.shape[1], ready=False)
    return g_x, gradients.collect()


@linear_backward.register_fake
def _(g: Tensor, x: Tensor, prepared: Tensor, plan: str, which: int) -> tuple[Tensor, Tensor]:
    p = linear_plans(plan, x.device.type)[which]
    return x.new_empty(x.shape), x.new_empty(p.parameters, dtype=stream_dtype(x.dtype))


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, prepared, parameters, ctx.plan, ctx.which = inputs
    ctx.save_for_backward(x, prepared, *parameters)


def _linear_grad(ctx: Any, g: Tensor) -> Any:
    x, prepared, *parameters = ctx.saved_tensors
    if reference.is_wanted(g):
        g_x, *found = _recorded_linear(
            x, parameters, linear_plans(ctx.plan, x.device.type)[ctx.which], g
        )
        return g_x, None, found, None, None
    g_x, g_theta = linear_backward(g, x, prepared, ctx.plan, ctx.which)
    return g_x, None, per_parameter(g_theta, parameters), None, None


def _recorded_linear(
    x: Tensor, parameters: Sequence[Tensor], plan: Any, g: Tensor | None
) -> list[Tensor | None]:
    def forward(x: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        return (reference.linear(x, parameters, plan),)

    return reference.gradients(forward, [x, *parameters], [g])


linear.register_autograd(_linear_grad, setup_context=_linear_setup)


@operator("queries")
def queries(
    x: Tensor,
    delta: Tensor,
    extra: Tensor | None,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x + delta; its normalised rows and their statistics; queries (T, H, D), keys and values (T, 1 or H, D) of attention;
    and what they were made of (if worth keeping).

    `parameters` are those of qkv, then of the re-inserted channels; `logs` the learned weights that `terms` names.
    """
    p, be = read_plan(plan), backend(x)
    with be.together():
        new, y, stat = be.norm(x, delta, p.sizes, p.norm_epsilon, delta.dtype)
        raw = _raw(y, extra, prepared, plan)
        q, k, v = be.features(raw, p.heads, _named(terms, logs), p.distance_epsilon)
    kept = raw if y.shape[0] < be.RECOMPUTE else y.new_empty(0, raw.shape[1])
    return new, y, stat, q, k, v, kept


def _raw(y: Tensor, extra: Tensor | None, prepared: Sequence[Tensor], plan: str) -> Tensor:
    """Queries, keys and values before they become features."""
    be, plans = backend(y), linear_plans(plan, y.device.type)
    raw: Tensor = be.linear(y, prepared[0], plans[QKV])
    if extra is not None:
        raw = be.add_linear(raw, extra, prepared[1], plans[REINSERT], read_plan(plan).heads)
    return raw


def _named(terms: str, logs: Sequence[Tensor]) -> list[Tensor | None]:
    """The learned weights (alpha, beta, gamma), None for those that are not learned."""
    given = iter(logs)
    return [next(given) if name in terms else None for name in "abg"]


def _normed(x: Tensor, dtype: torch.dtype, plan: str) -> tuple[Tensor, Tensor, Tensor]:
    """Without numbers: x + delta, its normalised rows, their statistics."""
    width = backend(x).normed_width(read_plan(plan).sizes)
    y = x.new_empty(x.shape[0], width, dtype=dtype)
    return x.new_empty(x.shape), y, x.new_empty(x.shape[0], 2)


@queries.register_fake
def _(
    x: Tensor,
    delta: Tensor,
    extra: Tensor | None,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    heads, items = read_plan(plan).heads, x.shape[0]
    width = len(linear_plans(plan, x.device.type)[QKV].outputs)
    new, y, stat = _normed(x, delta.dtype, plan)
    q, k, v = (delta.new_empty(items, *shape) for shape in heads.shapes)
    kept = items if items < backend(x).RECOMPUTE else 0
    return new, y, stat, q, k, v, delta.new_empty(kept, width)


@operator("queries_backward")
def queries_backward(
    g_new: Tensor | None,
    g_y: Tensor | None,
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    y: Tensor,
    stat: Tensor,
    extra: Tensor | None,
    raw: Tensor,
    prepared: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, of delta (empty if the same), of the re-inserted rows, of the parameters, of the learned weights
    (beta, alpha, gamma)."""
    p, be = read_plan(plan), backend(y)
    plans = linear_plans(plan, y.device.type)
    used = plans[QKV], *plans[REINSERT:]
    gradients = be.WeightGradients(used, y)
    g_extra = y.new_empty(0)
    with be.together():
        if raw.shape[0] != y.shape[0]:
            raw = _raw(y, extra, prepared, plan)
        g_raw, parts = be.features_backward(
            raw, g_q, g_k, g_v, p.heads, _named(terms, logs), p.distance_epsilon
        )
        gradients.add(0, y, g_raw)
        found = be.linear_input_gradient(g_raw, prepared[0], plans[QKV], y.shape[1])
        if g_y is None:
            g_x, g_delta = be.norm_backward(g_new, found, y, stat, p.sizes, y.dtype)
        if extra is not None:
            g_extra, reached = be.reinsert_input_gradient(g_raw, prepared[1], used[1], p.heads)
            gradients.add(1, extra, reached)
    if g_y is not None:
        g_x, g_delta = be.norm_backward(g_new, found + g_y, y, stat, p.sizes, y.dtype)
    g_logs = be.summed(parts) if logs else parts.new_empty(parts.shape[1])
    return g_x, g_delta, g_extra, gradients.collect(), g_logs


def _rows_gradient(y: Tensor, plan: str) -> tuple[Tensor, Tensor]:
    """Without numbers: gradients of the residual stream and of what was added to it (on a CPU empty if the same)."""
    shape, stream = (y.shape[0], read_plan(plan).sizes.width), stream_dtype(y.dtype)
    same = y.dtype == stream and y.device.type == "cpu"
    low = y.new_empty(0) if same else y.new_empty(shape)
    return y.new_empty(shape, dtype=stream), low


@queries_backward.register_fake
def _(
    g_new: Tensor | None,
    g_y: Tensor | None,
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    y: Tensor,
    stat: Tensor,
    extra: Tensor | None,
    raw: Tensor,
    prepared: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    plans, heads = linear_plans(plan, y.device.type), read_plan(plan).heads
    count = plans[QKV].parameters + (0 if extra is None else plans[REINSERT].parameters)
    return (
        *_rows_gradient(y, plan),
        y.new_empty(0) if extra is None else extra.new_empty(extra.shape),
        y.new_empty(count, dtype=stream_dtype(y.dtype)),
        y.new_empty(heads.queries * (heads.mv + 2), dtype=stream_dtype(y.dtype)),
    )


def _queries_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, _, extra, prepared, parameters, logs, ctx.terms, ctx.plan = inputs
    _, y, stat, _, _, _, raw = output
    ctx.logs, ctx.maps = len(logs), len(prepared)
    ctx.save_for_backward(y, stat, extra, raw, *prepared, *logs, *parameters)
    ctx.mark_non_differentiable(raw)
    ctx.set_materialize_grads(False)


def _queries_grad(
    ctx: Any, g_new: Any, g_y: Any, g_stat: Any, g_q: Any, g_k: Any, g_v: Any, _: Any
) -> Any:
    y, stat, extra, raw, *rest = ctx.saved_tensors
    prepared, rest = rest[: ctx.maps], rest[ctx.maps :]
    logs, parameters = rest[: ctx.logs], rest[ctx.logs :]
    heads, nothing = read_plan(ctx.plan).heads, [None] * ctx.maps
    outer = [
        y.new_zeros(y.shape[0], *shape) if g is None else g
        for g, shape in zip((g_q, g_k, g_v), heads.shapes, strict=True)
    ]
    if reference.is_wanted(g_new, g_y, g_stat, *outer):
        return _queries_grad_recorded(
            ctx, (g_new, g_y, g_stat), outer, y, stat, extra, logs, parameters
        )
    g_new = _with_statistics(g_new, g_stat, y, stat, ctx.plan)
    g_x, g_delta, g_extra, g_theta, g_logs = queries_backward(
        g_new, g_y, *outer, y, stat, extra, raw, prepared, logs, ctx.terms, ctx.plan
    )
    return (
        g_x, g_delta if g_delta.numel() else g_x.to(y.dtype), None if extra is None else g_extra,
        nothing, per_parameter(g_theta, parameters),
        log_gradients(g_logs, logs, ctx.terms, ctx.plan), None, None,
    )  # fmt: skip


def log_gradients(flat: Tensor, logs: Sequence[Tensor], terms: str, plan: str) -> list[Tensor]:
    """Of the learned weights, from those that `queries_backward` found (beta, alpha, gamma)."""
    if not logs:
        return []
    h, c = read_plan(plan).heads.queries, read_plan(plan).heads.mv
    beta, alpha, gamma = (g.view(h, -1) for g in flat.split([h * c, h, h]))
    named = [g for g, name in zip((alpha, beta, gamma), "abg", strict=True) if name in terms]
    return [g.to(log.dtype) for g, log in zip(named, logs, strict=True)]


def _queries_grad_recorded(
    ctx: Any,
    of_norm: tuple[Tensor | None, Tensor | None, Tensor | None],
    outer: list[Tensor],
    y: Tensor,
    stat: Tensor,
    extra: Tensor | None,
    logs: list[Tensor],
    parameters: list[Tensor],
) -> Any:
    plan = read_plan(ctx.plan)
    plans = linear_plans(ctx.plan, y.device.type)
    used = plans[QKV : QKV + 1] + (() if extra is None else plans[REINSERT:])

    def forward(y: Tensor, extra: Tensor | None, *rest: Tensor) -> tuple[Tensor, ...]:
        weights = _named(ctx.terms, rest[: len(logs)])
        own, *more = grouped(rest[len(logs) :], used)
        return reference.qkv(y, extra, own, more[0] if more else [], weights, plan)

    found, g_extra, *rest = reference.gradients(forward, [y, extra, *logs, *parameters], outer)
    g_x = _recorded_norm(of_norm, found, y, stat, ctx.plan)
    nothing = [None] * ctx.maps
    return g_x, g_x.to(y.dtype), g_extra, nothing, rest[len(logs) :], rest[: len(logs)], None, None


def _with_statistics(
    g_new: Tensor | None, g_stat: Tensor | None, y: Tensor, stat: Tensor, plan: str
) -> Tensor | None:
    """The gradient of the sum (x + delta), including what comes through the norm's statistics."""
    if g_stat is None:
        return g_new
    return reference.norm_gradient(g_new, None, g_stat, y, stat, read_plan(plan))


def _recorded_norm(
    outer: tuple[Tensor | None, Tensor | None, Tensor | None],
    found: Tensor | None,
    y: Tensor,
    stat: Tensor,
    plan: str,
) -> Tensor:
    """Gradient of x and delta, given those of the sum, its normalised rows (some of it `found` already) and statistics."""
    g_new, g_y, g_stat = outer
    if found is not None:
        g_y = found if g_y is None else g_y + found
    return reference.norm_gradient(g_new, g_y, g_stat, y, stat, read_plan(plan))


queries.register_autograd(_queries_grad, setup_context=_queries_setup)


@operator("update")
def update(
    x: Tensor,
    attended: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: str,
    ready: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x + map(attended); its normalised rows and their statistics; what the MLP (bilinear layer, gate, linear map) makes of
    those; and the bilinear layer's four inputs and the gate's.

    ready: one of our own kernels wrote the attended rows, as products want them.
    """
    p, be = read_plan(plan), backend(x)
    out, inputs, output, last = _update_plans(plan, x)
    with be.together():
        delta = be.linear(attended, prepared[0], out, ready=ready)
        new, y, stat = be.norm(x, delta, p.sizes, p.norm_epsilon, attended.dtype)
        projected = be.linear(y, prepared[1], inputs)
        wide = be.linear(be.bilinear(projected, y, reference, p.sizes), prepared[2], output)
        delta = be.linear(be.gate(wide, p.wide, p.activation), prepared[3], last)
    return new, y, stat, delta, projected, wide


def _update_plans(plan: str, like: Tensor) -> Any:
    """The maps of attention's output and of the MLP."""
    out, _, *mlp = linear_plans(plan, like.device.type)[: LAST + 1]
    return out, *mlp


@update.register_fake
def _(
    x: Tensor,
    attended: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: str,
    ready: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    p, items = read_plan(plan), x.shape[0]
    widths = p.sizes.width, 4 * BLADES * p.mv, p.wide.width
    delta, projected, wide = (attended.new_empty(items, width) for width in widths)
    return *_normed(x, attended.dtype, plan), delta, projected, wide


@operator("update_backward")
def update_backward(
    g_new: Tensor | None,
    g_y: Tensor | None,
    g_delta: Tensor,
    attended: Tensor,
    reference: Tensor,
    y: Tensor,
    stat: Tensor,
    projected: Tensor,
    wide: Tensor,
    prepared: Sequence[Tensor],
    plan: str,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, of the attended rows, of the reference and of the parameters."""
    p, be = read_plan(plan), backend(y)
    plans = out, inputs, output, last = _update_plans(plan, y)
    gradients = be.WeightGradients(plans, y)
    with be.together():
        g_gated = be.linear_input_gradient(g_delta, prepared[3], last, p.wide.width)
        g_wide, gated = be.gate_backward(wide, g_gated, p.wide, p.activation)
        gradients.add(3, gated, g_delta)
        del gated, g_gated
        g_product = be.linear_input_gradient(g_wide, prepared[2], output, p.s + 2 * BLADES * p.mv)
        g_projected, product, g_reference = be.bilinear_backward(
            projected, y, reference, g_product, p.sizes, needs_reference
        )
        gradients.add(2, product, g_wide)
        del product, g_wide
        found = be.linear_input_gradient(g_projected, prepared[1], inputs, y.shape[1])
        be.add_scalars(found, g_product, p.s)
        gradients.add(1, y, g_projected)
        del g_projected, g_product
        if g_y is None:
            g_x, low = be.norm_backward(g_new, found, y, stat, p.sizes, y.dtype, always=False)
    if g_y is not None:
        g_x, low = be.norm_backward(g_new, found + g_y, y, stat, p.sizes, y.dtype, always=False)
    low = low if low.numel() else g_x.to(y.dtype)
    with be.together():
        gradients.add(0, attended, low)
        g_attended = be.linear_input_gradient(low, prepared[0], out, attended.shape[1])
    return g_x, g_attended, g_reference, gradients.collect()


@update_backward.register_fake
def _(
    g_new: Tensor | None,
    g_y: Tensor | None,
    g_delta: Tensor,
    attended: Tensor,
    reference: Tensor,
    y: Tensor,
    stat: Tensor,
    projected: Tensor,
    wide: Tensor,
    prepared: Sequence[Tensor],
    plan: str,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = sum(p.parameters for p in _update_plans(plan, y))
    return (
        _rows_gradient(y, plan)[0],
        attended.new_empty(attended.shape),
        reference.new_empty(y.shape[0] if needs_reference else 0),
        y.new_empty(total, dtype=stream_dtype(y.dtype)),
    )


def _update_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, attended, join_reference, prepared, parameters, ctx.plan, _ = inputs
    _, y, stat, _, projected, wide = output
    ctx.maps = len(prepared)
    saved = attended, join_reference, y, stat, projected, wide
    ctx.save_for_backward(*saved, *prepared, *parameters)
    ctx.mark_non_differentiable(projected, wide)
    ctx.set_materialize_grads(False)


def _update_grad(ctx: Any, g_new: Any, g_y: Any, g_stat: Any, g_delta: Any, _: Any, __: Any) -> Any:
    attended, join_reference, y, stat, projected, wide, *rest = ctx.saved_tensors
    prepared, parameters = rest[: ctx.maps], rest[ctx.maps :]
    nothing, needed = [None] * ctx.maps, ctx.needs_input_grad[2]
    if reference.is_wanted(g_new, g_y, g_stat, g_delta):
        return _update_grad_recorded(
            ctx, (g_new, g_y, g_stat), g_delta, attended, join_reference, y, stat, parameters
        )
    g_new = _with_statistics(g_new, g_stat, y, stat, ctx.plan)
    if g_delta is None:
        g_delta = torch.zeros_like(y[:, : read_plan(ctx.plan).sizes.width])
    g_x, g_attended, g_reference, g_theta = update_backward(
        g_new, g_y, g_delta, attended, join_reference, y, stat, projected, wide, prepared,
        ctx.plan, needed,
    )  # fmt: skip
    own = per_parameter(g_theta, parameters)
    return g_x, g_attended, g_reference if needed else None, nothing, own, None, None


def _update_grad_recorded(
    ctx: Any,
    of_norm: tuple[Tensor | None, Tensor | None, Tensor | None],
    g_delta: Tensor | None,
    attended: Tensor,
    join_reference: Tensor,
    y: Tensor,
    stat: Tensor,
    parameters: list[Tensor],
) -> Any:
    out, *mlp = _update_plans(ctx.plan, y)
    own, *groups = grouped(parameters, (out, *mlp))

    def forward(y: Tensor, join_reference: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        maps = grouped(parameters, mlp)
        return (reference.mlp(y, join_reference, maps, read_plan(ctx.plan)),)

    theirs = [p for group in groups for p in group]
    of_mlp: list[Tensor | None] = [None] * (2 + len(theirs))
    if g_delta is not None:
        of_mlp = reference.gradients(forward, [y, join_reference, *theirs], [g_delta])
    found, g_reference, *rest = of_mlp
    g_x = _recorded_norm(of_norm, found, y, stat, ctx.plan)
    g_attended, *first = _recorded_linear(attended, own, out, g_x.to(y.dtype))
    return g_x, g_attended, g_reference, [None] * ctx.maps, [*first, *rest], None, None


update.register_autograd(_update_grad, setup_context=_update_setup)
