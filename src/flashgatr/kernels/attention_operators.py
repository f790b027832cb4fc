"""Operators of a block's attention: queries, keys and values from normalised rows; attention within small sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..nn.precision import stream_dtype
from . import reference
from .plan import QKV, REINSERT, backend, grouped, linear_plans, read_plan
from .weights import kinds, per_parameter


@torch.library.custom_op("flashgatr::qkv", mutates_args=())
def qkv(
    y: Tensor,
    extra: Tensor | None,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (T, H, D), keys and values (T, 1 or H, D) of attention, and what they were made of (if worth keeping).

    `parameters` are those of qkv, then of the re-inserted channels; `logs` the learned weights that `terms` names.
    """
    p, be = read_plan(plan), backend(y)
    raw = _raw(y, extra, prepared, prepared_extra, plan)
    q, k, v = be.features(raw, p.heads, _named(terms, logs), p.distance_epsilon)
    return q, k, v, (raw if y.shape[0] < be.RECOMPUTE else y.new_empty(0, raw.shape[1]))


def _raw(
    y: Tensor, extra: Tensor | None, prepared: Tensor, prepared_extra: Tensor | None, plan: str
) -> Tensor:
    """Queries, keys and values before they become features."""
    be, plans = backend(y), linear_plans(plan, y.device.type)
    raw: Tensor = be.linear(y, prepared, plans[QKV])
    if extra is not None:
        raw = be.add_linear(raw, extra, prepared_extra, plans[REINSERT], read_plan(plan).heads)
    return raw


def _named(terms: str, logs: Sequence[Tensor]) -> list[Tensor | None]:
    """The learned weights (alpha, beta, gamma), None for those that are not learned."""
    given = iter(logs)
    return [next(given) if name in terms else None for name in "abg"]


