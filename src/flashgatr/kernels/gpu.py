"""The steps of a block on a CUDA device: dense products by the vendor's library, everything between them by Triton.

Rows lie one after another in memory. A linear map is one product with its dense matrix (most of it zeros, which cost
nothing at these widths), attention reads queries, keys and values as the features kernel left them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..algebra import BLADES, EUCLIDEAN
from .launch import Bound, kernels
from .rows import (
    ALIGN,
    ATTENDED,
    FACTORS,
    ZERO,
    Blocks,
    Columns,
    LinearPlan,
    columns,
    dense_table,
    head_columns,
    inverse_table,
    nothing,
    parameter_factors,
)

if TYPE_CHECKING:
    from .plan import Heads, Sizes

SMALL_SET = 8
"""Sets of up to this many items are attended to within registers."""
ONES = 8
"""Columns beyond the features that normalised, gated and multiplied rows have: a one, and zeros up to alignment.

The one turns a map's bias into a row of its matrix, and the bias' gradient into a row of the matrix' gradient.
"""
FEW_ROWS = 512
"""Up to so many rows, float32 products in TF32 are made by a kernel of our own."""
RECOMPUTE = 4096
"""From so many items on, memory counts more than a product: what is cheap to make again is not saved."""
_KEPT = 1024
"""Launches of a kind that are kept: one for every number of items, mostly."""
_FILL = 132 * 4
"""So many programs keep an H100 or H200 busy."""


def qkv_columns(heads: Heads) -> Columns:
    """Queries, keys, values, each aligned; of queries and keys only what attention reads."""
    blades = ATTENDED if heads.aware else EUCLIDEAN
    h, hk = heads.queries, heads.keys
    q = head_columns(range(h), heads.mv, heads.s, blades)
    k = head_columns(range(h, h + hk), heads.mv, heads.s, blades)
    v = head_columns(range(h + hk, h + 2 * hk), heads.mv, heads.s)
    return q.aligned() + k.aligned() + v.aligned()


def reinsert_columns(heads: Heads, values: bool) -> Columns:
    """As `qkv_columns`, for channels that reach queries and keys, and values only if told."""
    every = qkv_columns(heads)
    if values:
        return every
    start = len(every) - _aligned(heads.keys * heads.values)
    rest = len(every) - start
    return Columns(every.blade[:start], every.channel[:start]) + nothing(rest)


def output_columns(heads: Heads) -> Columns:
    return head_columns(range(heads.queries), heads.mv, heads.s)


def bilinear_columns(channels: int) -> Columns:
    """Four groups of channels, one after another."""
    empty = Columns((), ())
    groups = (columns(range(i * channels, (i + 1) * channels), range(0)) for i in range(4))
    return sum(groups, empty)


@cache  # captured graphs read the tables' memory: it must not be given back
def _on_device(make: object, plan: object, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.device("cpu"):
        return make(plan).to(device)  # type: ignore[operator, no-any-return]


@cache
def _tables(blocks: Blocks, device: torch.device) -> Tensor:
    """The table of several blocks, and of each: a captured step prepares them one by one, and cannot bring them to the device."""
    tables = [_on_device(_prepare_table, plans, device) for plans in blocks]
    return tables[0] if len(tables) == 1 else _on_device(_table_of_all, blocks, device)


def _table_of_all(blocks: Blocks) -> Tensor:
    return _prepare_table(tuple(plan for plans in blocks for plan in plans))


def _prepare_table(plans: tuple[LinearPlan, ...]) -> Tensor:
    """Where the numbers of matrices come from: one table for maps whose parameters follow one another."""
    found, start = [], 0
    for plan in plans:
        table = _padded_table(plan).flatten()
        found.append(torch.where(table == ZERO, table, table + 16 * start))
        start += plan.parameters
    return torch.cat(found).int()


@cache
def _factors(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(FACTORS, device=device)


def prepared_size(plan: LinearPlan) -> int:
    return (len(plan.inputs) + ONES) * len(plan.outputs)


def normed_width(sizes: Sizes) -> int:
    """Columns of normalised rows."""
    return sizes.width + ONES


def _padded_table(plan: LinearPlan) -> Tensor:
    """The dense table with the rows that belong to the last ONES columns of the input."""
    table = dense_table(plan)
    more = torch.full((ONES - 1, table.shape[1]), ZERO, dtype=table.dtype)
    return torch.cat([table, more])


def prepare(parameters: Sequence[Tensor], blocks: Blocks, dtype: torch.dtype) -> Tensor:
    """The dense matrices of all maps, one after another; in TF32 where products are, as the small ones expect."""
    theta = _concatenated(parameters)
    table = _tables(blocks, theta.device)
    out = torch.empty(table.numel(), dtype=dtype, device=theta.device)
    grid = (math.ceil(table.numel() / 1024),)
    rounded = dtype == torch.float32 and in_tf32()
    kernels.prepare[grid](
        theta, table, _factors(theta.device), out, table.numel(), ROUND=rounded, BLOCK=1024
    )
    return out


def in_tf32() -> bool:
    """Whether products of float32 numbers may be made of TF32's."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:
        # It was said by torch's newer settings, after which the older ones cannot be read.
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def _rounds(rows: Tensor) -> bool:
    """Whether products of these rows are our own in TF32, whose kernel expects numbers that are rounded already."""
    return 0 < rows.shape[0] <= FEW_ROWS and rows.dtype == torch.float32 and in_tf32()


