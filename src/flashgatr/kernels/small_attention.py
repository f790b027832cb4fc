"""Attention within small sets, as an operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import reference
from .plan import backend
from .registered import operator


@operator("small_attention")
def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    """Attention within consecutive sets of a few items: (T, H, V)."""
    return backend(q).small_attention(q, k, v, items, scale)  # type: ignore[no-any-return]


@small_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    return v.new_empty(*q.shape[:2], v.shape[-1])


@operator("small_attention_backward")
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
