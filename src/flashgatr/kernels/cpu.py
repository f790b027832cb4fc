"""The steps of a block on a CPU: products over the blocks of a linear map that are not zero, C kernels between them.

Rows are columns in memory: x has shape (T, F) and strides (1, T), so that one component of one channel is a vector of all
items. Products and C kernels then read and write memory in order, whatever the number of channels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algebra import BLADES
from .c_kernels import call
from .rows import (
    FACTORS,
    PAIRS,
    Blocks,
    Columns,
    LinearPlan,
    block_table,
    blocks_of,
    columns,
    head_columns,
)

if TYPE_CHECKING:
    from .fused import Heads, Sizes

SMALL_SET = 32
"""Sets of up to this many items are attended to by a plain loop."""
_BLOCK = 32
MOST_FEATURES = 256
"""Widest query of the C kernel."""


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


@lru_cache(maxsize=64)
def _prepare_table(plans: tuple[LinearPlan, ...]) -> Tensor:
    found, start = [], 0
    for plan in plans:
        found.append(block_table(plan).long() + start * 16)
        start += plan.parameters
    return torch.cat(found).int()


@lru_cache(maxsize=1)
def _factors() -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(FACTORS + (0.0,) * (16 - len(FACTORS)), dtype=torch.float64)


def prepared_size(plan: LinearPlan) -> int:
    return block_table(plan).numel()


def prepare(theta: Tensor, plans: tuple[LinearPlan, ...], dtype: torch.dtype) -> Tensor:
    table = _prepare_table(plans)
    out = torch.empty(table.numel(), dtype=dtype)
    call("prepare", table.numel(), table, _factors(), theta.to(dtype), out)
    return out


@lru_cache(maxsize=64)
def _from(inputs: Columns, plan: LinearPlan) -> Tensor | None:
    """Where each column of the standard order is in `inputs`; None if they are the same."""
    standard = columns(range(plan.in_mv), range(plan.in_s))
    if inputs == standard:
        return None
    where = {key: i for i, key in enumerate(zip(inputs.blade, inputs.channel, strict=True))}
    order = [where[key] for key in zip(standard.blade, standard.channel, strict=True)]
    return torch.tensor(order, dtype=torch.int32)


def _standard(x: Tensor, plan: LinearPlan) -> Tensor:
    """x as columns in standard order, (F, T)."""
    order = _from(plan.inputs, plan)
    if order is None:
        return _columns(x)
    out = x.new_empty(x.shape[1], x.shape[0])
    call("rows_to_columns", x.shape[0], *x.shape, order, x.contiguous(), out, cost=x.shape[1])
    return out


def _split(x_FT: Tensor, s: int, c: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scalars with scalar parts; the other fifteen blades; those without and with e0 (8 each, the first included)."""
    items = x_FT.shape[1]
    blades = x_FT[s:].view(BLADES, c, items)
    return x_FT[: s + c], blades[1:], blades[:PAIRS], blades[PAIRS:]


def linear(x: Tensor, prepared: Tensor, plan: LinearPlan) -> Tensor:
    x_FT = _standard(x, plan)
    w = blocks_of(prepared, plan)
    y_FT = x.new_empty(plan.out_s + BLADES * plan.out_mv, x.shape[0])
    first, rest, without, _ = _split(x_FT, plan.in_s, plan.in_mv)
    y_first, y_rest, _, y_with = _split(y_FT, plan.out_s, plan.out_mv)
    torch.addmm(w.bias[:, None], w.first, first, out=y_first)
    torch.bmm(w.keep, rest, out=y_rest)
    y_with.baddbmm_(w.shift, without)
    return y_FT.t()


