"""The steps of a block on a CPU: C kernels, but for the largest product of the weights' gradient.

Functions have the signatures of `gpu`'s. What `ready` and `always` say concerns TF32, which a CPU has not.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algebra import BLADES
from ..nn.linear import MAPS
from .c_kernels import BLOCK, MOST_FEATURES, PANEL, SMALL_SET, Job, Library, library
from .rows import Blocks, Columns, LinearPlan, columns, head_columns

if TYPE_CHECKING:
    from .fused import Heads, Sizes

__all__ = ["MOST_FEATURES", "SMALL_SET"]

RECOMPUTE = 4096
"""From so many items on, memory counts more than a product: what is cheap to make again is not saved."""


def qkv_columns(heads: Heads) -> Columns:
    total = heads.queries + 2 * heads.keys
    return columns(range(total * heads.mv), range(total * heads.s))


def reinsert_columns(heads: Heads, values: bool) -> Columns:
    total = heads.queries + heads.keys * (2 if values else 1)
    return columns(range(total * heads.mv), range(total * heads.s))


def output_columns(heads: Heads) -> Columns:
    return head_columns(range(heads.queries), heads.mv, heads.s)


def bilinear_columns(channels: int) -> Columns:
    return columns(range(4 * channels), range(0))


class _Waiting(threading.local):
    """Kernels that were called within `together` and did not run yet: all on the rows of the same items."""

    depth = 0

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.program: list[bytes] = []
        self.kept: list[tuple[Any, ...]] = []
        self.kernels: Library | None = None
        self.items = self.cost = 0

    def run(self) -> None:
        if self.kernels is not None:
            self.kernels.run([Job(b"".join(self.program), self.items, BLOCK, self.cost)])
            self.clear()


_waiting = _Waiting()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Within: kernels on rows run later, one after the other on a few rows that stay in the cache, threads meeting once.

    What they write must not be read by anything else before the end of the outermost one, or before `settle`.
    """
    outside = _waiting.depth
    _waiting.depth = outside + 1
    try:
        yield
        if not outside:
            _waiting.run()
    finally:
        _waiting.depth = outside
        if not outside:
            _waiting.clear()


def settle() -> None:
    """Run what waits."""
    _waiting.run()


def _kernels(dtype: torch.dtype) -> Library:
    libraries = library()
    assert libraries is not None
    return libraries[dtype]


def _call(x: Tensor, name: str, units: int, step: int, cost: int, *arguments: Any) -> None:
    """Run the kernel of x's dtype, now or when those that wait run: see `c_kernels`."""
    kernels = _kernels(x.dtype)
    packed = kernels.packed(name, arguments)
    if not _waiting.depth or step != BLOCK:
        settle()
        kernels.run([Job(packed, units, step, cost)])
        return
    if kernels is not _waiting.kernels or units != _waiting.items:
        settle()
    _waiting.kernels, _waiting.items = kernels, units
    _waiting.cost += cost
    _waiting.program.append(packed)
    _waiting.kept.append(arguments)


def _sizes(plan: LinearPlan) -> tuple[int, int, int, int]:
    return plan.in_mv, plan.out_mv, plan.in_s, plan.out_s


def _padded(width: int) -> int:
    return width + -width % PANEL


def prepared_size(plan: LinearPlan) -> int:
    """Packed for the product (with bias), then for that of the gradient: see `c_kernels`."""
    ci, co, inputs, outputs = *_sizes(plan)[:2], plan.in_s + plan.in_mv, plan.out_s + plan.out_mv
    there = _padded(outputs) * (inputs + 1) + (MAPS - 1) * _padded(co) * ci
    return there + _padded(inputs) * outputs + (MAPS - 1) * _padded(ci) * co


def prepare(parameters: Sequence[Tensor], blocks: Blocks, dtype: torch.dtype) -> Tensor:
    plans = [plan for plans in blocks for plan in plans]
    sizes = [prepared_size(plan) for plan in plans]
    out = parameters[0].new_empty(sum(sizes), dtype=dtype)
    left = [_as(p, dtype) for p in parameters]
    kernels, jobs, given = _kernels(dtype), [], iter(left)
    for plan, found in zip(plans, out.split(sizes), strict=True):
        own = [next(given) if size else None for size in plan.sizes]
        first = _padded(plan.in_s + plan.in_mv) * _padded(plan.out_s + plan.out_mv)
        units = (first + _padded(plan.in_mv) * _padded(plan.out_mv)) // PANEL**2
        packed = kernels.packed("prepare", (*_sizes(plan), plan.bias, *own, found))
        jobs.append(Job(packed, units, 4, PANEL**2))
    kernels.run(jobs)
    return out


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype and x.is_contiguous() else x.to(dtype).contiguous()


