"""The operator before attention.

queries   x, delta  ->  x + delta, its normalised rows y, and the queries, keys and values of y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..precision import stream_dtype
from . import recorded
from .backend import backend, linear_plans
from .norm import gradient_shapes, normed_shapes, recorded_norm, with_statistics
from .operator import Arguments, operator
from .plan import BlockPlan, grouped
from .weights import per_parameter

TERMS = "abg"
"""Letters that denote the learned logit weights in operators: alpha, beta, gamma."""


@operator("queries")
def queries(
    x: Tensor,
    delta: Tensor,
    extra: Tensor | None,
    rotary: Tensor | None,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: BlockPlan,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x + delta; its normalised rows and their statistics; queries, keys and values; raw.

    Queries are (T, H, D), keys (T, 1 or H, D), values (T, 1 or H, V). `raw` are the projected
    rows from which they were computed, or no rows if the backward pass recomputes or ignores them.
    `extra` are the re-inserted rows, or None. `rotary` are the cosines and sines (T, S) that rotate
    the scalars of queries and keys (see `functional.rotary`), or None. `parameters` are those of
    the qkv map, then those of the re-inserted channels; `logs` are the logarithms of the learned
    weights that `terms` names.
    """
    be = backend(x)
    with be.one_pass():
        new, y, stat = be.norm(x, delta, plan.sizes, plan.norm_epsilon, delta.dtype)
        raw = _raw(y, extra, prepared, plan)
        q, k, v = be.features(raw, rotary, plan.heads, _named(terms, logs), plan.distance_epsilon)
    is_kept = y.shape[0] < be.RECOMPUTE and _reads_raw(terms, plan)
    return new, y, stat, q, k, v, raw if is_kept else y.new_empty(0, raw.shape[1])


def _reads_raw(terms: str, plan: BlockPlan) -> bool:
    """Whether the gradient of queries and keys depends on the projected rows.

    Without distances and learned weights, they are linear in them.
    """
    return plan.heads.distance_aware or "a" in terms or "g" in terms


def _raw(y: Tensor, extra: Tensor | None, prepared: Sequence[Tensor], plan: BlockPlan) -> Tensor:
    """The projected rows from which `features` computes queries, keys and values."""
    be, plans = backend(y), linear_plans(plan, y.device.type)
    raw = be.linear(y, prepared[0], plans.qkv)
    if extra is not None and plans.reinsert is not None:
        raw = be.add_linear(raw, extra, prepared[1], plans.reinsert, plan.heads)
    return raw


def _named(terms: str, logs: Sequence[Tensor]) -> list[Tensor | None]:
    """The learned weights (alpha, beta, gamma), with None for those that are not learned."""
    given = iter(logs)
    return [next(given) if name in terms else None for name in TERMS]


