"""Weights and linear maps on CUDA: dense products, their gradients, and the columns of rows.

A linear map is one product with its dense matrix; its many zeros cost nothing at these widths.
cuBLAS computes large products, a Triton kernel small ones in TF32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor

from ... import shortcuts
from ...algebra import EUCLIDEAN
from ..plan import HeadLayout, Sizes
from ..rows import (
    ALIGN,
    ATTENDED,
    ENTRY,
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
from .compiled import kernels
from .launch import Bound
from .side_stream import on_side_stream

ONES = 8
"""Extra columns of the rows that enter a map (normalised, gated, multiplied): a one, then zeros.

The one makes a map's bias a row of its matrix, and the bias's gradient a row of the matrix's
gradient. The zeros preserve alignment.
"""
FEW_ROWS = 512
"""Up to this number of rows, our own kernel computes float32 products in TF32."""
KEPT = 1024
"""Size of the caches of bound kernels, which mostly have one entry per number of items."""


def qkv_columns(heads: HeadLayout) -> Columns:
    """Queries, keys and values, each aligned; queries and keys have only the blades in use."""
    blades = ATTENDED if heads.distance_aware else EUCLIDEAN
    h, hk = heads.queries, heads.keys
    q = head_columns(range(h), heads.mv, heads.s, blades)
    k = head_columns(range(h, h + hk), heads.mv, heads.s, blades)
    v = head_columns(range(h + hk, h + 2 * hk), heads.mv, heads.s)
    return q.aligned() + k.aligned() + v.aligned()


def reinsert_columns(heads: HeadLayout, values: bool) -> Columns:
    """The columns of `qkv_columns`, with padding in place of values unless `values`."""
    every = qkv_columns(heads)
    if values:
        return every
    start = len(every) - aligned(heads.keys * heads.values)
    rest = len(every) - start
    return Columns(every.blade[:start], every.channel[:start]) + nothing(rest)


def output_columns(heads: HeadLayout) -> Columns:
    return head_columns(range(heads.queries), heads.mv, heads.s)


def bilinear_columns(channels: int) -> Columns:
    """Four groups of channels, one after another."""
    empty = Columns((), ())
    groups = (columns(range(i * channels, (i + 1) * channels), range(0)) for i in range(4))
    return sum(groups, empty)


def aligned(n: int) -> int:
    """The next multiple of ALIGN."""
    return n + -n % ALIGN


@cache  # captured graphs read the tables' memory, so it must never be freed
def _on_device(make: object, plan: object, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.device("cpu"):
        return make(plan).to(device)  # type: ignore[operator, no-any-return]


@cache
def _tables(blocks: Blocks, device: torch.device) -> Tensor:
    """The table of several blocks.

    The tables of the single blocks are made, too: a captured step needs them, but cannot copy
    them to the device.
    """
    tables = [_on_device(_prepare_table, plans, device) for plans in blocks]
    return tables[0] if len(tables) == 1 else _on_device(_table_of_all, blocks, device)


def _table_of_all(blocks: Blocks) -> Tensor:
    return _prepare_table(tuple(plan for plans in blocks for plan in plans))


def _prepare_table(plans: tuple[LinearPlan, ...]) -> Tensor:
    """One table for the matrices of several maps, whose parameters are concatenated."""
    found, start = [], 0
    for plan in plans:
        table = _padded_table(plan).flatten()
        found.append(torch.where(table == ZERO, table, table + ENTRY * start))
        start += plan.parameters
    return torch.cat(found).int()


@cache
def _factors(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(FACTORS, device=device)


def prepared_size(plan: LinearPlan) -> int:
    return (len(plan.inputs) + ONES) * len(plan.outputs)


def normed_width(sizes: Sizes) -> int:
    """Number of columns of normalised rows."""
    return sizes.width + ONES


def _padded_table(plan: LinearPlan) -> Tensor:
    """The dense table with rows for the ONES extra columns of the input."""
    table = dense_table(plan)
    more = torch.full((ONES - 1, table.shape[1]), ZERO, dtype=table.dtype)
    return torch.cat([table, more])


def prepare(parameters: Sequence[Tensor], blocks: Blocks, dtype: torch.dtype) -> Tensor:
    """The dense matrices of all maps, concatenated; rounded to TF32 if products use it."""
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
    """Whether products of float32 matrices may be computed in TF32."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:
        # After a change of torch's newer setting, the older one cannot be read.
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def feeds_small_product(rows: Tensor) -> bool:
    """Whether our own TF32 kernel computes products of these rows; it expects rounded numbers."""
    return 0 < rows.shape[0] <= FEW_ROWS and rows.dtype == torch.float32 and in_tf32()


def _concatenated(parameters: Sequence[Tensor]) -> Tensor:
    """All parameters as one vector: a view if they are contiguous, as flat optimisers make them."""
    first, end = parameters[0], parameters[0].data_ptr()
    for p in parameters:
        if p.data_ptr() != end or p.dtype != first.dtype or not p.is_contiguous():
            return shortcuts.flatten(list(parameters))
        end += p.numel() * p.element_size()
    total = sum(p.numel() for p in parameters)
    if first.untyped_storage().nbytes() < first.storage_offset() * first.element_size() + (
        total * first.element_size()
    ):  # adjacent by chance, in separate allocations
        return shortcuts.flatten(list(parameters))
    return first.as_strided((total,), (1,))


