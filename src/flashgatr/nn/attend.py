"""Softmax attention over sets: padded or packed, with masks.

    attend(q, k, v) = softmax(q kᵀ · scale + mask) v        within every sample, over its valid items

Shapes: q (..., N, H, D), k (..., M, 1 or H, D), v (..., M, 1 or H, V); inside, one batch axis and heads before items.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Sets, packed_to_padded


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    sets: Sets | None,
    context_sets: Sets | None,
    attention_mask: Tensor | None,
) -> Tensor:
    """What the items of q (`sets`) read from the items of k and v (`context_sets`): (..., N, H, V).

    attention_mask: boolean (True = may attend) or added to the logits, (N, M) or (..., [heads,] N, M); a mask per head
    needs the batch axes.
    """
    if (sets is not None and sets.offsets is not None) or (
        context_sets is not None and context_sets.offsets is not None
    ):
        return _attend_packed(q, k, v, scale, sets, context_sets, attention_mask)
    mask = None if context_sets is None else context_sets.mask
    return _attend_padded(q, k, v, scale, mask, attention_mask)


def _attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    sets: Sets | None,
    context_sets: Sets | None,
    attention_mask: Tensor | None,
) -> Tensor:
    """Packed sets, padded for the attention call alone."""
    if sets is None or context_sets is None or sets.offsets is None or context_sets.offsets is None:
        raise ValueError("queries and keys must both be packed, or neither")
    if attention_mask is not None:
        raise ValueError(
            "attention_mask needs padded sets; packed items of different samples never attend to "
            "each other anyway"
        )
    queries, _ = packed_to_padded(q, sets.offsets, sets.max_items)
    keys, mask = packed_to_padded(k, context_sets.offsets, context_sets.max_items)
    values, _ = packed_to_padded(v, context_sets.offsets, context_sets.max_items)
    out = _attend_padded(queries, keys, values, scale, mask, None)
    return out[sets.sample, sets.positions(out.device)]


def _attend_padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    attention_mask: Tensor | None,
) -> Tensor:
    leading, (queries, heads, _) = q.shape[:-3], q.shape[-3:]
    keys, values = k.shape[-3], v.shape[-1]
    bias, alive = _merge_masks(mask, attention_mask, q, keys)
    if bias is None and cudnn_fits(q, k, v):
        rounded = (_widened(x, x.shape[-1] + -x.shape[-1] % 8) for x in (q, k, v))
        batched = [x.reshape(-1, *x.shape[-3:]).transpose(1, 2) for x in rounded]
        out = _cudnn(batched[0], batched[1], batched[2], scale)[..., :values]
        return out.transpose(1, 2).reshape(*leading, queries, heads, values)
    # Equal sizes let every fused kernel run; the zeros change no logit and are cut off again.
    width = max(q.shape[-1], values)
    q, k, v = (_widened(x, width) for x in (q, k, v))
    k, v = (x.expand(*leading, keys, heads, width) for x in (k, v))
    batch = math.prod(leading)
    q, k, v = (x.reshape(batch, *x.shape[-3:]).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    if alive is not None:
        out = torch.where(alive, out, 0)
    return out[..., :values].transpose(1, 2).reshape(*leading, queries, heads, values)


def cudnn_fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether cuDNN's kernel takes these: on Hopper it is 1.5 to 1.9 times as fast as the next best (H200)."""
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and all(0 < x.shape[-1] <= 128 for x in (q, v))
        and min(q.shape[-3], k.shape[-3]) > 1
        and q.numel() > 0
        and torch.backends.cuda.cudnn_sdp_enabled()
        and torch.backends.cudnn.is_available()
        and torch.cuda.get_device_capability(q.device) in ((9, 0), (10, 0))
    )


def _cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Fused attention (B, H, N, D); keys and values may have one head for all, and values another width."""
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, needs_gradient, 0.0, False, False, scale=scale
    )
    return found[0]  # type: ignore[no-any-return]


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _merge_masks(
    mask: Tensor | None, attention_mask: Tensor | None, q: Tensor, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """One mask (batch, heads or 1, queries or 1, keys), and which queries have any key left.

    A query without any key would be NaN; it attends to everything instead and its result is set to zero.
    """
    leading = q.shape[:-3]
    if mask is not None:
        mask = mask.reshape(math.prod(leading), 1, 1, keys)
    if attention_mask is not None:
        attention_mask = _expand_attention_mask(
            attention_mask, leading, q.shape[-2], q.shape[-3], keys
        )
        if attention_mask.dtype == torch.bool:
            mask = attention_mask if mask is None else mask & attention_mask
        else:
            attention_mask = attention_mask.to(q.dtype)
            if mask is not None:
                attention_mask = attention_mask.masked_fill(~mask, -math.inf)
            alive = (attention_mask > -math.inf).any(-1, keepdim=True)
            return attention_mask.masked_fill(~alive, 0.0), alive
    if mask is None:
        return None, None
    alive = mask.any(-1, keepdim=True)
    return mask | ~alive, alive


def _expand_attention_mask(
    mask: Tensor, leading: torch.Size, heads: int, queries: int, keys: int
) -> Tensor:
    """(N, M) or (..., [heads,] N, M) to (batch, heads or 1, N, M)."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask must be a tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"attention_mask must be boolean (True = may attend) or floating point (added to the "
            f"logits), got {mask.dtype}"
        )
    per_head = mask
    if mask.dim() == 2:
        per_head = mask.reshape(*[1] * (len(leading) + 1), *mask.shape)
    elif mask.dim() == len(leading) + 2:
        per_head = mask.unsqueeze(-3)
    target = (*leading, heads, queries, keys)
    if (
        per_head.dim() != len(target)
        or per_head.shape[-2:] != (queries, keys)
        or any(m not in (1, n) for m, n in zip(per_head.shape, target, strict=True))
    ):
        raise ValueError(
            f"attention_mask must have shape (..., [heads,] items, items) for batch shape "
            f"{tuple(leading)}, {heads} heads and {queries} x {keys} items, got {tuple(mask.shape)}"
        )
    kept = (*leading, per_head.shape[-3], queries, keys)
    return per_head.expand(kept).reshape(math.prod(leading), *kept[-3:])