@queries.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    items, device = a.x.shape[0], a.x.device.type
    q, k, v = (a.delta.new_empty(items, *shape) for shape in a.plan.heads.shapes)
    kept = items if items < backend(a.x).RECOMPUTE and _reads_raw(a.terms, a.plan) else 0
    raw = a.delta.new_empty(kept, len(linear_plans(a.plan, device).qkv.outputs))
    return *normed_shapes(a.x, a.delta.dtype, a.plan), q, k, v, raw


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
    rotary: Tensor | None,
    raw: Tensor,
    prepared: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: BlockPlan,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, delta, the re-inserted rows, the parameters and the learned weights.

    The gradient of delta is empty if it equals that of x. The learned weights are in the order
    beta, alpha, gamma.
    """
    be = backend(y)
    plans = linear_plans(plan, y.device.type)
    used = (plans.qkv,) if plans.reinsert is None else (plans.qkv, plans.reinsert)
    gradients = be.weight_gradients(used, y)
    g_extra = y.new_empty(0)
    with be.one_pass():
        if raw.shape[0] != y.shape[0] and _reads_raw(terms, plan):
            raw = _raw(y, extra, prepared, plan)
        g_raw, parts = be.features_backward(
            raw, rotary, g_q, g_k, g_v, plan.heads, _named(terms, logs), plan.distance_epsilon
        )
        gradients.add(0, y, g_raw)
        found = be.linear_input_gradient(g_raw, prepared[0], plans.qkv, y.shape[1])
        if g_y is None:
            g_x, g_delta = be.norm_backward(g_new, found, y, stat, plan.sizes, y.dtype)
        if extra is not None and plans.reinsert is not None:
            g_extra, reached = be.reinsert_input_gradient(
                g_raw, prepared[1], plans.reinsert, plan.heads
            )
            gradients.add(1, extra, reached)
    if g_y is not None:
        g_x, g_delta = be.norm_backward(g_new, found + g_y, y, stat, plan.sizes, y.dtype)
    g_logs = be.summed(parts) if logs else parts.new_empty(parts.shape[1])
    return g_x, g_delta, g_extra, gradients.collect(), g_logs


@queries_backward.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    plans, stream = linear_plans(a.plan, a.y.device.type), stream_dtype(a.y.dtype)
    count = plans.qkv.parameters + (plans.reinsert.parameters if plans.reinsert else 0)
    return (
        *gradient_shapes(a.y, a.plan),
        a.y.new_empty(0) if a.extra is None else a.extra.new_empty(a.extra.shape),
        a.y.new_empty(count, dtype=stream),
        a.y.new_empty(a.plan.heads.learned, dtype=stream),
    )


def _queries_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, _, extra, rotary, prepared, parameters, logs, ctx.terms, ctx.plan = inputs
    _, y, stat, _, _, _, raw = output
    ctx.logs, ctx.maps = len(logs), len(prepared)
    ctx.save_for_backward(y, stat, extra, rotary, raw, *prepared, *logs, *parameters)
    ctx.mark_non_differentiable(raw)
    ctx.set_materialize_grads(False)


def _queries_grad(
    ctx: Any, g_new: Any, g_y: Any, g_stat: Any, g_q: Any, g_k: Any, g_v: Any, _: Any
) -> Any:
    y, stat, extra, rotary, raw, *rest = ctx.saved_tensors
    prepared, rest = rest[: ctx.maps], rest[ctx.maps :]
    logs, parameters = rest[: ctx.logs], rest[ctx.logs :]
    heads, nothing = ctx.plan.heads, [None] * ctx.maps
    outer = [
        y.new_zeros(y.shape[0], *shape) if g is None else g
        for g, shape in zip((g_q, g_k, g_v), heads.shapes, strict=True)
    ]
    if recorded.is_wanted(g_new, g_y, g_stat, *outer):
        return _queries_grad_recorded(
            ctx, (g_new, g_y, g_stat), outer, y, stat, extra, rotary, logs, parameters
        )
    g_new = with_statistics(g_new, g_stat, y, stat, ctx.plan)
    g_x, g_delta, g_extra, g_theta, g_logs = queries_backward(
        g_new, g_y, *outer, y, stat, extra, rotary, raw, prepared, logs, ctx.terms, ctx.plan
    )
    return (
        g_x, g_delta if g_delta.numel() else g_x.to(y.dtype), None if extra is None else g_extra,
        None, nothing, per_parameter(g_theta, parameters),
        log_gradients(g_logs, logs, ctx.terms, ctx.plan), None, None,
    )  # fmt: skip


def log_gradients(
    flat: Tensor, logs: Sequence[Tensor], terms: str, plan: BlockPlan
) -> list[Tensor]:
    """Gradients of the learned weights, from those that `queries_backward` returns."""
    if not logs:
        return []
    h, c = plan.heads.queries, plan.heads.mv
    beta, alpha, gamma = (g.view(h, -1) for g in flat.split([h * c, h, h]))
    named = [g for g, name in zip((alpha, beta, gamma), TERMS, strict=True) if name in terms]
    return [g.to(log.dtype) for g, log in zip(named, logs, strict=True)]


def _queries_grad_recorded(
    ctx: Any,
    of_norm: tuple[Tensor | None, Tensor | None, Tensor | None],
    outer: list[Tensor],
    y: Tensor,
    stat: Tensor,
    extra: Tensor | None,
    rotary: Tensor | None,
    logs: list[Tensor],
    parameters: list[Tensor],
) -> Any:
    plan = ctx.plan
    plans = linear_plans(ctx.plan, y.device.type)
    used = (plans.qkv,) if plans.reinsert is None else (plans.qkv, plans.reinsert)

    def forward(y: Tensor, extra: Tensor | None, *rest: Tensor) -> tuple[Tensor, ...]:
        weights = _named(ctx.terms, rest[: len(logs)])
        own, *more = grouped(rest[len(logs) :], used)
        return recorded.qkv(y, extra, rotary, own, more[0] if more else [], weights, plan)

    found, g_extra, *rest = recorded.gradients(forward, [y, extra, *logs, *parameters], outer)
    g_x = recorded_norm(of_norm, found, y, stat, ctx.plan)
    g_logs, g_parameters = rest[: len(logs)], rest[len(logs) :]
    nothing = [None] * ctx.maps
    return g_x, g_x.to(y.dtype), g_extra, None, nothing, g_parameters, g_logs, None, None


queries.register_autograd(_queries_grad, setup_context=_queries_setup)
