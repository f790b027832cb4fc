"""The steps of a block on a CPU: C kernels, except the largest product of the weights' gradient.

`ready` and `always` concern TF32 and are ignored on CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...algebra import BLADES
from ...functional.linear import MAPS
from ..plan import HeadLayout, Sizes
from ..rows import Blocks, Columns, LinearPlan, columns, head_columns
from .deferred import call, kernels_of, settle
from .library import BLOCK, OUTPUTS, PANEL, Job

RECOMPUTE = 4096
"""From this number of items on, cheap results are recomputed to save memory."""


def qkv_columns(heads: HeadLayout) -> Columns:
    total = heads.total
    return columns(range(total * heads.mv), range(total * heads.s))


def reinsert_columns(heads: HeadLayout, values: bool) -> Columns:
    total = heads.queries + heads.keys * (2 if values else 1)
    return columns(range(total * heads.mv), range(total * heads.s))


def output_columns(heads: HeadLayout) -> Columns:
    return head_columns(range(heads.queries), heads.mv, heads.s)


def bilinear_columns(channels: int) -> Columns:
    return columns(range(4 * channels), range(0))


def _sizes(plan: LinearPlan) -> tuple[int, int, int, int]:
    return plan.in_mv, plan.out_mv, plan.in_s, plan.out_s


@functools.lru_cache(maxsize=256)
def _types(plan: LinearPlan) -> tuple[Tensor | None, Tensor | None]:
    """Whether each channel in and out is odd, as integers; None for a map without types."""
    if plan.types is None:
        return None, None
    odd_in, odd_out = (
        torch.tensor([t == "o" for t in letters], dtype=torch.int32, device="cpu")
        for letters in plan.types
    )
    return odd_in, odd_out


def _padded(width: int) -> int:
    return width + -width % PANEL


def prepared_size(plan: LinearPlan) -> int:
    """Elements of a map's weights, packed for the forward product (with bias) and the backward one.

    The layout is described in rows.c, "linear maps".
    """
    ci, co, inputs, outputs = *_sizes(plan)[:2], plan.in_s + plan.in_mv, plan.out_s + plan.out_mv
    there = _padded(outputs) * (inputs + 1) + (MAPS - 1) * _padded(co) * ci
    return there + _padded(inputs) * outputs + (MAPS - 1) * _padded(ci) * co


def prepare(parameters: Sequence[Tensor], blocks: Blocks, dtype: torch.dtype) -> Tensor:
    plans = [plan for plans in blocks for plan in plans]
    sizes = [prepared_size(plan) for plan in plans]
    out = parameters[0].new_empty(sum(sizes), dtype=dtype)
    left = [_as(p, dtype) for p in parameters]
    kernels, jobs, given = kernels_of(dtype), [], iter(left)
    for plan, found in zip(plans, out.split(sizes), strict=True):
        own = [next(given) if size else None for size in plan.sizes]
        first = _padded(plan.in_s + plan.in_mv) * _padded(plan.out_s + plan.out_mv)
        units = (first + _padded(plan.in_mv) * _padded(plan.out_mv)) // PANEL**2
        packed = kernels.packed("prepare", (*_sizes(plan), plan.bias, *_types(plan), *own, found))
        jobs.append(Job(packed, units, 4, PANEL**2))
    kernels.run(jobs)
    return out


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype and x.is_contiguous() else x.to(dtype).contiguous()


@functools.lru_cache(maxsize=256)
def _runs(plan: LinearPlan) -> Tensor | None:
    """Runs of input columns that stay contiguous in standard order; None if the order is standard.

    (runs, 3): first column, first column in standard order, number of columns.
    """
    standard = columns(range(plan.in_mv), range(plan.in_s))
    if plan.inputs == standard:
        return None
    to = {key: i for i, key in enumerate(zip(standard.blade, standard.channel, strict=True))}
    runs: list[list[int]] = []
    for i, key in enumerate(zip(plan.inputs.blade, plan.inputs.channel, strict=True)):
        if runs and to[key] == sum(runs[-1][1:]):
            runs[-1][2] += 1
        else:
            runs.append([i, to[key], 1])
    return torch.tensor(runs, dtype=torch.int32, device="cpu")


def _standard(x: Tensor, plan: LinearPlan) -> Tensor:
    """The map's input with its columns in standard order."""
    runs, x = _runs(plan), x.contiguous()
    if runs is None:
        return x
    (items, width), out = x.shape, torch.empty_like(x)
    call(x, "reorder", items, BLOCK, width, width, len(runs), runs, x, out)
    return out