@functools.lru_cache(maxsize=256)
def _runs(plan: LinearPlan) -> Tensor | None:
    """Pieces of a plan's inputs that stay together in standard order: (first, where to, how many); None: the same order."""
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
    """x in standard order."""
    runs, x = _runs(plan), x.contiguous()
    if runs is None:
        return x
    (items, width), out = x.shape, torch.empty_like(x)
    _call(x, "reorder", items, BLOCK, width, width, len(runs), runs, x, out)
    return out


def linear(x: Tensor, prepared: Tensor, plan: LinearPlan, *, ready: bool = True) -> Tensor:
    items = x.shape[0]
    y = x.new_empty(items, plan.out_s + BLADES * plan.out_mv)
    _call(
        x, "linear_forward", items, BLOCK, prepared.numel(),
        *_sizes(plan), prepared, _standard(x, plan), y,
    )  # fmt: skip
    return y


def linear_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, width: int, *, ready: bool = True
) -> Tensor:
    items = g.shape[0]
    found = g.new_empty(items, width)
    _call(
        g, "linear_backward", items, BLOCK, prepared.numel(),
        *_sizes(plan), prepared, g.contiguous(), found,
    )  # fmt: skip
    runs = _runs(plan)
    if runs is None:
        return found
    out = torch.empty_like(found)
    _call(g, "reorder_back", items, BLOCK, width, width, len(runs), runs, found, out)
    return out


class WeightGradients:
    """Gradients of the parameters of several maps."""

    def __init__(self, plans: tuple[LinearPlan, ...], like: Tensor) -> None:
        self.plans = plans
        sizes = [plan.parameters for plan in plans]
        self.found = like.new_empty(sum(sizes))
        self.parts = self.found.split(sizes)

        self.given: list[tuple[int, Tensor, Tensor]] = []

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """For the gradient of map i: x went in, g is the gradient of what came out."""
        self.given.append((i, _standard(x, self.plans[i]), g.contiguous()))

    def collect(self) -> Tensor:
        """One after another."""
        settle()
        kernels, jobs, kept = _kernels(self.found.dtype), [], []
        for i, x, g in self.given:
            plan, items = self.plans[i], x.shape[0]
            inputs, outputs = plan.in_s + plan.in_mv, plan.out_s + plan.out_mv
            first = torch.mm(g[:, :outputs].t(), x[:, :inputs])
            units = (MAPS - 1) * -(-plan.out_mv // (PANEL // 2)) + -(-outputs // 64)
            given = items, *_sizes(plan), plan.bias, x, g, first, self.parts[i]
            jobs.append(Job(kernels.packed("linear_weights", given), units, 1, 32 * items))
            kept.append(first)
        kernels.run(jobs)
        return self.found


def _reached(raw: Tensor, plan: LinearPlan, heads: Heads) -> tuple[Tensor, Tensor]:
    """The scalars and multivectors (T, 16, C) of all heads that a re-inserted channel reaches."""
    total = heads.queries + 2 * heads.keys
    mv = raw[:, total * heads.s :].view(-1, BLADES, total * heads.mv)
    return raw[:, : plan.out_s], mv[:, :, : plan.out_mv]


def add_linear(y: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan, heads: Heads) -> Tensor:
    more = linear(x, prepared, plan)
    settle()
    s, mv = _reached(y, plan, heads)
    s += more[:, : plan.out_s]
    mv += more[:, plan.out_s :].view_as(mv)
    return y


def reinsert_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, heads: Heads
) -> tuple[Tensor, Tensor]:
    """Gradient of re-inserted rows, and the part of g that their weights' gradient needs."""
    settle()
    s, mv = _reached(g, plan, heads)
    part = torch.cat([s, mv.flatten(1)], dim=1)
    return linear_input_gradient(part, prepared, plan, len(plan.inputs)), part


def normed_width(sizes: Sizes) -> int:
    """Columns of normalised rows."""
    return sizes.width