def linear_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, width: int = 0
) -> Tensor:
    g_FT, w = _columns(g), blocks_of(prepared, plan)
    out = g.new_empty(plan.in_s + BLADES * plan.in_mv, g.shape[0])
    g_first, g_rest, _, g_with = _split(g_FT, plan.out_s, plan.out_mv)
    first, rest, without, _ = _split(out, plan.in_s, plan.in_mv)
    torch.mm(w.first.t(), g_first, out=first)
    torch.bmm(w.keep.transpose(1, 2), g_rest, out=rest)
    without.baddbmm_(w.shift.transpose(1, 2), g_with)
    order = _from(plan.inputs, plan)
    if order is None:
        return out.t()
    back = g.new_empty(out.shape[1], out.shape[0])
    call("columns_to_rows", back.shape[0], *back.shape, order, out, back, cost=back.shape[1])
    return back


def linear_weight_gradient(x: Tensor, g: Tensor, plan: LinearPlan) -> Tensor:
    table = block_table(plan)
    found = x.new_empty(table.numel())
    into: Blocks = blocks_of(found, plan)
    first, rest, without, _ = _split(_standard(x, plan), plan.in_s, plan.in_mv)
    g_first, g_rest, _, g_with = _split(_columns(g), plan.out_s, plan.out_mv)
    torch.mm(g_first, first.t(), out=into.first)
    torch.sum(g_first, 1, out=into.bias)
    torch.bmm(g_rest, rest.transpose(1, 2), out=into.keep)
    torch.bmm(g_with, without.transpose(1, 2), out=into.shift)
    out = x.new_zeros(plan.parameters)
    call("collapse", table.numel(), table, _factors(), found, out)
    return out


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
    return linear_input_gradient(part, prepared, plan), part


class WeightGradients:
    """Gradients of the parameters of several maps."""

    def __init__(self, plans: tuple[LinearPlan, ...], like: Tensor) -> None:
        self.plans = plans
        self.found = [like.new_empty(0)] * len(plans)

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """The gradient of map i: x went in, g is the gradient of what came out."""
        self.found[i] = linear_weight_gradient(x, g, self.plans[i])

    def collect(self) -> Tensor:
        """One after another."""
        return torch.cat(self.found) if len(self.found) > 1 else self.found[0]


def normed_width(sizes: Sizes) -> int:
    """Columns of normalised rows."""
    return sizes.width


