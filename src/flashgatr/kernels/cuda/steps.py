"""The steps of a block on CUDA between its linear maps: norm, features, attention, bilinear, gate.

Rows are contiguous in memory. Attention reads queries, keys and values in the layout in which the
features kernel writes them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ...algebra import BLADES, EUCLIDEAN
from ...functional.features import inner_blades
from ..plan import HeadLayout, Sizes
from ..rows import ATTENDED
from .compiled import kernels
from .launch import Bound
from .products import KEPT, ONES, aligned, column_sums, feeds_small_product, normed_width
from .side_stream import on_side_stream

SMALL_SET = 8
"""Our kernel computes the attention of sets of up to this many items in registers."""
RECOMPUTE = 4096
"""From this number of items on, cheap results are recomputed to save memory."""
_MULTIPROCESSORS = 132
"""Of an H100 or H200."""
_FILL = 4 * _MULTIPROCESSORS
"""This number of programs keeps the GPU busy."""


def _tile(sizes: Sizes, items: int) -> dict[str, int]:
    mv, s = _power(BLADES * sizes.mv), _power(max(sizes.s, 1))
    most = 1 << max(min(4096 // (mv + s), 16), 1).bit_length() - 1
    return dict(ITEMS=min(_power(max(items // _FILL, 1)), most), MV=mv, SC=s)


def _power(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def norm(
    x: Tensor, delta: Tensor, sizes: Sizes, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, its normalised rows, and the statistics for the backward pass."""
    items = x.shape[0]
    new = torch.empty_like(x)
    y = torch.empty(items, normed_width(sizes), dtype=dtype, device=x.device)
    stat = torch.empty(items, 2, device=x.device)
    if items:
        kernel = _norm("forward", sizes, items, ROUND=feeds_small_product(y))
        kernel(x, delta, new, y, stat, items, epsilon)
    return new, y, stat


@lru_cache(maxsize=KEPT)
def _norm(direction: str, sizes: Sizes, items: int, **flags: bool) -> Bound:
    tile = _tile(sizes, items)
    kernel = getattr(kernels, f"norm_{direction}")
    grid = (math.ceil(items / tile["ITEMS"]),)
    return kernel.bound(grid, C=sizes.mv, S=sizes.s, ONES=ONES, **flags, **tile)  # type: ignore[no-any-return]


