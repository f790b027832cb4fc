"""Operators for small sets: attention within them, and entering and leaving their frames.

small_attention   attention within sets of a few items
enter, leave      move every sample to its centre, as rows, and back (CUDA only)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..algebra import BLADES
from . import cuda, recorded
from .backend import backend
from .operator import Arguments, operator
from .plan import Sizes

SMALL_SAMPLE = 1024
"""Most multivectors in a sample: one Triton program computes its centre."""


@operator("small_attention")
def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, step: int, scale: float) -> Tensor:
    """Attention within sets of a few items, `step` rows apart: (T, H, V).

    Every `items * step` consecutive rows hold `step` sets. With step 1, sets are consecutive rows.
    """
    return backend(q).small_attention(q, k, v, items, step, scale)


@small_attention.register_fake
def _(a: Arguments) -> Tensor:
    return a.v.new_empty(*a.q.shape[:2], a.v.shape[-1])  # type: ignore[no-any-return]


@operator("small_attention_backward")
def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, step: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return backend(q).small_attention_backward(q, k, v, g.contiguous(), items, step, scale)


@small_attention_backward.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    return torch.empty_like(a.q), torch.empty_like(a.k), torch.empty_like(a.v)


def _small_setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *ctx.how = inputs
    ctx.save_for_backward(q, k, v)


def _small_grad(ctx: Any, g: Tensor) -> Any:
    if recorded.is_wanted(g):

        def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
            return (recorded.small_attention(q, k, v, *ctx.how),)

        return (*recorded.gradients(forward, ctx.saved_tensors, [g]), None, None, None)
    return (*small_attention_backward(*ctx.saved_tensors, g, *ctx.how), None, None, None)


small_attention.register_autograd(_small_grad, setup_context=_small_setup)


@operator("enter")
def enter(mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows relative to the centre of each sample, the centres (B, 3), and the mean e123 (B).

    mv is (B, items, C, 16), s is (B, items, S). For inputs that need no gradient.
    """
    mv, s = mv.contiguous(), s.contiguous()
    center, mean = cuda.survey(mv)
    return cuda.enter(mv, s, center), center, mean


@enter.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    b, items, c, _ = a.mv.shape
    rows = a.mv.new_empty(b * items, Sizes(c, a.s.shape[-1]).width)
    return rows, a.mv.new_empty(b, 3), a.mv.new_empty(b)


@operator("leave")
def leave(x: Tensor, center: Tensor, mv: int, s: int) -> tuple[Tensor, Tensor]:
    """Multivectors (T, mv, 16), moved back from the centres, and scalars (T, s) of rows."""
    return cuda.leave(x.contiguous(), center, Sizes(mv, s))


@leave.register_fake
def _(a: Arguments) -> tuple[Tensor, ...]:
    return a.x.new_empty(a.x.shape[0], a.mv, BLADES), a.x.new_empty(a.x.shape[0], a.s)


@operator("leave_backward")
def leave_backward(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    sizes = Sizes(g_mv.shape[1], g_s.shape[1])
    return cuda.leave_backward(g_mv.contiguous(), g_s.contiguous(), center, sizes)


@leave_backward.register_fake
def _(a: Arguments) -> Tensor:
    sizes = Sizes(a.g_mv.shape[1], a.g_s.shape[1])
    return a.g_mv.new_empty(a.g_mv.shape[0], sizes.width)  # type: ignore[no-any-return]


def _leave_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, center, _, _ = inputs
    ctx.save_for_backward(center)


def _leave_grad(ctx: Any, g_mv: Tensor, g_s: Tensor) -> Any:
    (center,) = ctx.saved_tensors
    if recorded.is_wanted(g_mv, g_s):  # linear in x: its gradient is linear in g
        return recorded.leave_gradient(g_mv, g_s, center), None, None, None
    return leave_backward(g_mv, g_s, center), None, None, None


leave.register_autograd(_leave_grad, setup_context=_leave_setup)