def linear(x: Tensor, prepared: Tensor, plan: LinearPlan, *, ready: bool = True) -> Tensor:
    items = x.shape[0]
    y = x.new_empty(items, plan.out_s + BLADES * plan.out_mv)
    call(
        x, "linear_forward", items, BLOCK, prepared.numel(),
        *_sizes(plan), prepared, _standard(x, plan), y,
    )  # fmt: skip
    return y


def linear_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, width: int, *, ready: bool = True
) -> Tensor:
    items = g.shape[0]
    found = g.new_empty(items, width)
    call(
        g, "linear_backward", items, BLOCK, prepared.numel(),
        *_sizes(plan), prepared, g.contiguous(), found,
    )  # fmt: skip
    runs = _runs(plan)
    if runs is None:
        return found
    out = torch.empty_like(found)
    call(g, "reorder_back", items, BLOCK, width, width, len(runs), runs, found, out)
    return out


class _WeightGradients:
    """Gradients of the parameters of several maps."""

    def __init__(self, plans: tuple[LinearPlan, ...], like: Tensor) -> None:
        self.plans = plans
        sizes = [plan.parameters for plan in plans]
        self.found = like.new_empty(sum(sizes))
        self.parts = self.found.split(sizes)
        self.given: list[tuple[int, Tensor, Tensor]] = []

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """Add the gradient of map i, from its input x and the gradient g of its output."""
        self.given.append((i, _standard(x, self.plans[i]), g.contiguous()))

    def collect(self) -> Tensor:
        """The gradients of all maps' parameters, concatenated."""
        settle()
        kernels, jobs, kept = kernels_of(self.found.dtype), [], []
        for i, x, g in self.given:
            plan, items = self.plans[i], x.shape[0]
            inputs, outputs = plan.in_s + plan.in_mv, plan.out_s + plan.out_mv
            first = torch.mm(g[:, :outputs].t(), x[:, :inputs])
            units = (MAPS - 1) * -(-plan.out_mv // (PANEL // 2)) + -(-outputs // OUTPUTS)
            given = (
                items, *_sizes(plan), plan.bias, *_types(plan), x, g, first, self.parts[i]
            )  # fmt: skip
            jobs.append(Job(kernels.packed("linear_weights", given), units, 1, 32 * items))
            kept.append(first)
        kernels.run(jobs)
        return self.found


def _reached(raw: Tensor, plan: LinearPlan, heads: HeadLayout) -> tuple[Tensor, Tensor]:
    """Views of the scalars and multivectors (T, 16, C) to which re-inserted channels are added."""
    total = heads.total
    mv = raw[:, total * heads.s :].view(-1, BLADES, total * heads.mv)
    return raw[:, : plan.out_s], mv[:, :, : plan.out_mv]


def add_linear(
    y: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan, heads: HeadLayout
) -> Tensor:
    more = linear(x, prepared, plan)
    settle()
    s, mv = _reached(y, plan, heads)
    s += more[:, : plan.out_s]
    mv += more[:, plan.out_s :].view_as(mv)
    return y


def reinsert_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, heads: HeadLayout
) -> tuple[Tensor, Tensor]:
    """Gradient of the re-inserted rows, and the part of g that their weights' gradient needs."""
    settle()
    s, mv = _reached(g, plan, heads)
    part = torch.cat([s, mv.flatten(1)], dim=1)
    return linear_input_gradient(part, prepared, plan, len(plan.inputs)), part


def normed_width(sizes: Sizes) -> int:
    """Number of columns of normalised rows."""
    return sizes.width


