"""Operators for the ends of a network on small sets: find the centres and move there; move back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..algebra import BLADES
from . import gpu, reference
from .plan import Sizes
from .registered import operator

SMALL_SAMPLE = 1024
"""Multivectors of a sample that one program can survey."""


@operator("enter")
def enter(mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows around the centre of every sample, the centres (B, 3), and the mean e123 of every sample (B).

    mv is (B, items, C, 16), s (B, items, S). Not differentiable: for inputs that need no gradient.
    """
    mv, s = mv.contiguous(), s.contiguous()
    center, mean = gpu.survey(mv)
    return gpu.enter(mv, s, center), center, mean


@enter.register_fake
def _(mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, items, c, _ = mv.shape
    return mv.new_empty(b * items, s.shape[-1] + BLADES * c), mv.new_empty(b, 3), mv.new_empty(b)


@operator("leave")
def leave(x: Tensor, center: Tensor, mv: int, s: int) -> tuple[Tensor, Tensor]:
    """Multivectors (T, C, 16) and scalars (T, S) of rows with these channels, moved back from the centres."""
    return gpu.leave(x.contiguous(), center, Sizes(mv, s))


@leave.register_fake
def _(x: Tensor, center: Tensor, mv: int, s: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], mv, BLADES), x.new_empty(x.shape[0], s)


@operator("leave_backward")
def leave_backward(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    sizes = Sizes(g_mv.shape[1], g_s.shape[1])
    return gpu.leave_backward(g_mv.contiguous(), g_s.contiguous(), center, sizes)


@leave_backward.register_fake
def _(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    return g_mv.new_empty(g_mv.shape[0], Sizes(g_mv.shape[1], g_s.shape[1]).width)


def _leave_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, center, _, _ = inputs
    ctx.save_for_backward(center)


def _leave_grad(ctx: Any, g_mv: Tensor, g_s: Tensor) -> Any:
    (center,) = ctx.saved_tensors
    if reference.is_wanted(g_mv, g_s):  # linear in x: its gradient is linear in g
        return reference.leave_gradient(g_mv, g_s, center), None, None, None
    return leave_backward(g_mv, g_s, center), None, None, None


leave.register_autograd(_leave_grad, setup_context=_leave_setup)
