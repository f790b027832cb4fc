"""The steps of a block on a CPU: C kernels, but for the largest product and the activations.

Rows are columns in memory: x has shape (T, F) and strides (1, T), so that one component of one channel is a vector of all
items. Kernels then read and write memory in order, whatever the number of channels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algebra import BLADES
from ..nn.linear import MAPS
from .c_kernels import BLOCK, MOST_FEATURES, SMALL_SET, library
from .rows import Columns, LinearPlan, columns, head_columns

if TYPE_CHECKING:
    from .plan import Heads, Sizes

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


def empty_rows(items: int, width: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(width, items, dtype=dtype, device=like.device).t()


def _columns(x: Tensor) -> Tensor:
    """x as (F, T), contiguous."""
    return x.t().contiguous()


def _call(x: Tensor, name: str, units: int, step: int, cost: int, *arguments: Any) -> None:
    """Run the kernel of x's dtype: see `c_kernels`."""
    libraries = library()
    assert libraries is not None
    libraries[x.dtype].call(name, units, step, cost, *arguments)


def _sizes(plan: LinearPlan) -> tuple[int, int, int, int]:
    return plan.in_mv, plan.out_mv, plan.in_s, plan.out_s


def prepared_size(plan: LinearPlan) -> int:
    outputs = plan.out_s + plan.out_mv
    return outputs * (plan.in_s + plan.in_mv + 1) + (MAPS - 1) * plan.out_mv * plan.in_mv


def prepare(theta: Tensor, plans: tuple[LinearPlan, ...], dtype: torch.dtype) -> Tensor:
    sizes = [prepared_size(plan) for plan in plans]
    theta, out = theta.to(dtype), theta.new_empty(sum(sizes), dtype=dtype)
    parts = theta.split([plan.parameters for plan in plans])
    for plan, size, given, found in zip(plans, sizes, parts, out.split(sizes), strict=True):
        units = plan.out_s + plan.out_mv
        _call(
            out, "prepare", units, 16, size // max(units, 1), *_sizes(plan), plan.bias, given, found
        )
    return out


@lru_cache(maxsize=64)
def _runs(inputs: Columns, in_mv: int, in_s: int) -> Tensor | None:
    """Pieces of `inputs` that stay together in standard order: (first, where to, how many). None: the same order."""
    standard = columns(range(in_mv), range(in_s))
    if inputs == standard:
        return None
    to = {key: i for i, key in enumerate(zip(standard.blade, standard.channel, strict=True))}
    runs: list[list[int]] = []
    for i, key in enumerate(zip(inputs.blade, inputs.channel, strict=True)):
        if runs and to[key] == sum(runs[-1][1:]):
            runs[-1][2] += 1
        else:
            runs.append([i, to[key], 1])
    return torch.tensor(runs, dtype=torch.int32)


def _standard(x: Tensor, plan: LinearPlan) -> Tensor:
    """x as columns in standard order, (F, T)."""
    runs = _runs(plan.inputs, plan.in_mv, plan.in_s)
    if runs is None:
        return _columns(x)
    (items, width), out = x.shape, x.new_empty(x.shape[1], x.shape[0])
    _call(
        x,
        "rows_to_columns",
        items,
        BLOCK,
        width,
        items,
        width,
        len(runs),
        runs,
        x.contiguous(),
        out,
    )
    return out


def linear(x: Tensor, prepared: Tensor, plan: LinearPlan) -> Tensor:
    items = x.shape[0]
    y_FT = x.new_empty(plan.out_s + BLADES * plan.out_mv, items)
    _call(
        x, "linear_forward", items, BLOCK, prepared.numel(),
        items, *_sizes(plan), prepared, _standard(x, plan), y_FT,
    )  # fmt: skip
    return y_FT.t()


def linear_input_gradient(g: Tensor, prepared: Tensor, plan: LinearPlan, width: int) -> Tensor:
    items = g.shape[0]
    out = g.new_empty(width, items)
    _call(
        g, "linear_backward", items, BLOCK, prepared.numel(),
        items, *_sizes(plan), prepared, _columns(g), out,
    )  # fmt: skip
    runs = _runs(plan.inputs, plan.in_mv, plan.in_s)
    if runs is None:
        return out.t()
    back = g.new_empty(items, width)
    _call(g, "columns_to_rows", items, BLOCK, width, items, width, len(runs), runs, out, back)
    return back