def norm(
    x: Tensor, delta: Tensor, sizes: Sizes, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    items, x = x.shape[0], x.contiguous()
    new, y, stat = torch.empty_like(x), torch.empty_like(x), x.new_empty(items, 2)
    _call(
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
    _call(
        y, "norm_backward", y.shape[0], BLOCK, y.shape[1], sizes.mv, sizes.s,
        None if g_new is None else g_new.contiguous(), g_y.contiguous(), y, stat, out,
    )  # fmt: skip
    return out, y.new_empty(0)


def _head_arguments(
    raw: Tensor, heads: Heads, weights: list[Tensor | None], epsilon: float
) -> tuple[Any, ...]:
    sizes = heads.queries, heads.keys, heads.mv, heads.s, heads.features, heads.aware
    return (*sizes, epsilon, *(None if w is None else w.to(raw.dtype).exp() for w in weights))


def features(
    raw: Tensor, heads: Heads, weights: list[Tensor | None], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    items = raw.shape[0]
    q = raw.new_empty(items, heads.queries, heads.features)
    k = raw.new_empty(items, heads.keys, heads.features)
    v = raw.new_empty(items, heads.keys, heads.values)
    given = _head_arguments(raw, heads, weights, epsilon)
    _call(raw, "features_forward", items, BLOCK, raw.shape[1], *given, raw.contiguous(), q, k, v)
    return q, k, v


def features_backward(
    raw: Tensor,
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    heads: Heads,
    weights: list[Tensor | None],
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    items, raw = raw.shape[0], raw.contiguous()
    out = torch.empty_like(raw)
    parts = raw.new_empty(-(-items // BLOCK), heads.queries * (heads.mv + 2))
    given = _head_arguments(raw, heads, weights, epsilon)
    _call(
        raw, "features_backward", items, BLOCK, raw.shape[1], *given, raw,
        g_q.contiguous(), g_k.contiguous(), g_v.contiguous(), out, parts,
    )  # fmt: skip
    return out, parts


def summed(parts: Tensor) -> Tensor:
    """Of what `features_backward` found."""
    settle()
    return parts.sum(0)


def add_scalars(y: Tensor, x: Tensor, count: int) -> None:
    """The first columns of x added to those of y, in place."""
    widths = x.shape[1], y.shape[1]
    _call(y, "add_columns", y.shape[0], BLOCK, 2 * count, count, *widths, x, y)


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    out = v.new_empty(*q.shape[:2], v.shape[-1])
    _call(
        q, "small_attention_forward", *_attention_arguments(q, k, v, items, scale),
        q.contiguous(), k.contiguous(), v.contiguous(), out,
    )  # fmt: skip
    return out


def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _call(
        q, "small_attention_backward", *_attention_arguments(q, k, v, items, scale),
        q, k, v, g.contiguous(), *found,
    )  # fmt: skip
    return found


def _attention_arguments(
    q: Tensor, k: Tensor, v: Tensor, items: int, scale: float
) -> tuple[Any, ...]:
    total, heads, width = q.shape
    step = max(BLOCK // items, 1) * items  # whole sets
    return (
        total,
        step,
        heads * width,
        items,
        heads,
        k.shape[1],
        width,
        v.shape[2],
        scale,
    )


def bilinear(p: Tensor, y: Tensor, reference: Tensor, sizes: Sizes) -> Tensor:
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out = p.new_empty(items, sizes.s + 2 * BLADES * channels)
    _call(
        p, "bilinear_forward", items, BLOCK, p.shape[1],
        channels, sizes.s, p.contiguous(), y.contiguous(), reference.contiguous(), out,
    )  # fmt: skip
    return out


def bilinear_backward(
    p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes, needs_reference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    items, channels, p, g = p.shape[0], p.shape[1] // (4 * BLADES), p.contiguous(), g.contiguous()
    g_p, out, g_ref = torch.empty_like(p), torch.empty_like(g), p.new_empty(items * needs_reference)
    _call(
        p, "bilinear_backward", items, BLOCK, p.shape[1], channels, sizes.s,
        p, y.contiguous(), reference.contiguous(), g, g_p, out, g_ref if needs_reference else None,
    )  # fmt: skip
    return g_p, out, g_ref


def gate(x: Tensor, sizes: Sizes, activation: int) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _call(
        x, "gate_forward", x.shape[0], BLOCK, 4 * x.shape[1],
        sizes.mv, sizes.s, activation, x, out,
    )  # fmt: skip
    return out


def gate_backward(x: Tensor, g: Tensor, sizes: Sizes, activation: int) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    g_x, out = torch.empty_like(x), torch.empty_like(x)
    _call(
        x, "gate_backward", x.shape[0], BLOCK, 4 * x.shape[1],
        sizes.mv, sizes.s, activation, x, g.contiguous(), g_x, out,
    )  # fmt: skip
    return g_x, out
