"""Operators of a block besides attention: norm, a linear map by itself, the geometric MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import BLADES
from ..nn.precision import stream_dtype
from . import reference
from .plan import INPUTS, LAST, backend, grouped, linear_plans, read_plan
from .rows import columns
from .weights import kinds, per_parameter


@torch.library.custom_op("flashgatr::norm", mutates_args=())
def norm(x: Tensor, delta: Tensor, plan: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, the same normalised, and statistics for the backward pass."""
    p = read_plan(plan)
    return backend(x).norm(x, delta, p.sizes, p.norm_epsilon, dtype)  # type: ignore[no-any-return]


@norm.register_fake
def _(x: Tensor, delta: Tensor, plan: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    be = backend(x)
    width = be.normed_width(read_plan(plan).sizes)
    y = be.empty_rows(x.shape[0], width, x, dtype)
    return be.empty_rows(*x.shape, x, x.dtype), y, x.new_empty(x.shape[0], 2)


@torch.library.custom_op("flashgatr::norm_backward", mutates_args=())
def norm_backward(
    g_new: Tensor | None, g_y: Tensor, y: Tensor, stat: Tensor, plan: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and of delta in its dtype (empty if that is the same dtype)."""
    be = backend(y)
    return be.norm_backward(g_new, g_y, y, stat, read_plan(plan).sizes, dtype)  # type: ignore[no-any-return]


@norm_backward.register_fake
def _(
    g_new: Tensor | None, g_y: Tensor, y: Tensor, stat: Tensor, plan: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows, shape = backend(y).empty_rows, (y.shape[0], read_plan(plan).sizes.width)
    stream = stream_dtype(y.dtype)
    low = y.new_empty(0) if dtype == stream else rows(*shape, y, dtype)
    return rows(*shape, y, stream), low


def _norm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, delta, ctx.plan, _ = inputs
    _, y, stat = output
    ctx.delta_dtype = delta.dtype
    ctx.save_for_backward(y, stat)
    ctx.set_materialize_grads(False)


def _norm_grad(ctx: Any, g_new: Tensor | None, g_y: Tensor | None, g_stat: Tensor | None) -> Any:
    y, stat = ctx.saved_tensors
    if reference.is_wanted(g_new, g_y) or g_y is None or g_stat is not None:
        g_x = reference.norm_gradient(g_new, g_y, g_stat, y, stat, read_plan(ctx.plan))
        return g_x, g_x.to(ctx.delta_dtype), None, None
    g_x, low = norm_backward(g_new, g_y, y, stat, ctx.plan, ctx.delta_dtype)
    return g_x, (g_x if ctx.delta_dtype == g_x.dtype else low), None, None


norm.register_autograd(_norm_grad, setup_context=_norm_setup)


@torch.library.custom_op("flashgatr::linear", mutates_args=())
def linear(
    x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: str, which: int
) -> Tensor:
    """One of a block's linear maps: rows to rows."""
    return backend(x).linear(x, prepared, linear_plans(plan, x.device.type)[which])  # type: ignore[no-any-return]


@linear.register_fake
def _(x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: str, which: int) -> Tensor:
    width = len(linear_plans(plan, x.device.type)[which].outputs)
    return backend(x).empty_rows(x.shape[0], width, x, x.dtype)  # type: ignore[no-any-return]


@torch.library.custom_op("flashgatr::linear_backward", mutates_args=())
def linear_backward(
    g: Tensor, x: Tensor, prepared: Tensor, plan: str, which: int
) -> tuple[Tensor, Tensor]:
    be, p = backend(x), linear_plans(plan, x.device.type)[which]
    gradients = be.WeightGradients((p,), x)
    gradients.add(0, x, g)
    return be.linear_input_gradient(g, prepared, p, x.shape[1]), gradients.collect()


@linear_backward.register_fake
def _(g: Tensor, x: Tensor, prepared: Tensor, plan: str, which: int) -> tuple[Tensor, Tensor]:
    p = linear_plans(plan, x.device.type)[which]
    in_order = p.inputs == columns(range(p.in_mv), range(p.in_s))  # else they are attention's rows
    g_x = backend(x).empty_rows(*x.shape, x, x.dtype) if in_order else x.new_empty(x.shape)
    return g_x, x.new_empty(p.parameters, dtype=stream_dtype(x.dtype))


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, prepared, parameters, ctx.plan, ctx.which = inputs
    ctx.kinds = kinds(parameters)
    ctx.save_for_backward(x, prepared, *parameters)


def _linear_grad(ctx: Any, g: Tensor) -> Any:
    x, prepared, *parameters = ctx.saved_tensors
    if reference.is_wanted(g):
        plan = linear_plans(ctx.plan, x.device.type)[ctx.which]

        def forward(x: Tensor, *parameters: Tensor) -> tuple[Tensor]:
            return (reference.linear(x, parameters, plan),)

        recorded, *rest = reference.gradients(forward, [x, *parameters], [g])
        return recorded, None, rest, None, None
    g_x, g_theta = linear_backward(g, x, prepared, ctx.plan, ctx.which)
    return g_x, None, per_parameter(g_theta, ctx.kinds), None, None


linear.register_autograd(_linear_grad, setup_context=_linear_setup)


@torch.library.custom_op("flashgatr::mlp", mutates_args=())
def mlp(
    y: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bilinear layer, gate, linear map; also the bilinear layer's four inputs and the gate's."""
    p, be = read_plan(plan), backend(y)
    inputs, output, last = linear_plans(plan, y.device.type)[INPUTS : LAST + 1]
    projected = be.linear(y, prepared[0], inputs)
    wide = be.linear(be.bilinear(projected, y, reference, p.sizes), prepared[1], output)
    delta = be.linear(be.gate(wide, p.wide, p.activation), prepared[2], last)
    return delta, projected, wide


@mlp.register_fake
def _(
    y: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    p, rows, items = read_plan(plan), backend(y).empty_rows, y.shape[0]
    return (
        rows(*y.shape, y, y.dtype),
        rows(items, 4 * BLADES * p.mv, y, y.dtype),
        rows(items, p.wide.width, y, y.dtype),
    )


@torch.library.custom_op("flashgatr::mlp_backward", mutates_args=())
def mlp_backward(
    g: Tensor,
    y: Tensor,
    reference: Tensor,
    projected: Tensor,
    wide: Tensor,
    prepared: Sequence[Tensor],
    plan: str,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of y, of the reference and of the parameters."""
    p, be = read_plan(plan), backend(y)
    plans = inputs, output, last = linear_plans(plan, y.device.type)[INPUTS : LAST + 1]
    gradients = be.WeightGradients(plans, y)
    g_gated = be.linear_input_gradient(g, prepared[2], last, p.wide.width)
    g_wide, gated = be.gate_backward(wide, g_gated, p.wide, p.activation)
    gradients.add(2, gated, g)
    del gated, g_gated
    g_product = be.linear_input_gradient(g_wide, prepared[1], output, p.s + 2 * BLADES * p.mv)
    g_projected, product, g_reference = be.bilinear_backward(
        projected, y, reference, g_product, p.sizes, needs_reference
    )
    gradients.add(1, product, g_wide)
    del product, g_wide
    g_y = be.linear_input_gradient(g_projected, prepared[0], inputs, y.shape[1])
    if p.s:
        g_y[:, : p.s] += g_product[:, : p.s]
    gradients.add(0, y, g_projected)
    return g_y, g_reference, gradients.collect()


@mlp_backward.register_fake
def _(
    g: Tensor,
    y: Tensor,
    reference: Tensor,
    projected: Tensor,
    wide: Tensor,
    prepared: Sequence[Tensor],
    plan: str,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    plans = linear_plans(plan, y.device.type)[INPUTS : LAST + 1]
    return (
        backend(y).empty_rows(*y.shape, y, y.dtype),
        reference.new_empty(y.shape[0] if needs_reference else 0),
        y.new_empty(sum(p.parameters for p in plans), dtype=stream_dtype(y.dtype)),
    )


def _mlp_setup(ctx: Any, inputs: Any, output: Any) -> None:
    y, join_reference, prepared, parameters, ctx.plan = inputs
    _, projected, wide = output
    ctx.kinds = kinds(parameters)
    ctx.save_for_backward(y, join_reference, projected, wide, *prepared, *parameters)
    ctx.mark_non_differentiable(projected, wide)
    ctx.set_materialize_grads(False)


def _mlp_grad(ctx: Any, g: Tensor | None, *_: Any) -> Any:
    if g is None:
        everything = len(ctx.saved_tensors) - 4 - len(ctx.kinds)
        return None, None, [None] * everything, [None] * len(ctx.kinds), None
    y, join_reference, projected, wide, *rest = ctx.saved_tensors
    count = len(rest) - len(ctx.kinds)
    prepared, parameters = rest[:count], rest[count:]
    nothing = [None] * count
    if reference.is_wanted(g):
        plans = linear_plans(ctx.plan, y.device.type)[INPUTS : LAST + 1]

        def forward(y: Tensor, join_reference: Tensor, *parameters: Tensor) -> tuple[Tensor]:
            groups = grouped(parameters, plans)
            return (reference.mlp(y, join_reference, groups, read_plan(ctx.plan)),)

        g_y, g_reference, *found = reference.gradients(
            forward, [y, join_reference, *parameters], [g]
        )
        return g_y, g_reference, nothing, found, None
    needed = ctx.needs_input_grad[1]
    g_y, g_reference, g_theta = mlp_backward(
        g, y, join_reference, projected, wide, prepared, ctx.plan, needed
    )
    return g_y, g_reference if needed else None, nothing, per_parameter(g_theta, ctx.kinds), None


mlp.register_autograd(_mlp_grad, setup_context=_mlp_setup)