class WeightGradients:
    """Gradients of the parameters of several maps."""

    def __init__(self, plans: tuple[LinearPlan, ...], like: Tensor) -> None:
        self.plans = plans
        sizes = [plan.parameters for plan in plans]
        self.found = like.new_empty(sum(sizes))
        self.parts = self.found.split(sizes)

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """The gradient of map i: x went in, g is the gradient of what came out."""
        plan, items, x_FT, g_FT = (
            self.plans[i],
            x.shape[0],
            _standard(x, self.plans[i]),
            _columns(g),
        )
        inputs, outputs = plan.in_s + plan.in_mv, plan.out_s + plan.out_mv
        first = torch.mm(g_FT[:outputs], x_FT[:inputs].t())
        _call(
            x, "linear_weights", -(-outputs // 4), 1, items * plan.in_mv,
            items, *_sizes(plan), plan.bias, x_FT, g_FT, first, self.parts[i],
        )  # fmt: skip

    def collect(self) -> Tensor:
        """One after another."""
        return self.found


def _reached(raw_FT: Tensor, plan: LinearPlan, heads: Heads) -> tuple[Tensor, Tensor]:
    """The scalars and multivectors (16, C, T) of all heads that a re-inserted channel reaches."""
    total = heads.queries + 2 * heads.keys
    mv = raw_FT[total * heads.s :].view(BLADES, total * heads.mv, -1)
    return raw_FT[: plan.out_s], mv[:, : plan.out_mv]


def add_linear(y: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan, heads: Heads) -> Tensor:
    more = linear(x, prepared, plan).t()
    s, mv = _reached(y.t(), plan, heads)
    s += more[: plan.out_s]
    mv += more[plan.out_s :].view_as(mv)
    return y


def reinsert_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, heads: Heads
) -> tuple[Tensor, Tensor]:
    """Gradient of re-inserted rows, and the part of g that their weights' gradient needs."""
    s, mv = _reached(_columns(g), plan, heads)
    part = torch.cat([s, mv.reshape(-1, s.shape[1])]).t()
    return linear_input_gradient(part, prepared, plan, len(plan.inputs)), part


def normed_width(sizes: Sizes) -> int:
    """Columns of normalised rows."""
    return sizes.width