def norm(
    x: Tensor, delta: Tensor, sizes: Sizes, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    items, x = x.shape[0], x.contiguous()
    new, y, stat = torch.empty_like(x), torch.empty_like(x), x.new_empty(items, 2)
    call(
        x, "norm_forward", items, BLOCK, x.shape[1],
        sizes.mv, sizes.s, epsilon, x, delta.contiguous(), new, y, stat,
    )  # fmt: skip
    return new, y, stat


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
    y = y.contiguous()
    out = torch.empty_like(y)
    call(
        y, "norm_backward", y.shape[0], BLOCK, y.shape[1], sizes.mv, sizes.s,
        None if g_new is None else g_new.contiguous(), g_y.contiguous(), y, stat, out,
    )  # fmt: skip
    return out, y.new_empty(0)


def _head_arguments(
    raw: Tensor, heads: HeadLayout, weights: list[Tensor | None], epsilon: float
) -> tuple[Any, ...]:
    sizes = heads.queries, heads.keys, heads.mv, heads.s, heads.features, heads.distance_aware
    return (*sizes, epsilon, *(None if w is None else w.to(raw.dtype).exp() for w in weights))


def features(
    raw: Tensor,
    rotary: Tensor | None,
    heads: HeadLayout,
    weights: list[Tensor | None],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    items = raw.shape[0]
    q, k, v = (raw.new_empty(items, *shape) for shape in heads.shapes)
    given = _head_arguments(raw, heads, weights, epsilon)
    call(
        raw, "features_forward", items, BLOCK, raw.shape[1], *given, rotary, raw.contiguous(),
        q, k, v,
    )  # fmt: skip
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
    items, raw = g_q.shape[0], raw.contiguous()
    out = raw.new_empty(items, raw.shape[1])
    parts = raw.new_empty(-(-items // BLOCK), heads.learned)
    given = _head_arguments(raw, heads, weights, epsilon)
    call(
        raw, "features_backward", items, BLOCK, raw.shape[1], *given, rotary, raw,
        g_q.contiguous(), g_k.contiguous(), g_v.contiguous(), out, parts,
    )  # fmt: skip
    return out, parts


def summed(parts: Tensor) -> Tensor:
    """The sum of the parts that `features_backward` returned."""
    settle()
    return parts.sum(0)


def add_scalars(y: Tensor, x: Tensor, count: int) -> None:
    """Add the first `count` columns of x to those of y, in place."""
    widths = x.shape[1], y.shape[1]
    call(y, "add_columns", y.shape[0], BLOCK, 2 * count, count, *widths, x, y)


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, step: int, scale: float) -> Tensor:
    out = v.new_empty(*q.shape[:2], v.shape[-1])
    call(
        q, "small_attention_forward", *_attention_arguments(q, k, v, items, step, scale),
        q.contiguous(), k.contiguous(), v.contiguous(), out,
    )  # fmt: skip
    return out


def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, step: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    call(
        q, "small_attention_backward", *_attention_arguments(q, k, v, items, step, scale),
        q, k, v, g.contiguous(), *found,
    )  # fmt: skip
    return found


def _attention_arguments(
    q: Tensor, k: Tensor, v: Tensor, items: int, step: int, scale: float
) -> tuple[Any, ...]:
    total, heads, width = q.shape
    group = items * step
    units = max(BLOCK // group, 1) * group  # whole sets
    return total, units, heads * width, items, step, heads, k.shape[1], width, v.shape[2], scale


def bilinear(p: Tensor, y: Tensor, reference: Tensor, sizes: Sizes) -> Tensor:
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out = p.new_empty(items, sizes.s + 2 * BLADES * channels)
    call(
        p, "bilinear_forward", items, BLOCK, p.shape[1],
        channels, sizes.s, p.contiguous(), y.contiguous(), reference.contiguous(), out,
    )  # fmt: skip
    return out


def bilinear_backward(
    p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes, needs_reference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    items, channels, p, g = p.shape[0], p.shape[1] // (4 * BLADES), p.contiguous(), g.contiguous()
    g_p, out, g_ref = torch.empty_like(p), torch.empty_like(g), p.new_empty(items * needs_reference)
    call(
        p, "bilinear_backward", items, BLOCK, p.shape[1], channels, sizes.s,
        p, y.contiguous(), reference.contiguous(), g, g_p, out, g_ref if needs_reference else None,
    )  # fmt: skip
    return g_p, out, g_ref


def gate(x: Tensor, sizes: Sizes, gates: int, activation: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    call(
        x, "gate_forward", x.shape[0], BLOCK, 4 * x.shape[1],
        sizes.mv, gates, sizes.s, activation, x, out,
    )  # fmt: skip
    return out


def gate_backward(
    x: Tensor, g: Tensor, sizes: Sizes, gates: int, activation: int
) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    g_x, out = torch.empty_like(x), torch.empty_like(x)
    call(
        x, "gate_backward", x.shape[0], BLOCK, 4 * x.shape[1],
        sizes.mv, gates, sizes.s, activation, x, g.contiguous(), g_x, out,
    )  # fmt: skip
    return g_x, out


def weight_gradients(plans: tuple[LinearPlan, ...], like: Tensor) -> _WeightGradients:
    """Collects the gradients of several maps' parameters; see `backend.WeightGradients`."""
    return _WeightGradients(plans, like)