def _concatenated(parameters: Sequence[Tensor]) -> Tensor:
    """All parameters as one vector: a view if they are neighbours in memory, as a flat optimiser makes them."""
    first, end = parameters[0], parameters[0].data_ptr()
    for p in parameters:
        if p.data_ptr() != end or p.dtype != first.dtype or not p.is_contiguous():
            return _copied(parameters)
        end += p.numel() * p.element_size()
    total = sum(p.numel() for p in parameters)
    if first.untyped_storage().nbytes() < first.storage_offset() * first.element_size() + (
        total * first.element_size()
    ):  # neighbours by chance, in separate allocations
        return _copied(parameters)
    return first.as_strided((total,), (1,))


def _copied(parameters: Sequence[Tensor]) -> Tensor:
    return torch._C._nn.flatten_dense_tensors(list(parameters))


def _matrix(prepared: Tensor, plan: LinearPlan) -> Tensor:
    return prepared.view(len(plan.inputs) + ONES, len(plan.outputs))


def linear(x: Tensor, prepared: Tensor, plan: LinearPlan, *, ready: bool = True) -> Tensor:
    """The map of rows. ready: where TF32 is used, x and the weights are numbers of it, as all kernels here write them."""
    matrix, width = _matrix(prepared, plan), len(plan.inputs)
    if x.shape[1] > width:
        return _product(x, matrix, ready=ready)
    return _product(x, matrix[:width], matrix[width] if plan.bias else None, ready=ready)


def _product(
    x: Tensor,
    matrix: Tensor,
    bias: Tensor | None = None,
    *,
    ready: bool = True,
    rounds: bool = False,
) -> Tensor:
    """x matrix + bias. The vendor's library shines on large products; on a few hundred rows it leaves the chip idle.

    rounds: the result, too, is to be numbers of TF32 where that is used.
    """
    if not _rounds(x):
        return x @ matrix if bias is None else torch.addmm(bias, x, matrix)
    m, n = x.shape[0], matrix.shape[1]
    x = x.contiguous()
    out = torch.empty(m, n, device=x.device)
    kernel = _small_product(m, *matrix.shape, *matrix.stride(), bias is not None, ready, rounds)
    kernel(x, matrix, x if bias is None else bias, out, m)
    return out


@lru_cache(maxsize=_KEPT)
def _small_product(
    m: int, k: int, n: int, row: int, column: int, has_bias: bool, ready: bool, rounds: bool
) -> Bound:
    tile = _product_tile(m, n)
    return kernels.small_product.bound(  # type: ignore[no-any-return]
        (math.ceil(m / tile["BM"]), math.ceil(n / tile["BN"])),
        N=n, K=k, b_row=row, b_column=column, HAS_BIAS=has_bias, READY=ready, ROUND=rounds, **tile,
    )  # fmt: skip


def _product_tile(rows: int, columns: int) -> dict[str, int]:
    """Tiles that give every multiprocessor something to do (tried on an H200)."""
    if rows <= 16:
        return dict(BM=16, BN=16, BK=128, num_stages=3, num_warps=4)
    side = 32 if columns < 1024 else 64
    return dict(BM=side, BN=side, BK=64, num_stages=4, num_warps=4)


def add_linear(y: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan, heads: Heads) -> Tensor:
    """y + map of x, in place."""
    return y.addmm_(x, _matrix(prepared, plan)[: x.shape[1]])


def linear_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, width: int, *, ready: bool = True
) -> Tensor:
    """Gradient of the first `width` columns of the input; see `linear`. Of a map by itself it may go into products."""
    return _product(g, _matrix(prepared, plan)[:width].t(), ready=ready, rounds=not ready)