def norm(
    x: Tensor, delta: Tensor, sizes: Sizes, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    items, x_FT = x.shape[0], _columns(x)
    new, y, stat = torch.empty_like(x_FT), torch.empty_like(x_FT), x.new_empty(items, 2)
    _call(
        x, "norm_forward", items, BLOCK, x.shape[1],
        items, sizes.mv, sizes.s, epsilon, x_FT, _columns(delta), new, y, stat,
    )  # fmt: skip
    return new.t(), y.t(), stat


def norm_backward(
    g_new: Tensor | None,
    g_y: Tensor,
    y: Tensor,
    stat: Tensor,
    sizes: Sizes,
    delta_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    items, y_FT = y.shape[0], _columns(y)
    out = torch.empty_like(y_FT)
    _call(
        y, "norm_backward", items, BLOCK, y.shape[1], items, sizes.mv, sizes.s,
        None if g_new is None else _columns(g_new), _columns(g_y), y_FT, stat, out,
    )  # fmt: skip
    return out.t(), y.new_empty(0)


def _head_arguments(
    raw: Tensor, heads: Heads, weights: list[Tensor | None], epsilon: float
) -> tuple[Any, ...]:
    sizes = raw.shape[0], heads.queries, heads.keys, heads.mv, heads.s, heads.features, heads.aware
    return (*sizes, epsilon, *(None if w is None else w.to(raw.dtype).exp() for w in weights))


def features(
    raw: Tensor, heads: Heads, weights: list[Tensor | None], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    items = raw.shape[0]
    q = raw.new_empty(items, heads.queries, heads.features)
    k = raw.new_empty(items, heads.keys, heads.features)
    v = raw.new_empty(items, heads.keys, heads.values)
    given = _head_arguments(raw, heads, weights, epsilon)
    _call(raw, "features_forward", items, BLOCK, raw.shape[1], *given, _columns(raw), q, k, v)
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
    items, raw_FT = raw.shape[0], _columns(raw)
    out = torch.empty_like(raw_FT)
    parts = raw.new_empty(-(-items // BLOCK), heads.queries * (heads.mv + 2))
    given = _head_arguments(raw, heads, weights, epsilon)
    _call(
        raw, "features_backward", items, BLOCK, raw.shape[1], *given, raw_FT,
        g_q.contiguous(), g_k.contiguous(), g_v.contiguous(), out, parts,
    )  # fmt: skip
    return out.t(), parts.sum(0)


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
    step = max(BLOCK // items, 1)
    return (
        total // items,
        step,
        items * heads * width,
        items,
        heads,
        k.shape[1],
        width,
        v.shape[2],
        scale,
    )


def bilinear(p: Tensor, y: Tensor, reference: Tensor, sizes: Sizes) -> Tensor:
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out = p.new_empty(sizes.s + 2 * BLADES * channels, items)
    _call(
        p, "bilinear_forward", items, BLOCK, p.shape[1],
        items, channels, sizes.s, _columns(p), _columns(y), reference.contiguous(), out,
    )  # fmt: skip
    return out.t()


def bilinear_backward(
    p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes, needs_reference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    p_FT, g_FT = _columns(p), _columns(g)
    g_p, out = torch.empty_like(p_FT), torch.empty_like(g_FT)
    g_ref = p.new_empty(channels, items) if needs_reference else None
    _call(
        p, "bilinear_backward", items, BLOCK, p.shape[1], items, channels, sizes.s,
        p_FT, _columns(y), reference.contiguous(), g_FT, g_p, out, g_ref,
    )  # fmt: skip
    return g_p.t(), out.t(), p.new_empty(0) if g_ref is None else g_ref.sum(0)


_GATES = (
    (lambda x: F.gelu(x, approximate="tanh"), F.gelu),
    (F.relu, F.relu),
    (torch.sigmoid, torch.sigmoid),
)


def _gate_gradients(activation: int, x: Tensor, g: Tensor, is_gate: bool) -> Tensor:
    aten = torch.ops.aten
    if activation == 0:
        return aten.gelu_backward(g, x, approximate="tanh" if is_gate else "none")  # type: ignore[no-any-return]
    if activation == 1:
        return torch.where(x > 0, g, 0)
    return aten.sigmoid_backward(g, x.sigmoid())  # type: ignore[no-any-return]


def gate(x: Tensor, sizes: Sizes, activation: int) -> Tensor:
    items, x_FT = x.shape[0], _columns(x)
    s, mv = x_FT.split([sizes.s, BLADES * sizes.mv])
    out = torch.empty_like(x_FT)
    of_mv, of_s = _GATES[activation]
    out[: sizes.s] = of_s(s)
    _call(
        x, "gate_forward", items, BLOCK, mv.shape[0],
        items, sizes.mv, of_mv(mv[: sizes.mv]), mv, out[sizes.s :],
    )  # fmt: skip
    return out.t()


def gate_backward(x: Tensor, g: Tensor, sizes: Sizes, activation: int) -> tuple[Tensor, Tensor]:
    items, x_FT, g_FT = x.shape[0], _columns(x), _columns(g)
    s, mv = x_FT.split([sizes.s, BLADES * sizes.mv])
    g_s, g_mv = g_FT.split([sizes.s, BLADES * sizes.mv])
    g_x, out = torch.empty_like(x_FT), torch.empty_like(x_FT)
    of_mv, of_s = _GATES[activation]
    first = mv[: sizes.mv]
    dot = torch.empty_like(first)
    _call(
        x, "gate_backward", items, BLOCK, mv.shape[0], items, sizes.mv,
        of_mv(first), mv, g_mv, g_x[sizes.s :], out[sizes.s :], dot,
    )  # fmt: skip
    g_x[sizes.s : sizes.s + sizes.mv] += _gate_gradients(activation, first, dot, True)
    if sizes.s:
        out[: sizes.s] = of_s(s)
        g_x[: sizes.s] = _gate_gradients(activation, s, g_s, False)
    return g_x.t(), out.t()