@qkv.register_fake
def _(
    y: Tensor,
    extra: Tensor | None,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, items = read_plan(plan).heads, y.shape[0]
    width = len(linear_plans(plan, y.device.type)[QKV].outputs)
    kept = items if items < backend(y).RECOMPUTE else 0
    return (
        y.new_empty(items, heads.queries, heads.features),
        y.new_empty(items, heads.keys, heads.features),
        y.new_empty(items, heads.keys, heads.values),
        backend(y).empty_rows(kept, width, y, y.dtype),
    )


@torch.library.custom_op("flashgatr::qkv_backward", mutates_args=())
def qkv_backward(
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    y: Tensor,
    extra: Tensor | None,
    raw: Tensor,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of y, of the re-inserted rows, of the parameters, of the learned weights (beta, alpha, gamma)."""
    p, be = read_plan(plan), backend(y)
    plans = linear_plans(plan, y.device.type)
    used = plans[QKV], *plans[REINSERT:]
    weights = _named(terms, logs)
    if raw.shape[0] != y.shape[0]:
        raw = _raw(y, extra, prepared, prepared_extra, plan)
    g_raw, g_logs = be.features_backward(raw, g_q, g_k, g_v, p.heads, weights, p.distance_epsilon)
    gradients = be.WeightGradients(used, y)
    gradients.add(0, y, g_raw)
    g_extra = y.new_empty(0)
    if extra is not None:
        g_extra, reached = be.reinsert_input_gradient(g_raw, prepared_extra, used[1], p.heads)
        gradients.add(1, extra, reached)
    g_y = be.linear_input_gradient(g_raw, prepared, plans[QKV], y.shape[1])
    return g_y, g_extra, gradients.collect(), g_logs


@qkv_backward.register_fake
def _(
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    y: Tensor,
    extra: Tensor | None,
    raw: Tensor,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    plans, heads, rows = (
        linear_plans(plan, y.device.type),
        read_plan(plan).heads,
        backend(y).empty_rows,
    )
    count = plans[QKV].parameters + (0 if extra is None else plans[REINSERT].parameters)
    return (
        rows(*y.shape, y, y.dtype),
        y.new_empty(0) if extra is None else rows(*extra.shape, extra, extra.dtype),
        y.new_empty(count, dtype=stream_dtype(y.dtype)),
        y.new_empty(heads.queries * (heads.mv + 2), dtype=stream_dtype(y.dtype)),
    )


def _qkv_setup(ctx: Any, inputs: Any, output: Any) -> None:
    y, extra, prepared, prepared_extra, parameters, logs, ctx.terms, ctx.plan = inputs
    raw = output[-1]
    ctx.kinds, ctx.log_kinds = kinds(parameters), kinds(logs)
    ctx.save_for_backward(y, extra, prepared, prepared_extra, raw, *logs, *parameters)
    ctx.mark_non_differentiable(raw)
    ctx.set_materialize_grads(False)


def _qkv_grad(ctx: Any, g_q: Tensor, g_k: Tensor, g_v: Tensor, _: Any) -> Any:
    y, extra, prepared, prepared_extra, raw, *rest = ctx.saved_tensors
    heads = read_plan(ctx.plan).heads
    g_q, g_k, g_v = _defined(
        (g_q, g_k, g_v),
        (y.shape[0], heads.queries, heads.features),
        (y.shape[0], heads.keys, heads.features),
        (y.shape[0], heads.keys, heads.values),
        like=y,
    )
    logs, parameters = rest[: len(ctx.log_kinds)], rest[len(ctx.log_kinds) :]
    if reference.is_wanted(g_q, g_k, g_v):
        return _qkv_grad_recorded(ctx, (g_q, g_k, g_v), y, extra, logs, parameters)
    g_y, g_extra, g_theta, g_logs = qkv_backward(
        g_q, g_k, g_v, y, extra, raw, prepared, prepared_extra, logs, ctx.terms, ctx.plan
    )
    h, c = heads.queries, heads.mv
    beta, alpha, gamma = (g.view(h, -1) for g in g_logs.split([h * c, h, h]))
    named = [g for g, name in zip((alpha, beta, gamma), "abg", strict=True) if name in ctx.terms]
    return (
        g_y, None if extra is None else g_extra, None, None,
        per_parameter(g_theta, ctx.kinds),
        [g.to(dtype) for g, (_, dtype) in zip(named, ctx.log_kinds, strict=True)],
        None, None,
    )  # fmt: skip


def _defined(
    gradients: Sequence[Tensor | None], *shapes: tuple[int, ...], like: Tensor
) -> list[Tensor]:
    """Zeros in the place of gradients that nobody sent."""
    pairs = zip(gradients, shapes, strict=True)
    return [like.new_zeros(shape) if g is None else g for g, shape in pairs]


def _qkv_grad_recorded(
    ctx: Any,
    outer: tuple[Tensor, ...],
    y: Tensor,
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

    g_y, g_extra, *rest = reference.gradients(forward, [y, extra, *logs, *parameters], outer)
    return g_y, g_extra, None, None, rest[len(logs) :], rest[: len(logs)], None, None


qkv.register_autograd(_qkv_grad, setup_context=_qkv_setup)


@torch.library.custom_op("flashgatr::small_attention", mutates_args=())
def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    """Attention within consecutive sets of a few items: (T, H, V)."""
    return backend(q).small_attention(q, k, v, items, scale)  # type: ignore[no-any-return]


@small_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    return v.new_empty(*q.shape[:2], v.shape[-1])


@torch.library.custom_op("flashgatr::small_attention_backward", mutates_args=())
def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return backend(q).small_attention_backward(q, k, v, g.contiguous(), items, scale)  # type: ignore[no-any-return]


@small_attention_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _small_setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, ctx.items, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _small_grad(ctx: Any, g: Tensor) -> Any:
    if reference.is_wanted(g):

        def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
            return (reference.small_attention(q, k, v, ctx.items, ctx.scale),)

        return (*reference.gradients(forward, ctx.saved_tensors, [g]), None, None)
    return (*small_attention_backward(*ctx.saved_tensors, g, ctx.items, ctx.scale), None, None)


small_attention.register_autograd(_small_grad, setup_context=_small_setup)
