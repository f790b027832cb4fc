"""The protocol of a device's kernels, and the modules that implement it.

A backend is a module. Its functions are the steps of a block on rows (T, F), forward and backward
(see `rows`); `queries` and `update` combine them. A function writes its arguments in place only
if its docstring says so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from ..constants import traced_as_constant
from . import cpu, cuda
from .plan import BlockMaps, BlockPlan, HeadLayout, Sizes, read_plan
from .rows import Blocks, Columns, LinearPlan, linear_plan


class WeightGradients(Protocol):
    """Gradients of the parameters of several maps."""

    def add(self, i: int, x: Tensor, g: Tensor) -> None:
        """Add the gradient of map i, from its input x and the gradient g of its output."""

    def collect(self) -> Tensor:
        """The gradients of all maps' parameters, concatenated."""


class Backend(Protocol):
    """The steps of a block on one type of device.

    `ready` and `always` concern TF32 and are ignored on CPUs. With `ready`, rows and weights are
    already rounded to TF32. With `always=False`, `norm_backward`'s second output is empty if it
    equals the first. `gates`: how many multivectors have gates of their own, all or the first half;
    the second half then takes those of the first.
    """

    SMALL_SET: int
    """Largest set of `small_attention`."""
    RECOMPUTE: int
    """From this number of items on, the backward pass recomputes cheap results to save memory."""

    # ---- columns of rows that the backend chooses ----
    def qkv_columns(self, heads: HeadLayout) -> Columns: ...
    def reinsert_columns(self, heads: HeadLayout, values: bool) -> Columns: ...
    def output_columns(self, heads: HeadLayout) -> Columns: ...
    def bilinear_columns(self, channels: int) -> Columns: ...
    def normed_width(self, sizes: Sizes) -> int: ...

    # ---- weights and linear maps ----
    def prepared_size(self, plan: LinearPlan) -> int: ...
    def prepare(
        self, parameters: Sequence[Tensor], blocks: Blocks, dtype: torch.dtype
    ) -> Tensor: ...
    def linear(
        self, x: Tensor, prepared: Tensor, plan: LinearPlan, *, ready: bool = True
    ) -> Tensor: ...
    def add_linear(
        self, y: Tensor, x: Tensor, prepared: Tensor, plan: LinearPlan, heads: HeadLayout
    ) -> Tensor: ...
    def linear_input_gradient(
        self, g: Tensor, prepared: Tensor, plan: LinearPlan, width: int, *, ready: bool = True
    ) -> Tensor: ...
    def reinsert_input_gradient(
        self, g: Tensor, prepared: Tensor, plan: LinearPlan, heads: HeadLayout
    ) -> tuple[Tensor, Tensor]: ...
    def weight_gradients(self, plans: tuple[LinearPlan, ...], like: Tensor) -> WeightGradients: ...

    # ---- what is between the linear maps ----
    def norm(
        self, x: Tensor, delta: Tensor, sizes: Sizes, epsilon: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def norm_backward(
        self, g_new: Tensor | None, g_y: Tensor, y: Tensor, stat: Tensor, sizes: Sizes,
        delta_dtype: torch.dtype, *, always: bool = True,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    def features(
        self, raw: Tensor, rotary: Tensor | None, heads: HeadLayout, weights: list[Tensor | None],
        epsilon: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
    def features_backward(
        self, raw: Tensor, rotary: Tensor | None, g_q: Tensor, g_k: Tensor, g_v: Tensor,
        heads: HeadLayout, weights: list[Tensor | None], epsilon: float,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip
    def summed(self, parts: Tensor) -> Tensor: ...
    def small_attention(
        self, q: Tensor, k: Tensor, v: Tensor, items: int, step: int, scale: float
    ) -> Tensor: ...
    def small_attention_backward(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, step: int, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def bilinear(self, p: Tensor, y: Tensor, reference: Tensor, sizes: Sizes) -> Tensor: ...
    def bilinear_backward(
        self, p: Tensor, y: Tensor, reference: Tensor, g: Tensor, sizes: Sizes,
        needs_reference: bool,
    ) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip
    def gate(self, x: Tensor, sizes: Sizes, gates: int, activation: int) -> Tensor: ...
    def gate_backward(
        self, x: Tensor, g: Tensor, sizes: Sizes, gates: int, activation: int
    ) -> tuple[Tensor, Tensor]: ...
    def add_scalars(self, y: Tensor, x: Tensor, count: int) -> None: ...

    def one_pass(self) -> AbstractContextManager[None]:
        """Within: only steps on rows of the same items, and only these steps read their results.

        A backend may defer them to the end, and run them in any order that gives the same results.
        """


BACKENDS: dict[str, Backend] = {"cuda": cuda, "cpu": cpu}
"""The backends by device type."""


def backend(x: Tensor) -> Backend:
    """The kernels for x's device."""
    return BACKENDS[x.device.type]


@functools.lru_cache(maxsize=1024)
def linear_plans(plan: BlockPlan, device: str) -> BlockMaps[LinearPlan]:
    """The linear maps of a block, between the columns that the device's backend chooses."""
    be, heads, c, s = BACKENDS[device], plan.heads, plan.mv, plan.s
    total = heads.total
    types, reinsert = plan.types, None
    if plan.reinsert_mv or plan.reinsert_s:
        reinsert = linear_plan(
            plan.reinsert_mv, plan.reached * heads.mv, plan.reinsert_s, plan.reached * heads.s,
            bias=False, outputs=be.reinsert_columns(heads, plan.reinsert_values),
            types=types.reinsert,
        )  # fmt: skip
    return BlockMaps(
        output=linear_plan(
            heads.queries * heads.mv, c, heads.queries * heads.s, s,
            inputs=be.output_columns(heads), types=types.output,
        ),
        qkv=linear_plan(
            c, total * heads.mv, s, total * heads.s, outputs=be.qkv_columns(heads), types=types.qkv
        ),
        inputs=linear_plan(c, 4 * c, s, 0, outputs=be.bilinear_columns(c), types=types.inputs),
        wide=linear_plan(2 * c, 2 * c, s, 2 * s, types=types.wide),
        last=linear_plan(2 * c, c, 2 * s, s, types=types.last),
        reinsert=reinsert,
    )  # fmt: skip


@traced_as_constant
def prepared_sizes(text: str, device: str) -> list[int]:
    """Elements of each map's prepared weights. Tracers treat the plan's text as a constant."""
    plan = read_plan(text)
    plans = (plan,) if isinstance(plan, LinearPlan) else linear_plans(plan, device).every
    return [BACKENDS[device].prepared_size(p) for p in plans]