def _matrix(prepared: Tensor, plan: LinearPlan) -> Tensor:
    return prepared.view(len(plan.inputs) + ONES, len(plan.outputs))


def linear(x: Tensor, prepared: Tensor, plan: LinearPlan, *, ready: bool = True) -> Tensor:
    """Apply the map to rows. ready: if TF32 is used, x is rounded to it already."""
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
    """x matrix + bias: by cuBLAS, or by our kernel for a few hundred rows, where cuBLAS is slow.

    ready: see `linear`. rounds: round the result to TF32, too, if TF32 is used.
    """
    if not feeds_small_product(x):
        return x @ matrix if bias is None else torch.addmm(bias, x, matrix)
    m, n = x.shape[0], matrix.shape[1]
    x = x.contiguous()
    out = torch.empty(m, n, device=x.device)
    kernel = _small_product(m, *matrix.shape, *matrix.stride(), bias is not None, ready, rounds)
    kernel(x, matrix, x if bias is None else bias, out, m)
    return out


@lru_cache(maxsize=KEPT)
def _small_product(
    m: int, k: int, n: int, row: int, column: int, has_bias: bool, ready: bool, rounds: bool
) -> Bound:
    tile = _product_tile(m, n)
    return kernels.small_product.bound(
        (math.ceil(m / tile["BM"]), math.ceil(n / tile["BN"])),
        N=n, K=k, b_row=row, b_column=column, HAS_BIAS=has_bias, READY=ready, ROUND=rounds, **tile,
    )  # fmt: skip


def _product_tile(rows: int, columns: int) -> dict[str, int]:
    """Tile sizes that keep all multiprocessors busy (measured on an H200)."""
    if rows <= 16:
        return dict(BM=16, BN=16, BK=128, num_stages=3, num_warps=4)
    side = 32 if columns < 1024 else 64
    return dict(BM=side, BN=side, BK=64, num_stages=4, num_warps=4)


def add_linear(
    y: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan, heads: HeadLayout
) -> Tensor:
    """Add the map of x to y, in place."""
    return y.addmm_(x, _matrix(prepared, plan)[: x.shape[1]])


def linear_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, width: int, *, ready: bool = True
) -> Tensor:
    """Gradient of the first `width` columns of the input; `ready` as for `linear`.

    For a standalone map (not `ready`) the result is rounded to TF32: a product may consume it.
    """
    return _product(g, _matrix(prepared, plan)[:width].t(), ready=ready, rounds=not ready)


def reinsert_input_gradient(
    g: Tensor, prepared: Tensor, plan: LinearPlan, heads: HeadLayout
) -> tuple[Tensor, Tensor]:
    """Gradient of the re-inserted rows, and the part of g that their weights' gradient needs."""
    return linear_input_gradient(g, prepared, plan, len(plan.inputs)), g


@lru_cache(maxsize=64)
def _gather_table(plans: tuple[LinearPlan, ...]) -> Tensor:
    """`inverse_table` of several maps whose matrices are concatenated."""
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


@lru_cache(maxsize=64)
def _starts(plans: tuple[LinearPlan, ...]) -> tuple[int, ...]:
    """Where each of the concatenated matrices begins, and where the last one ends."""
    return (0, *itertools.accumulate(prepared_size(plan) for plan in plans))


class _WeightGradients:
    """Gradients of the parameters of several maps: one product each, then one gather for all."""

    def __init__(self, plans: tuple[LinearPlan, ...], like: Tensor) -> None:
        self.plans = plans
        self.starts = _starts(plans)
        self.dense = torch.empty(self.starts[-1], dtype=like.dtype, device=like.device)

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """Add the gradient of map i, from its input x and the gradient g of its output."""
        with on_side_stream(x, g, self.dense):
            width, columns = x.shape[1], g.shape[1]
            start, plan = self.starts[i], self.plans[i]
            torch.mm(x.t(), g, out=self.dense.as_strided((width, columns), (columns, 1), start))
            if plan.bias and width == len(plan.inputs):
                column_sums(g, self.dense.as_strided((columns,), (1,), start + width * columns))

    def collect(self) -> Tensor:
        """The gradients of all maps' parameters, concatenated, in float32."""
        table = _on_device(_gather_table, self.plans, self.dense.device)
        factors = _on_device(_all_factors, self.plans, self.dense.device)
        out = torch.empty(table.shape[0], device=self.dense.device)
        if table.shape[0]:
            with on_side_stream(out):
                kernels.collapse[(math.ceil(table.shape[0] / 256),)](
                    self.dense, table, factors, out, table.shape[0], MOST=table.shape[1], BLOCK=256
                )
        return out


def column_sums(x: Tensor, out: Tensor) -> None:
    """out = x.sum(0), in float32 and in a fixed order."""
    items, width = x.shape
    tile = dict(COLUMNS=64, ITEMS=16, LOOPS=16)
    parts = math.ceil(items / (tile["ITEMS"] * tile["LOOPS"]))
    target = out if parts <= 1 else torch.empty(parts, width, device=x.device)
    if items:
        grid = parts, math.ceil(width / tile["COLUMNS"])
        kernels.column_sums[grid](x, target, items, F=width, **tile)
    else:
        out.zero_()
    if parts > 1:
        column_sums(target, out)


def weight_gradients(plans: tuple[LinearPlan, ...], like: Tensor) -> _WeightGradients:
    """Collects the gradients of several maps' parameters; see `backend.WeightGradients`."""
    return _WeightGradients(plans, like)