def norm_backward(
    g_new: Tensor | None,
    g_y: Tensor,
    y: Tensor,
    stat: Tensor,
    sizes: Sizes,
    delta_dtype: torch.dtype,
    *,
    always: bool = True,
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and of delta, rounded for the next product.

    With `always=False`, the second is empty if it is identical to the first.
    """
    items = y.shape[0]
    out = torch.empty(items, sizes.width, device=y.device)
    has_low = always or delta_dtype != out.dtype or feeds_small_product(out)
    low = torch.empty_like(out, dtype=delta_dtype) if has_low else out.new_empty(0)
    if items:
        has_gx = g_new is not None
        kernel = _norm(
            "backward", sizes, items, ROUND=feeds_small_product(low), HAS_GX=has_gx, HAS_LOW=has_low
        )
        kernel(y if g_new is None else g_new, g_y, y, stat, out, low, items)
    return out, low


@lru_cache(maxsize=KEPT)
def _features(
    direction: str, heads: HeadLayout, items: int, *learned: bool, **flags: bool
) -> Bound:
    """learned: whether alpha, beta and gamma are learned."""
    arguments = _head_arguments(heads, learned, items)
    kernel = getattr(kernels, f"features_{direction}")
    grid = (_programs(heads, items), heads.total)
    return kernel.bound(grid, **arguments, **flags)  # type: ignore[no-any-return]


def _programs(heads: HeadLayout, items: int) -> int:
    return math.ceil(items / _items_per_program(items, heads))


def _head_arguments(heads: HeadLayout, learned: Sequence[bool], items: int) -> dict[str, object]:
    width = heads.s + heads.mv * (len(ATTENDED) if heads.distance_aware else len(EUCLIDEAN))
    values = heads.values
    k_at = aligned(heads.queries * width)
    v_at = k_at + aligned(heads.keys * width)
    plain = heads.s + heads.mv * len(inner_blades(heads.distance_aware))
    return dict(
        R=v_at + aligned(heads.keys * values), K_AT=k_at, V_AT=v_at,
        H=heads.queries, HK=heads.keys, CM=heads.mv, SH=heads.s,
        WIDTH=width, D=heads.features, DV=values, AWARE=heads.distance_aware,
        HAS_ALPHA=learned[0], HAS_BETA=learned[1], HAS_GAMMA=learned[2],
        ITEMS=_items_per_program(items, heads), PLAIN=_power(max(plain, 1)),
        CHANNELS=_power(heads.mv), VALUES=_power(values), PAIRS=_power(max(heads.s // 2, 1)),
    )  # fmt: skip


def _items_per_program(items: int, heads: HeadLayout) -> int:
    return min(max(_power(items * heads.total // (16 * _MULTIPROCESSORS)), 4), 32)


def features(
    raw: Tensor,
    rotary: Tensor | None,
    heads: HeadLayout,
    weights: list[Tensor | None],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (T, H, D), keys (T, HK, D) and values (T, HK, V) from the projected rows."""
    items = raw.shape[0]
    q, k, v = (raw.new_empty(items, *shape) for shape in heads.shapes)
    if items:
        learned = (w is not None for w in weights)
        kernel = _features("forward", heads, items, *learned, HAS_ROTARY=rotary is not None)
        given = [raw if x is None else x for x in (rotary, *weights)]
        kernel(raw, q, k, v, *given, items, epsilon)
    return q, k, v


def features_backward(
    raw: Tensor,
    rotary: Tensor | None,
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    heads: HeadLayout,
    weights: list[Tensor | None],
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Gradient of the projected rows, and parts whose sum is that of the learned weights.

    `raw` may have no rows if queries and keys are linear in them: without distances and learned
    weights.
    The learned weights are the logarithms of beta (H, C), alpha (H) and gamma (H), in this order.
    """
    items = g_q.shape[0]
    # The programs of the values write zeros into the padding; without values, nobody does.
    out = (raw.new_empty if heads.keys else raw.new_zeros)(items, raw.shape[1])
    programs = _programs(heads, items)
    parts = torch.empty(programs, heads.learned, device=raw.device)
    if items:
        learned = (w is not None for w in weights)
        flags = dict(HAS_ROTARY=rotary is not None, ROUND=feeds_small_product(out))
        kernel = _features("backward", heads, items, *learned, **flags)
        given = [out if x is None else x for x in (rotary, *weights)]
        outer = g_q.contiguous(), g_k.contiguous(), g_v.contiguous()
        kernel(raw if raw.shape[0] else out, *outer, out, *given, parts, items, epsilon)
    return out, parts


def summed(parts: Tensor) -> Tensor:
    """The sum of the parts that `features_backward` returned."""
    total = torch.empty(parts.shape[1], device=parts.device)
    with on_side_stream(parts, total):
        column_sums(parts, total)
    return total


def add_scalars(y: Tensor, x: Tensor, count: int) -> None:
    """Add the first `count` columns of x to those of y, in place."""
    y[:, :count] += x[:, :count]


def one_pass() -> contextlib.AbstractContextManager[None]:
    """Does nothing: a CUDA stream queues kernels anyway."""
    return contextlib.nullcontext()


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, step: int, scale: float) -> Tensor:
    """Attention within sets of `items` items, `step` rows apart."""
    total, heads, _ = q.shape
    out = v.new_empty(total, heads, v.shape[-1])
    if total:
        shapes = q.shape, k.shape[1], v.shape[2]
        kernel = _small_attention("forward", *shapes, items, heads, ROUND=feeds_small_product(out))
        kernel(q, k, v, out, items, step, scale)
    return out


def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, step: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    g_q, g_k, g_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if q.shape[0]:
        shapes = q.shape, k.shape[1], v.shape[2]
        kernel = _small_attention("backward", *shapes, items, k.shape[1])
        kernel(q, k, v, g, g_q, g_k, g_v, items, step, scale)
    return g_q, g_k, g_v


@lru_cache(maxsize=KEPT)
def _small_attention(
    direction: str, q: torch.Size, keys: int, values: int, items: int, programs: int, **flags: bool
) -> Bound:
    total, heads, width = q
    kernel = getattr(kernels, f"small_attention_{direction}")
    return kernel.bound(  # type: ignore[no-any-return]
        (total // items, programs), H=heads, HK=keys, D=width, DV=values,
        ITEMS=_power(items), DP=_power(width), VP=_power(values), num_warps=1, **flags,
    )  # fmt: skip


def survey(mv: Tensor) -> tuple[Tensor, Tensor]:
    """The working centre (B, 3) of every sample of mv (B, items, C, 16), and its mean e123 (B)."""
    samples, rows = mv.shape[0], mv.shape[1] * mv.shape[2]
    center, mean = mv.new_empty(samples, 3), mv.new_empty(samples)
    noise = (16 * torch.finfo(mv.dtype).eps) ** 2
    if samples:
        kernels.survey[(samples,)](mv, center, mean, rows, noise, ROWS=_power(rows), num_warps=1)
    return center, mean


def enter(mv: Tensor, s: Tensor, center: Tensor) -> Tensor:
    """Rows of (B, items, C, 16) and (B, items, S), with the centre of each sample at the origin."""
    samples, items, c, _ = mv.shape
    total = samples * items
    out = torch.empty(total, s.shape[-1] + BLADES * c, device=mv.device)
    if total:
        block = _block(total * c)
        grid = (math.ceil(total * c / block["BLOCK"]), 2 if s.shape[-1] else 1)
        kernels.enter[grid](mv, s, center, out, total, items, C=c, S=s.shape[-1], **block)
    return out


def leave(x: Tensor, center: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Multivectors (T, C, 16), moved back by the centres, and scalars (T, S) of rows."""
    total = x.shape[0]
    if not sizes.mv:
        return x.new_empty(total, 0, BLADES), x[:, : sizes.s].clone()
    mv, s = x.new_empty(total, sizes.mv, BLADES), x.new_empty(total, sizes.s)
    if total:
        block = _block(total * sizes.mv)
        grid = (math.ceil(total * sizes.mv / block["BLOCK"]), 2 if sizes.s else 1)
        items = total // center.shape[0]
        kernels.leave[grid](x, center, mv, s, total, items, C=sizes.mv, S=sizes.s, **block)
    return mv, s


def leave_backward(g_mv: Tensor, g_s: Tensor, center: Tensor, sizes: Sizes) -> Tensor:
    total = g_mv.shape[0]
    if not sizes.mv:
        return g_s.clone()
    out = torch.empty(total, sizes.width, device=g_mv.device)
    if total:
        block = _block(total * sizes.mv)
        grid = (math.ceil(total * sizes.mv / block["BLOCK"]), 2 if sizes.s else 1)
        kernels.leave_backward[grid](
            g_mv, g_s, center, out, total, total // center.shape[0], C=sizes.mv, S=sizes.s, **block
        )
    return out


def bilinear(p: Tensor, y: Tensor, reference: Tensor, sizes: Sizes) -> Tensor:
    """Rows of the scalars of y, and of products and joins of the four parts of p."""
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out = p.new_empty(items, sizes.s + 2 * BLADES * channels + ONES)
    if items:
        kernel = _bilinear(
            "forward", items, channels, sizes.s, FY=y.shape[1], ROUND=feeds_small_product(out)
        )
        kernel(p, y, reference, out, items)
    return out


@lru_cache(maxsize=KEPT)
def _bilinear(direction: str, items: int, channels: int, scalars: int, **flags: int) -> Bound:
    block = _block(items * channels)
    kernel = getattr(kernels, f"bilinear_{direction}")
    parts = (1 if direction == "forward" else 2) + (1 if scalars else 0)
    grid = (math.ceil(items * channels / block["BLOCK"]), parts)
    return kernel.bound(grid, C=channels, S=scalars, ONES=ONES, **flags, **block)  # type: ignore[no-any-return]


def bilinear_backward(
    p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes, needs_reference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of p, the layer's recomputed output, and the gradient of the reference."""
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out, g_p = g.new_empty(items, g.shape[1] + ONES), torch.empty_like(p)
    g_ref = reference.new_zeros(items, channels) if needs_reference else reference
    if items:
        flags = dict(FY=y.shape[1], HAS_GREF=needs_reference, ROUND=feeds_small_product(g_p))
        kernel = _bilinear("backward", items, channels, sizes.s, **flags)
        kernel(p, y, reference, g, g_p, out, g_ref, items)
    return g_p, out, g_ref.sum(-1) if needs_reference else reference.new_zeros(0)


def gate(x: Tensor, sizes: Sizes, gates: int, activation: int) -> Tensor:
    items = x.shape[0]
    out = x.new_empty(items, sizes.width + ONES)
    if items:
        _gate("forward", items, sizes, gates, activation, feeds_small_product(out))(x, out, items)
    return out


@lru_cache(maxsize=KEPT)
def _gate(
    direction: str, items: int, sizes: Sizes, gates: int, activation: int, rounds: bool
) -> Bound:
    elements = items * (sizes.mv if direction == "forward" else gates)
    block = _block(elements)
    kernel = getattr(kernels, f"gate_{direction}")
    grid = (math.ceil(elements / block["BLOCK"]), 2 if sizes.s else 1)
    return kernel.bound(  # type: ignore[no-any-return]
        grid, C=sizes.mv, G=gates, S=sizes.s, ONES=ONES, ACT=activation, ROUND=rounds, **block
    )


def gate_backward(
    x: Tensor, g: Tensor, sizes: Sizes, gates: int, activation: int
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and the gate's recomputed output."""
    items = x.shape[0]
    g_x, out = torch.empty_like(x), x.new_empty(items, sizes.width + ONES)
    if items:
        kernel = _gate("backward", items, sizes, gates, activation, feeds_small_product(out))
        kernel(x, g, g_x, out, items)
    return g_x, out


def _block(elements: int) -> dict[str, int]:
    """Elements per program: fewer if there are few, to use the whole GPU."""
    block = 128
    while block > 32 and elements // block < _FILL:
        block //= 2
    return dict(BLOCK=block, num_warps=block // 32)