def reinsert_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, heads: Heads
) -> tuple[Tensor, Tensor]:
    """Gradient of re-inserted rows, and the part of g that their weights' gradient needs."""
    return linear_input_gradient(g, prepared, plan, len(plan.inputs)), g


@lru_cache(maxsize=64)
def _gather_table(plans: tuple[LinearPlan, ...]) -> Tensor:
    """`inverse_table` of several maps whose matrices follow one another."""
    tables, start = [], 0
    for plan in plans:
        table = inverse_table(plan).long()
        tables.append(torch.where(table < 0, table, table + start))
        start += prepared_size(plan)
    most = max(table.shape[1] for table in tables)
    wide = [torch.nn.functional.pad(x, (0, most - x.shape[1]), value=-1) for x in tables]
    return torch.cat(wide).int()


@lru_cache(maxsize=64)
def _all_factors(plans: tuple[LinearPlan, ...]) -> Tensor:
    return torch.cat([parameter_factors(plan) for plan in plans])


class SideStream:
    """Prepares weights, and computes their gradients, beside the rest of a step that is captured as a CUDA graph.

    Small products leave most of the GPU idle, and nothing in the backward pass waits for a weight's gradient. Whatever
    was given to the side stream is kept alive until `join`.
    """

    active: SideStream | None = None

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream or torch.cuda.Stream()
        self.kept: list[Tensor] = []

    @contextlib.contextmanager
    def running(self, *used: Tensor) -> Iterator[None]:
        """Within: on the side stream, after what the current one has done so far."""
        self.kept.extend(used)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """From here on the current stream sees the gradients."""
        if self.kept:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()


@contextlib.contextmanager
def beside(stream: torch.cuda.Stream | None = None) -> Iterator[SideStream]:
    """Within: gradients of weights go to a side stream (this one, or a new one), which must be joined before they are used.

    Graphs that are replayed at the same time need streams of their own: libraries keep their workspaces per stream.
    """
    side = SideStream.active = SideStream(stream)
    try:
        yield side
    finally:
        SideStream.active = None


@lru_cache(maxsize=64)
def _starts(plans: tuple[LinearPlan, ...]) -> tuple[int, ...]:
    """Where the matrices begin that follow one another, and where the last one ends."""
    return (0, *itertools.accumulate(prepared_size(plan) for plan in plans))


class WeightGradients:
    """Gradients of the parameters of several maps: one product each, then one gather for all."""

    def __init__(self, plans: tuple[LinearPlan, ...], like: Tensor) -> None:
        self.plans = plans
        self.starts = _starts(plans)
        self.dense = torch.empty(self.starts[-1], dtype=like.dtype, device=like.device)

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """The gradient of map i: x went in, g is the gradient of what came out."""
        with _beside(x, g, self.dense):
            width, columns = x.shape[1], g.shape[1]
            start, plan = self.starts[i], self.plans[i]
            torch.mm(x.t(), g, out=self.dense.as_strided((width, columns), (columns, 1), start))
            if plan.bias and width == len(plan.inputs):
                _column_sums(g, self.dense.as_strided((columns,), (1,), start + width * columns))

    def collect(self) -> Tensor:
        """One after another, float32."""
        table = _on_device(_gather_table, self.plans, self.dense.device)
        factors = _on_device(_all_factors, self.plans, self.dense.device)
        out = torch.empty(table.shape[0], device=self.dense.device)
        if table.shape[0]:
            with _beside(out):
                kernels.collapse[(math.ceil(table.shape[0] / 256),)](
                    self.dense, table, factors, out, table.shape[0], MOST=table.shape[1], BLOCK=256
                )
        return out


_HERE = contextlib.nullcontext()


def _beside(*used: Tensor) -> contextlib.AbstractContextManager[None]:
    """Within: on the side stream, if there is one."""
    side = SideStream.active
    return _HERE if side is None else side.running(*used)


def _column_sums(x: Tensor, out: Tensor) -> None:
    """out = x.sum(0), in float32 and always in the same order."""
    items, width = x.shape
    loops = 16
    parts = math.ceil(items / (16 * loops))
    target = out if parts <= 1 else torch.empty(parts, width, device=x.device)
    if items:
        kernels.column_sums[parts, math.ceil(width / 64)](
            x, target, items, F=width, COLUMNS=64, ITEMS=16, LOOPS=loops
        )
    else:
        out.zero_()
    if parts > 1:
        _column_sums(target, out)


