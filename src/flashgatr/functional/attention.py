"""Softmax attention over sets: padded or packed, with masks.

    attend(q, k, v) = softmax(q kᵀ · scale + mask) v      within every sample, over its valid items

Shapes: q (..., N, H, D), k (..., M, 1 or H, D), v (..., M, 1 or H, V). Internally there is one
batch axis, and heads come before items.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import shortcuts
from ..batch import Sets, packed_to_padded
from ..constants import traced_as_constant

_HALF = (torch.bfloat16, torch.float16)
_CALL = 400
"""A call of attention costs a CPU about as much as this number of pairs of items."""


_MANY, _FEW_SIZES = 64, 4
"""From this number of packed sets on, and with this many per size, sets of one size go together."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    sets: Sets | None,
    context_sets: Sets | None,
    attention_mask: Tensor | None,
    log_weights: Tensor | None = None,
) -> Tensor:
    """Attention of the items of q (`sets`) to those of k and v (`context_sets`): (..., N, H, V).

    attention_mask: (N, M) or (..., [heads,] N, M), boolean (True = may attend) or added to the
    logits; a mask per head needs the batch axes.
    log_weights: (..., M), added to the logits of the keys. A key of weight two counts as two keys.
    """
    if log_weights is not None:
        q, k = _weigh_by_features(q, k, log_weights / scale)
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
    """Attention of packed sets: by a kernel that takes offsets, by size, one by one, or padded."""
    if sets is None or context_sets is None or sets.offsets is None or context_sets.offsets is None:
        raise ValueError("queries and keys must both be packed, or neither")
    if attention_mask is not None:
        raise ValueError(
            "attention_mask needs padded sets; packed items of different samples never attend to "
            "each other anyway"
        )
    ragged = _ragged_kernel(q, k, v)
    if ragged is not None:
        begins = [x.to(torch.int32) for x in (sets.offsets, context_sets.offsets)]
        return ragged(q, k, v, scale, begins, [sets.max_items, context_sets.max_items])
    if not q.is_cuda and sets is context_sets and _are_many(sets):
        return _attend_by_length(q, k, v, scale, sets)
    if not q.is_cuda and _padding_is_slow(sets, context_sets):
        pairs = (q, sets), (k, context_sets), (v, context_sets)
        parts = zip(*(x.split(owner.lengths) for x, owner in pairs), strict=True)
        return torch.cat([_attend_padded(a, b, c, scale, None, None) for a, b, c in parts])
    queries, _ = packed_to_padded(q, sets.offsets, sets.max_items)
    keys, mask = packed_to_padded(k, context_sets.offsets, context_sets.max_items)
    values, _ = packed_to_padded(v, context_sets.offsets, context_sets.max_items)
    out = _attend_padded(queries, keys, values, scale, mask, None)
    return out[sets.sample, sets.positions(out.device)]


def _are_many(sets: Sets) -> bool:
    """Whether there are so many samples that most share their size with others."""
    if torch.compiler.is_compiling() or not sets.can_be_read or sets.samples[0] < _MANY:
        return False
    return _FEW_SIZES * len(sets.by_length.shapes) <= sets.samples[0]


def _attend_by_length(q: Tensor, k: Tensor, v: Tensor, scale: float, sets: Sets) -> Tensor:
    """Self-attention of packed sets, those of one size together: no padding and no mask."""
    shapes, items, back = sets.by_length
    given = (q, k, v) if items is None else tuple(x.index_select(0, items) for x in (q, k, v))
    sizes = [count * size for count, size in shapes]
    found = []
    for parts, shape in zip(
        zip(*(x.split(sizes) for x in given), strict=True), shapes, strict=True
    ):
        a, b, c = (x.reshape(*shape, *x.shape[1:]) for x in parts)
        found.append(_attend_padded(a, b, c, scale, None, None).flatten(0, 1))
    out = found[0] if len(found) == 1 else torch.cat(found)
    return out if back is None else out.index_select(0, back)


def _padding_is_slow(sets: Sets, context_sets: Sets) -> bool:
    """Whether one padded call would take longer than one call per sample."""
    if torch.compiler.is_compiling() or not (sets.can_be_read and context_sets.can_be_read):
        return False
    pairs = [n * m for n, m in zip(sets.lengths, context_sets.lengths, strict=True)]
    return len(pairs) * (sets.max_items * context_sets.max_items - _CALL) > sum(pairs)