def norm(
    x: Tensor, delta: Tensor, sizes: Sizes, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    x_FT, d_FT = _columns(x), _columns(delta)
    new, y = torch.empty_like(x_FT), torch.empty_like(x_FT)
    stat = x.new_empty(x.shape[0], 2)
    call(
        "norm_forward", x.shape[0], x.shape[0], sizes.mv, sizes.s, epsilon, x_FT, d_FT, new, y, stat,
        cost=x.shape[1],
    )  # fmt: skip
    return new.t(), y.t(), stat


def norm_backward(
    g_new: Tensor | None, g_y: Tensor, y: Tensor, stat: Tensor, sizes: Sizes, delta_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    y_FT, g_FT = _columns(y), _columns(g_y)
    g_new_FT = None if g_new is None else _columns(g_new)
    out = torch.empty_like(y_FT)
    call(
        "norm_backward", y.shape[0], y.shape[0], sizes.mv, sizes.s, g_new_FT, g_FT, y_FT, stat, out,
        cost=y.shape[1],
    )  # fmt: skip
    return out.t(), y.new_empty(0)


def _head_arguments(raw: Tensor, heads: Heads, weights: list[Tensor | None]) -> list[object]:
    sizes = [raw.shape[0], heads.queries, heads.keys, heads.mv, heads.s, heads.features]
    return [*sizes, int(heads.aware)], [None if w is None else w.to(raw.dtype).exp() for w in weights]  # type: ignore[return-value]


def features(
    raw: Tensor, heads: Heads, weights: list[Tensor | None], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    items = raw.shape[0]
    q = raw.new_empty(items, heads.queries, heads.features)
    k = raw.new_empty(items, heads.keys, heads.features)
    v = raw.new_empty(items, heads.keys, heads.values)
    sizes, factors = _head_arguments(raw, heads, weights)
    call(
        "features_forward", items, *sizes, epsilon, *factors, _columns(raw), q, k, v,
        cost=raw.shape[1],
    )  # fmt: skip
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
    items = raw.shape[0]
    raw_FT = _columns(raw)
    out = torch.empty_like(raw_FT)
    parts = raw.new_zeros(-(-items // _BLOCK), heads.queries, heads.mv + 2)
    sizes, factors = _head_arguments(raw, heads, weights)
    given = (g.contiguous() for g in (g_q, g_k, g_v))
    call(
        "features_backward", items, *sizes, epsilon, *factors, raw_FT, *given, out, parts,
        cost=raw.shape[1],
    )  # fmt: skip
    total = parts.sum(0)
    return out.t(), torch.cat([total[:, :-2].flatten(), total[:, -2], total[:, -1]])


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    out = v.new_empty(*q.shape[:2], v.shape[-1])
    call("small_attention_forward", q.shape[0] // items, *_small_sizes(q, k, v, items), scale,
         q.contiguous(), k.contiguous(), v.contiguous(), out, cost=items * items * q[0].numel())  # fmt: skip
    return out


def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    found = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    call("small_attention_backward", q.shape[0] // items, *_small_sizes(q, k, v, items), scale,
         q, k, v, g.contiguous(), *found, cost=3 * items * items * q[0].numel())  # fmt: skip
    return found


def _small_sizes(q: Tensor, k: Tensor, v: Tensor, items: int) -> tuple[int, ...]:
    return items, q.shape[1], k.shape[1], q.shape[2], v.shape[2]


def bilinear(p: Tensor, y: Tensor, reference: Tensor, sizes: Sizes) -> Tensor:
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out = p.new_empty(sizes.s + 2 * BLADES * channels, items)
    call(
        "bilinear_forward", items, items, channels, sizes.s, _columns(p), _columns(y),
        reference.contiguous(), out, cost=4 * p.shape[1],
    )  # fmt: skip
    return out.t()


def bilinear_backward(
    p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes, needs_reference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    p_FT, g_FT = _columns(p), _columns(g)
    g_p, out = torch.empty_like(p_FT), torch.empty_like(g_FT)
    g_ref = p.new_empty(channels, items) if needs_reference else None
    call(
        "bilinear_backward", items, items, channels, sizes.s, p_FT, _columns(y),
        reference.contiguous(), g_FT, g_p, out, g_ref, cost=12 * p.shape[1],
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
    x_FT = _columns(x)
    s, mv = x_FT.split([sizes.s, BLADES * sizes.mv])
    out = torch.empty_like(x_FT)
    of_mv, of_s = _GATES[activation]
    out[: sizes.s] = of_s(s)
    call("gate_forward", x.shape[0], x.shape[0], sizes.mv, of_mv(mv[: sizes.mv]), mv, out[sizes.s :],
         cost=x.shape[1])  # fmt: skip
    return out.t()


def gate_backward(x: Tensor, g: Tensor, sizes: Sizes, activation: int) -> tuple[Tensor, Tensor]:
    x_FT, g_FT = _columns(x), _columns(g)
    s, mv = x_FT.split([sizes.s, BLADES * sizes.mv])
    g_s, g_mv = g_FT.split([sizes.s, BLADES * sizes.mv])
    g_x, out = torch.empty_like(x_FT), torch.empty_like(x_FT)
    of_mv, of_s = _GATES[activation]
    first = mv[: sizes.mv]
    dot = torch.zeros_like(first)
    call("gate_backward", x.shape[0], x.shape[0], sizes.mv, of_mv(first), mv, g_mv, g_x[sizes.s :],
         out[sizes.s :], dot, cost=2 * x.shape[1])  # fmt: skip
    g_x[sizes.s : sizes.s + sizes.mv] += _gate_gradients(activation, first, dot, True)
    if sizes.s:
        out[: sizes.s] = of_s(s)
        g_x[: sizes.s] = _gate_gradients(activation, s, g_s, False)
    return g_x.t(), out.t()
