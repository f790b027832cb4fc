"""A linear map of rows, as an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..precision import stream_dtype
from . import recorded
from .backend import backend
from .operator import Arguments, operator
from .rows import LinearPlan
from .weights import per_parameter


@operator("linear")
def linear(x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: LinearPlan) -> Tensor:
    """A linear map: rows to rows."""
    return backend(x).linear(x, prepared, plan, ready=False)


@linear.register_fake
def _(a: Arguments) -> Tensor:
    return a.x.new_empty(a.x.shape[0], len(a.plan.outputs))  # type: ignore[no-any-return]


@operator("linear_backward")
def linear_backward(
    g: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan
) -> tuple[Tensor, Tensor]:
    be = backend(x)
    gradients = be.weight_gradients((plan,), x)
    gradients.add(0, x, g)
    g_x = be.linear_input_gradient(g, prepared, plan, x.shape[1], ready=False)
    return g_x, gradients.collect()


@linear_backward.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    g_theta = a.x.new_empty(a.plan.parameters, dtype=stream_dtype(a.x.dtype))
    return a.x.new_empty(a.x.shape), g_theta


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, prepared, parameters, ctx.plan = inputs
    ctx.save_for_backward(x, prepared, *parameters)


def _linear_grad(ctx: Any, g: Tensor) -> Any:
    x, prepared, *parameters = ctx.saved_tensors
    if recorded.is_wanted(g):
        g_x, *found = recorded.linear_gradients(x, parameters, ctx.plan, g)
        return g_x, None, found, None
    g_x, g_theta = linear_backward(g, x, prepared, ctx.plan)
    return g_x, None, per_parameter(g_theta, parameters), None


linear.register_autograd(_linear_grad, setup_context=_linear_setup)