def _tile(sizes: Sizes, items: int) -> dict[str, int]:
    mv, s = _power(BLADES * sizes.mv), _power(max(sizes.s, 1))
    most = 1 << max(min(4096 // (mv + s), 16), 1).bit_length() - 1
    return dict(ITEMS=min(_power(max(items // _FILL, 1)), most), MV=mv, SC=s)


def _power(n: int) -> int:
    """The next power of two."""
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
        kernel = _norm("forward", sizes, items, ROUND=_rounds(y))
        kernel(x, delta, new, y, stat, items, epsilon)
    return new, y, stat


@lru_cache(maxsize=_KEPT)
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
    """Gradient of x, and of delta in its dtype, as products want it; unless always, empty where that is the same."""
    items = y.shape[0]
    out = torch.empty(items, sizes.width, device=y.device)
    has_low = always or delta_dtype != out.dtype or _rounds(out)
    low = torch.empty_like(out, dtype=delta_dtype) if has_low else out.new_empty(0)
    if items:
        has_gx = g_new is not None
        kernel = _norm("backward", sizes, items, ROUND=_rounds(low), HAS_GX=has_gx, HAS_LOW=has_low)
        kernel(y if g_new is None else g_new, g_y, y, stat, out, low, items)
    return out, low


@lru_cache(maxsize=_KEPT)
def _features(direction: str, heads: Heads, items: int, *learned: bool, **flags: bool) -> Bound:
    """learned: alpha, beta, gamma."""
    arguments = _head_arguments(heads, learned, items)
    kernel = getattr(kernels, f"features_{direction}")
    grid = (_programs(heads, items), heads.queries + 2 * heads.keys)
    return kernel.bound(grid, **arguments, **flags)  # type: ignore[no-any-return]


def _programs(heads: Heads, items: int) -> int:
    return math.ceil(items / _items_per_program(items, heads))


def _head_arguments(heads: Heads, learned: Sequence[bool], items: int) -> dict[str, object]:
    width = heads.s + heads.mv * (len(ATTENDED) if heads.aware else len(EUCLIDEAN))
    values = heads.s + BLADES * heads.mv
    k_at = _aligned(heads.queries * width)
    v_at = k_at + _aligned(heads.keys * width)
    plain = width - 4 * heads.mv if heads.aware else width
    return dict(
        R=v_at + _aligned(heads.keys * values), K_AT=k_at, V_AT=v_at,
        H=heads.queries, HK=heads.keys, CM=heads.mv, SH=heads.s,
        WIDTH=width, D=heads.features, DV=values, AWARE=heads.aware,
        HAS_ALPHA=learned[0], HAS_BETA=learned[1], HAS_GAMMA=learned[2],
        ITEMS=_items_per_program(items, heads), PLAIN=_power(max(plain, 1)),
        CHANNELS=_power(heads.mv), VALUES=_power(values),
    )  # fmt: skip


def _items_per_program(items: int, heads: Heads) -> int:
    programs = heads.queries + 2 * heads.keys
    return min(max(_power(items * programs // (132 * 16)), 4), 32)


def _aligned(n: int) -> int:
    return n + -n % ALIGN


def features(
    raw: Tensor, heads: Heads, weights: list[Tensor | None], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (T, H, D), keys (T, HK, D) and values (T, HK, V) from the projected rows."""
    items = raw.shape[0]
    values = heads.s + BLADES * heads.mv
    q = raw.new_empty(items, heads.queries, heads.features)
    k = raw.new_empty(items, heads.keys, heads.features)
    v = raw.new_empty(items, heads.keys, values)
    if items:
        kernel = _features("forward", heads, items, *(w is not None for w in weights))
        given = [raw if w is None else w for w in weights]
        kernel(raw, q, k, v, *given, items, epsilon)
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
    """Gradient of the projected rows, and of the logarithms of beta (H, C), alpha (H), gamma (H) in parts to be summed."""
    items = raw.shape[0]
    out = torch.empty_like(raw)
    programs = _programs(heads, items)
    parts = torch.empty(programs, heads.queries * (heads.mv + 2), device=raw.device)
    if items:
        learned = (w is not None for w in weights)
        kernel = _features("backward", heads, items, *learned, ROUND=_rounds(out))
        given = [raw if w is None else w for w in weights]
        outer = g_q.contiguous(), g_k.contiguous(), g_v.contiguous()
        kernel(raw, *outer, out, *given, parts, items, epsilon)
    return out, parts


def summed(parts: Tensor) -> Tensor:
    """Of what `features_backward` found."""
    total = torch.empty(parts.shape[1], device=parts.device)
    with _beside(parts, total):
        _column_sums(parts, total)
    return total


def add_scalars(y: Tensor, x: Tensor, count: int) -> None:
    """The first columns of x added to those of y, in place."""
    y[:, :count] += x[:, :count]


def together() -> contextlib.AbstractContextManager[None]:
    """Here kernels wait for nobody anyway."""
    return contextlib.nullcontext()


def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    """Attention within consecutive sets of `items` items."""
    total, heads, _ = q.shape
    out = v.new_empty(total, heads, v.shape[-1])
    if total:
        shapes = q.shape, k.shape[1], v.shape[2]
        kernel = _small_attention("forward", *shapes, items, heads, ROUND=_rounds(out))
        kernel(q, k, v, out, items, scale)
    return out


def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    g_q, g_k, g_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if q.shape[0]:
        shapes = q.shape, k.shape[1], v.shape[2]
        kernel = _small_attention("backward", *shapes, items, k.shape[1])
        kernel(q, k, v, g, g_q, g_k, g_v, items, scale)
    return g_q, g_k, g_v


@lru_cache(maxsize=_KEPT)
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
    """Rows of (B, items, C, 16) and (B, items, S), moved so that the centre of every sample is the origin."""
    samples, items, c, _ = mv.shape
    total = samples * items
    out = torch.empty(total, s.shape[-1] + BLADES * c, device=mv.device)
    if total:
        block = _block(total * c)
        grid = (math.ceil(total * c / block["BLOCK"]), 2 if s.shape[-1] else 1)
        kernels.enter[grid](mv, s, center, out, total, items, C=c, S=s.shape[-1], **block)
    return out


def leave(x: Tensor, center: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Multivectors (T, C, 16) and scalars (T, S) of rows, moved back."""
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
    """Scalars of y, products and joins of the four parts of p."""
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out = p.new_empty(items, sizes.s + 2 * BLADES * channels + ONES)
    if items:
        kernel = _bilinear("forward", items, channels, sizes.s, FY=y.shape[1], ROUND=_rounds(out))
        kernel(p, y, reference, out, items)
    return out


@lru_cache(maxsize=_KEPT)
def _bilinear(direction: str, items: int, channels: int, scalars: int, **flags: int) -> Bound:
    block = _block(items * channels)
    kernel = getattr(kernels, f"bilinear_{direction}")
    parts = (1 if direction == "forward" else 2) + (1 if scalars else 0)
    grid = (math.ceil(items * channels / block["BLOCK"]), parts)
    return kernel.bound(grid, C=channels, S=scalars, ONES=ONES, **flags, **block)  # type: ignore[no-any-return]


def bilinear_backward(
    p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes, needs_reference: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of p, the layer's output again, and the gradient of the reference."""
    items, channels = p.shape[0], p.shape[1] // (4 * BLADES)
    out, g_p = g.new_empty(items, g.shape[1] + ONES), torch.empty_like(p)
    g_ref = reference.new_zeros(items, channels) if needs_reference else reference
    if items:
        flags = dict(FY=y.shape[1], HAS_GREF=needs_reference, ROUND=_rounds(g_p))
        kernel = _bilinear("backward", items, channels, sizes.s, **flags)
        kernel(p, y, reference, g, g_p, out, g_ref, items)
    return g_p, out, g_ref.sum(-1) if needs_reference else reference.new_zeros(0)


def gate(x: Tensor, sizes: Sizes, activation: int) -> Tensor:
    items = x.shape[0]
    out = x.new_empty(items, sizes.width + ONES)
    if items:
        _gate("forward", items, sizes, activation, _rounds(out))(x, out, items)
    return out


@lru_cache(maxsize=_KEPT)
def _gate(direction: str, items: int, sizes: Sizes, activation: int, rounds: bool) -> Bound:
    block = _block(items * sizes.mv)
    kernel = getattr(kernels, f"gate_{direction}")
    grid = (math.ceil(items * sizes.mv / block["BLOCK"]), 2 if sizes.s else 1)
    return kernel.bound(  # type: ignore[no-any-return]
        grid, C=sizes.mv, S=sizes.s, ONES=ONES, ACT=activation, ROUND=rounds, **block
    )


def gate_backward(x: Tensor, g: Tensor, sizes: Sizes, activation: int) -> tuple[Tensor, Tensor]:
    """Gradient of x, and the gate's output again."""
    items = x.shape[0]
    g_x, out = torch.empty_like(x), x.new_empty(items, sizes.width + ONES)
    if items:
        _gate("backward", items, sizes, activation, _rounds(out))(x, g, g_x, out, items)
    return g_x, out


def _block(elements: int) -> dict[str, int]:
    """Elements per program: few when there are few, to use the whole chip."""
    block = 128
    while block > 32 and elements // block < _FILL:
        block //= 2
    return dict(BLOCK=block, num_warps=block // 32)