Ragged = Callable[[Tensor, Tensor, Tensor, float, list[Tensor], list[int]], Tensor]


def _ragged_kernel(q: Tensor, k: Tensor, v: Tensor) -> Ragged | None:
    """A kernel that takes packed sets with their offsets, without padding; None if none fits."""
    if not q.is_cuda or not q.numel() or not k.numel() or not _may_use("packed attention"):
        return None
    is_new = torch.cuda.get_device_capability(q.device) >= (8, 0)
    allowed = torch.backends.cuda
    has_flash = allowed.flash_sdp_enabled() and allowed.is_flash_attention_available()
    most = 192 if torch.is_grad_enabled() else 256  # wider backward passes fail on some GPUs
    if q.dtype in _HALF and max(q.shape[-1], v.shape[-1]) <= most and is_new and has_flash:
        return _flash
    if q.dtype in (*_HALF, torch.float32) and is_new and allowed.mem_efficient_sdp_enabled():
        return _memory_efficient
    return None


def _flash(
    q: Tensor, k: Tensor, v: Tensor, scale: float, begins: list[Tensor], most: list[int]
) -> Tensor:
    values = v.shape[-1]
    width = max(q.shape[-1], values)
    given = (_widened(x, width + -width % 8) for x in (q, k, v))
    found = torch.ops.aten._flash_attention_forward(
        *given, *begins, *most, 0.0, False, False, scale=scale
    )
    return found[0][..., :values]  # type: ignore[no-any-return]


