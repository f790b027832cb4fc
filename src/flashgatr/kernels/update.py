"""The operator after attention.

update   x, attended rows  ->  x + map(attended), its normalised rows y, and the geometric MLP of y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra import BLADES
from ..precision import stream_dtype
from . import recorded
from .backend import backend, linear_plans
from .norm import gradient_shapes, normed_shapes, recorded_norm, with_statistics
from .operator import Arguments, operator
from .plan import BlockPlan, grouped
from .rows import LinearPlan
from .weights import per_parameter


@operator("update")
def update(
    x: Tensor,
    attended: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: BlockPlan,
    ready: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x + map(attended); its normalised rows and their statistics; the MLP's output; intermediates.

    The MLP is bilinear layer, gate and linear map. The intermediates, for the backward pass, are
    the four inputs of the bilinear layer and the input of the gate. ready: one of our own kernels
    wrote the attended rows, so they are rounded to TF32 where the next product needs it.
    """
    be = backend(x)
    out, inputs, output, last = _update_plans(plan, x)
    with be.one_pass():
        delta = be.linear(attended, prepared[0], out, ready=ready)
        new, y, stat = be.norm(x, delta, plan.sizes, plan.norm_epsilon, attended.dtype)
        projected = be.linear(y, prepared[1], inputs)
        wide = be.linear(be.bilinear(projected, y, reference, plan.sizes), prepared[2], output)
        delta = be.linear(be.gate(wide, plan.wide, plan.gates, plan.activation), prepared[3], last)
    return new, y, stat, delta, projected, wide


def _update_plans(plan: BlockPlan, like: Tensor) -> tuple[LinearPlan, ...]:
    """The maps of attention's output and of the MLP."""
    plans = linear_plans(plan, like.device.type)
    return plans.output, plans.inputs, plans.wide, plans.last


@update.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    widths = a.plan.sizes.width, 4 * BLADES * a.plan.mv, a.plan.wide.width
    made = (a.attended.new_empty(a.x.shape[0], width) for width in widths)
    return *normed_shapes(a.x, a.attended.dtype, a.plan), *made


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
    plan: BlockPlan,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, of the attended rows, of the reference and of the parameters."""
    be = backend(y)
    plans = out, inputs, output, last = _update_plans(plan, y)
    gradients = be.weight_gradients(plans, y)
    with be.one_pass():
        g_gated = be.linear_input_gradient(g_delta, prepared[3], last, plan.wide.width)
        g_wide, gated = be.gate_backward(wide, g_gated, plan.wide, plan.gates, plan.activation)
        gradients.add(3, gated, g_delta)
        del gated, g_gated
        g_product = be.linear_input_gradient(
            g_wide, prepared[2], output, plan.s + 2 * BLADES * plan.mv
        )
        g_projected, product, g_reference = be.bilinear_backward(
            projected, y, reference, g_product, plan.sizes, needs_reference
        )
        gradients.add(2, product, g_wide)
        del product, g_wide
        found = be.linear_input_gradient(g_projected, prepared[1], inputs, y.shape[1])
        be.add_scalars(found, g_product, plan.s)
        gradients.add(1, y, g_projected)
        del g_projected, g_product
        if g_y is None:
            g_x, low = be.norm_backward(g_new, found, y, stat, plan.sizes, y.dtype, always=False)
    if g_y is not None:
        g_x, low = be.norm_backward(g_new, found + g_y, y, stat, plan.sizes, y.dtype, always=False)
    low = low if low.numel() else g_x.to(y.dtype)
    with be.one_pass():
        gradients.add(0, attended, low)
        g_attended = be.linear_input_gradient(low, prepared[0], out, attended.shape[1])
    return g_x, g_attended, g_reference, gradients.collect()


@update_backward.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    total = sum(p.parameters for p in _update_plans(a.plan, a.y))
    return (
        gradient_shapes(a.y, a.plan)[0],
        a.attended.new_empty(a.attended.shape),
        a.reference.new_empty(a.y.shape[0] if a.needs_reference else 0),
        a.y.new_empty(total, dtype=stream_dtype(a.y.dtype)),
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
    if recorded.is_wanted(g_new, g_y, g_stat, g_delta):
        return _update_grad_recorded(
            ctx, (g_new, g_y, g_stat), g_delta, attended, join_reference, y, stat, parameters
        )
    g_new = with_statistics(g_new, g_stat, y, stat, ctx.plan)
    if g_delta is None:
        g_delta = torch.zeros_like(y[:, : ctx.plan.sizes.width])
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
        return (recorded.mlp(y, join_reference, maps, ctx.plan),)

    theirs = [p for group in groups for p in group]
    of_mlp: list[Tensor | None] = [None] * (2 + len(theirs))
    if g_delta is not None:
        of_mlp = recorded.gradients(forward, [y, join_reference, *theirs], [g_delta])
    found, g_reference, *rest = of_mlp
    g_x = recorded_norm(of_norm, found, y, stat, ctx.plan)
    g_attended, *first = recorded.linear_gradients(attended, own, out, g_x.to(y.dtype))
    return g_x, g_attended, g_reference, [None] * ctx.maps, [*first, *rest], None, None


update.register_autograd(_update_grad, setup_context=_update_setup)