def _memory_efficient(
    q: Tensor, k: Tensor, v: Tensor, scale: float, begins: list[Tensor], most: list[int]
) -> Tensor:
    values = v.shape[-1]
    k, v = (x.expand(-1, q.shape[1], -1) for x in (k, v))
    given = [_widened(x, x.shape[-1] + -x.shape[-1] % 8).unsqueeze(0) for x in (q, k, v)]
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    found = torch.ops.aten._efficient_attention_forward(
        *given, None, *begins, *most, 0.0, 0, needs_gradient, scale=scale
    )
    return found[0][0, ..., :values]  # type: ignore[no-any-return]


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
    if mask is not None and attention_mask is None and cudnn_fits(q, k, v, spare=8):
        q, k = _mask_by_features(q, k, mask)
        found = _attend_padded(q, k, v, scale, None, None)
        return torch.where(mask.any(-1).reshape(*leading, 1, 1, 1), found, 0)
    bias, alive = _merge_masks(mask, attention_mask, q, keys)
    if bias is None and cudnn_fits(q, k, v):
        rounded = (_widened(x, x.shape[-1] + -x.shape[-1] % 8) for x in (q, k, v))
        batched = [_aligned(x.reshape(-1, *x.shape[-3:])).transpose(1, 2) for x in rounded]
        out = _cudnn(batched[0], batched[1], batched[2], scale).transpose(1, 2)
        out = _DenseGradient.apply(out)[..., :values]  # type: ignore[no-untyped-call]
        return out.reshape(*leading, queries, heads, values)  # type: ignore[no-any-return]
    # Every fused kernel takes equal widths. The zeros change no logit and are cut off again.
    width = max(q.shape[-1], values)
    q, k, v = (_widened(x, width) for x in (q, k, v))
    k, v = (x.expand(*leading, keys, heads, width) for x in (k, v))
    batch = math.prod(leading)
    q, k, v = (x.reshape(batch, *x.shape[-3:]).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    if alive is not None:
        out = torch.where(alive, out, 0)
    return out[..., :values].transpose(1, 2).reshape(*leading, queries, heads, values)


def _mask_by_features(q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Add features to queries and keys that make the logits of invalid keys hugely negative.

    Their attention weights are then exactly zero. With a mask, cuDNN's kernel could not be used.
    """
    large = 2.0**15 if q.dtype == torch.float16 else 2.0**60
    more = 8 - q.shape[-1] % 8
    lane = F.pad(torch.where(mask, 0.0, -large).to(k.dtype)[..., None, None], (0, more - 1))
    lane = lane.expand(*k.shape[:-1], more)
    return F.pad(q, (0, more), value=large), torch.cat([k, lane], dim=-1)


def _weigh_by_features(q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Add features to queries and keys that add `bias` (..., M) to the dot products.

    A second feature holds what the first one lost when it was rounded to k's dtype. The others are
    zeros in the keys: kernels want a multiple of 8, for which queries would be copied once more.
    """
    more = 2 + -(q.shape[-1] + 2) % 8
    first = bias.to(k.dtype)
    second = (bias - first).to(k.dtype)
    lanes = F.pad(torch.stack([first, second], dim=-1).unsqueeze(-2), (0, more - 2))
    lanes = lanes.expand(*k.shape[:-1], more)
    return F.pad(q, (0, more), value=1.0), torch.cat([k, lanes], dim=-1)


def cudnn_fits(q: Tensor, k: Tensor, v: Tensor, *, spare: int = 0) -> bool:
    """Whether cuDNN's kernel takes these tensors with `spare` more features.

    The kernel alone is 1.5 to 1.9 times as fast as flash attention (H200).
    """
    return (
        q.is_cuda
        and q.dtype in _HALF
        and 0 < q.shape[-1] <= 128 - spare
        and 0 < v.shape[-1] <= 128
        and min(q.shape[-3], k.shape[-3]) > 1
        and q.numel() > 0
        and _may_use("cudnn attention")
        and torch.backends.cuda.cudnn_sdp_enabled()
        and torch.backends.cudnn.is_available()
        and not torch.are_deterministic_algorithms_enabled()
        and torch.cuda.get_device_capability(q.device) in ((9, 0), (10, 0))
    )


class _DenseGradient(torch.autograd.Function):
    """The identity; its gradient is contiguous.

    torch plans cuDNN's backward pass once per shape and layout of the queries, keys and values. A
    gradient in another layout than at the first call would be read with that call's strides.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


def _cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Fused attention (B, H, N, D); heads may share k and v, and v may have another width."""
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, needs_gradient, 0.0, False, False, scale=scale
    )
    return found[0]  # type: ignore[no-any-return]


@traced_as_constant
def _may_use(name: str) -> bool:
    """Whether the shortcut of this name is on; a compiler evaluates this once."""
    return next(x for x in shortcuts.EVERY if x.name == name).is_on


def _require_arguments(operator: str, *names: str) -> None:
    """Raise an error if this version of torch declares the operator with other arguments."""
    arguments = getattr(torch.ops.aten, operator).default._schema.arguments
    found = tuple(argument.name for argument in arguments)
    if found[: len(names)] != names or "scale" not in found:
        raise TypeError(f"{operator} takes {found}")


def _check_cudnn() -> None:
    _require_arguments(
        "_scaled_dot_product_cudnn_attention", "query", "key", "value", "attn_bias",
        "compute_log_sumexp", "dropout_p", "is_causal", "return_debug_mask",
    )  # fmt: skip


def _check_packed() -> None:
    _require_arguments(
        "_flash_attention_forward", "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q",
        "max_k", "dropout_p", "is_causal", "return_debug_mask",
    )  # fmt: skip
    _require_arguments(
        "_efficient_attention_forward", "query", "key", "value", "bias", "cu_seqlens_q",
        "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "dropout_p", "custom_mask_type",
        "compute_log_sumexp",
    )  # fmt: skip


shortcuts.CUDNN_ATTENTION.check_with(_check_cudnn)
shortcuts.PACKED_ATTENTION.check_with(_check_packed)


def _aligned(x: Tensor) -> Tensor:
    """x, or a copy if a row of it does not begin at a multiple of 16 bytes, as cuDNN presumes."""
    begins = x.storage_offset(), *x.stride()[:-1]
    if x.stride(-1) == 1 and not any(begin % 8 for begin in begins):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _merge_masks(
    mask: Tensor | None, attention_mask: Tensor | None, q: Tensor, keys: int
) -> tuple[Tensor | None, Tensor | None]:
    """One mask (batch, heads or 1, queries or 1, keys), and which queries have any valid key.

    Softmax would give NaN for a query without valid keys. Such a query attends to all keys, and its
    result is set to zero afterwards.
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
