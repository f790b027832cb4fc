"""A block as a handful of operators on rows, each with its own backward pass.

    x, y    = norm(x, delta)                    add what the last layer found, normalise
    q, k, v = qkv(y)                            one product, then the features of attention
    delta   = linear(attend(q, k, v))
    x, y    = norm(x, delta)
    delta   = mlp(y)                            product, bilinear layer, product, gate, product

`gpu` and `cpu` implement the steps. What is cheap is computed again in the backward pass instead of saved: the outputs of the
bilinear layer and of the gate, the normalised rows' origin. The layers in `nn` are the plain version of all this; they
serve where these operators do not: see `paths`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algebra import BLADES, EUCLIDEAN
from ..nn.attend import attend
from ..nn.linear import EquiLinear
from ..nn.precision import stream_dtype
from . import cpu, gpu, reference
from .rows import ALIGN, LinearPlan, columns, linear_plan, parameters_of

if TYPE_CHECKING:
    from ..model import GATrBlock, Surroundings

_BACKENDS: dict[str, ModuleType] = {"cuda": gpu, "cpu": cpu}
SMALL_SAMPLE = 1024
"""Multivectors of a sample that one program can survey."""
_ACTIVATIONS = ("gelu", "relu", "sigmoid")
_OUT, _QKV, _INPUTS, _OUTPUT, _LAST, _REINSERT = range(6)  # as registered: neighbours in memory


def backend(x: Tensor) -> ModuleType:
    return _BACKENDS[x.device.type]


@dataclass(frozen=True)
class Sizes:
    """Channels of rows."""

    mv: int
    s: int

    @property
    def width(self) -> int:
        return self.s + BLADES * self.mv


@dataclass(frozen=True)
class Heads:
    """Heads of queries and keys, and the channels of each."""

    queries: int
    keys: int
    mv: int
    s: int
    aware: bool

    @property
    def features(self) -> int:
        """Width of a query: invariants of each multivector, scalars, and zeros up to a multiple of eight."""
        used = self.s + self.mv * (12 if self.aware else len(EUCLIDEAN))
        return used + -used % ALIGN

    @property
    def values(self) -> int:
        return self.s + BLADES * self.mv


@dataclass(frozen=True)
class BlockPlan:
    """Everything static about a block. Operators take it as text."""

    mv: int
    s: int
    queries: int
    keys: int
    head_mv: int
    head_s: int
    aware: int
    activation: int
    reinsert_mv: int
    reinsert_s: int
    reinsert_values: int
    norm_epsilon: float
    distance_epsilon: float

    @property
    def text(self) -> str:
        return " ".join(str(getattr(self, f.name)) for f in fields(self))

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.mv, self.s)

    @property
    def wide(self) -> Sizes:
        return Sizes(2 * self.mv, 2 * self.s)

    @property
    def heads(self) -> Heads:
        return Heads(self.queries, self.keys, self.head_mv, self.head_s, bool(self.aware))


@functools.lru_cache(maxsize=256)
def read_plan(text: str) -> BlockPlan:
    *integers, norm, distance = text.split()
    return BlockPlan(*map(int, integers), float(norm), float(distance))


def block_plan(block: GATrBlock) -> BlockPlan:
    attention, mlp = block.attention, block.mlp
    reinsert = attention.reinsert
    return BlockPlan(
        mv=attention.qkv.in_mv_channels,
        s=attention.qkv.in_s_channels,
        queries=attention.num_heads,
        keys=attention.kv_heads,
        head_mv=attention.widths[0],
        head_s=attention.widths[1],
        aware=int(attention.attention.distance_aware),
        activation=_ACTIVATIONS.index(mlp.gate.activation),
        reinsert_mv=reinsert.in_mv_channels if reinsert is not None else 0,
        reinsert_s=reinsert.in_s_channels if reinsert is not None else 0,
        reinsert_values=int(not attention.multi_query),
        norm_epsilon=block.norm.epsilon,
        distance_epsilon=attention.attention.epsilon,
    )


@functools.lru_cache(maxsize=256)
def _linear_plans(text: str, device: str) -> tuple[LinearPlan, ...]:
    """The linear maps of a block in the order of `_layers`, or the one of a text "linear ..."."""
    if text.startswith("linear"):
        return (linear_plan(*map(int, text.split()[1:])),)
    plan, be = read_plan(text), _BACKENDS[device]
    heads, c, s = plan.heads, plan.mv, plan.s
    total, reached = heads.queries + 2 * heads.keys, heads.queries + heads.keys
    plans = [
        linear_plan(
            heads.queries * heads.mv, c, heads.queries * heads.s, s, inputs=be.output_columns(heads)
        ),
        linear_plan(c, total * heads.mv, s, total * heads.s, outputs=be.qkv_columns(heads)),
        linear_plan(c, 4 * c, s, 0, outputs=be.bilinear_columns(c)),
        linear_plan(2 * c, 2 * c, s, 2 * s),
        linear_plan(2 * c, c, 2 * s, s),
    ]
    if plan.reinsert_mv or plan.reinsert_s:
        reached += heads.keys * plan.reinsert_values
        plans.append(
            linear_plan(
                plan.reinsert_mv,
                reached * heads.mv,
                plan.reinsert_s,
                reached * heads.s,
                bias=False,
                outputs=be.reinsert_columns(heads, bool(plan.reinsert_values)),
            )
        )
    return tuple(plans)


def _layers(block: GATrBlock) -> list[EquiLinear]:
    attention, mlp = block.attention, block.mlp
    layers = [attention.output, attention.qkv, mlp.bilinear.inputs, mlp.bilinear.output, mlp.linear]
    return layers if attention.reinsert is None else [*layers, attention.reinsert]


# ---- weights ----


@torch.library.custom_op("flashgatr::prepare", mutates_args=())
def prepare(parameters: Sequence[Tensor], plan: str, dtype: torch.dtype) -> Tensor:
    """The weights of a block's linear maps as the backend wants them, one after another."""
    theta = _concatenated(parameters)
    plans = _linear_plans(plan, theta.device.type)
    return backend(theta).prepare(theta, plans, dtype)  # type: ignore[no-any-return]


def _concatenated(parameters: Sequence[Tensor]) -> Tensor:
    """All parameters as one vector: a view if they are neighbours in memory, as a flat optimiser makes them."""
    first, end = parameters[0], parameters[0].data_ptr()
    for p in parameters:
        if p.data_ptr() != end or p.dtype != first.dtype or not p.is_contiguous():
            return torch.cat([p.reshape(-1) for p in parameters])
        end += p.numel() * p.element_size()
    total = sum(p.numel() for p in parameters)
    if first.untyped_storage().nbytes() < first.storage_offset() * first.element_size() + (
        total * first.element_size()
    ):  # neighbours by chance, in separate allocations
        return torch.cat([p.reshape(-1) for p in parameters])
    return first.as_strided((total,), (1,))


@prepare.register_fake
def _(parameters: Sequence[Tensor], plan: str, dtype: torch.dtype) -> Tensor:
    first = parameters[0]
    return first.new_empty(sum(_prepared_sizes(plan, first.device.type)), dtype=dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _prepared_sizes(plan: str, device: str) -> list[int]:
    return [_BACKENDS[device].prepared_size(p) for p in _linear_plans(plan, device)]


class Weights:
    """Prepared weights of one block: made anew for every pass, or kept while frozen.

    Nothing tells reliably that parameters changed (fused optimisers and CUDA graphs leave no trace), so weights are kept
    only where somebody said that they stay as they are.
    """

    def __init__(self) -> None:
        self.is_frozen = False
        self._kept: dict[tuple[object, ...], Tensor] = {}
        self._ahead: tuple[Tensor, torch.cuda.Event] | None = None

    def prepare_ahead(self, side: gpu.SideStream, *request: Any) -> None:
        """Make what the next `get` will ask for, beside what the current stream does until then."""
        with side.running():
            self._ahead = self._prepared(*request), torch.cuda.Event()
            self._ahead[1].record()
            side.kept.append(self._ahead[0])

    def freeze(self, frozen: bool) -> None:
        self.is_frozen = frozen
        self._kept.clear()

    def get(self, parameters: list[Tensor], plan: str, dtype: torch.dtype) -> list[Tensor]:
        """One tensor per linear map."""
        if self._ahead is not None:
            flat, made = self._ahead
            torch.cuda.current_stream().wait_event(made)
            self._ahead = None
        else:
            flat = self._prepared(parameters, plan, dtype)
        return list(flat.split(_prepared_sizes(plan, parameters[0].device.type)))

    def _prepared(self, parameters: list[Tensor], plan: str, dtype: torch.dtype) -> Tensor:
        with torch.no_grad():
            if not self.is_frozen or torch.compiler.is_compiling():
                return prepare([p.detach() for p in parameters], plan, dtype)
            key = (plan, dtype, parameters[0].device)
            if key not in self._kept:
                with torch.inference_mode(False):
                    self._kept[key] = prepare([p.detach() for p in parameters], plan, dtype)
            return self._kept[key]


def _per_parameter(flat: Tensor, like: Sequence[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
    """The gradient of concatenated parameters, one by one."""
    parts = flat.split([shape.numel() for shape, _ in like])
    return [part.view(shape).to(dtype) for part, (shape, dtype) in zip(parts, like, strict=True)]


def _kinds(parameters: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(p.shape, p.dtype) for p in parameters]


def _grouped(parameters: Sequence[Tensor], plans: Sequence[LinearPlan]) -> list[list[Tensor]]:
    """The parameters of each map."""
    left, groups = list(parameters), []
    for plan in plans:
        missing, group = plan.parameters, []
        while missing:
            group.append(left.pop(0))
            missing -= group[-1].numel()
        groups.append(group)
    return groups


# ---- norm ----


@torch.library.custom_op("flashgatr::norm", mutates_args=())
def norm(x: Tensor, delta: Tensor, plan: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, the same normalised, and statistics for the backward pass."""
    p = read_plan(plan)
    return backend(x).norm(x, delta, p.sizes, p.norm_epsilon, dtype)  # type: ignore[no-any-return]


@norm.register_fake
def _(x: Tensor, delta: Tensor, plan: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    be = backend(x)
    width = be.normed_width(read_plan(plan).sizes)
    y = be.empty_rows(x.shape[0], width, x, dtype)
    return be.empty_rows(*x.shape, x, x.dtype), y, x.new_empty(x.shape[0], 2)


@torch.library.custom_op("flashgatr::norm_backward", mutates_args=())
def norm_backward(
    g_new: Tensor | None, g_y: Tensor, y: Tensor, stat: Tensor, plan: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gradient of x, and of delta in its dtype (empty if that is the same dtype)."""
    be = backend(y)
    return be.norm_backward(g_new, g_y, y, stat, read_plan(plan).sizes, dtype)  # type: ignore[no-any-return]


@norm_backward.register_fake
def _(
    g_new: Tensor | None, g_y: Tensor, y: Tensor, stat: Tensor, plan: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows, shape = backend(y).empty_rows, (y.shape[0], read_plan(plan).sizes.width)
    stream = stream_dtype(y.dtype)
    low = y.new_empty(0) if dtype == stream else rows(*shape, y, dtype)
    return rows(*shape, y, stream), low


def _norm_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, delta, ctx.plan, _ = inputs
    _, y, stat = output
    ctx.delta_dtype = delta.dtype
    ctx.save_for_backward(y, stat)
    ctx.set_materialize_grads(False)


def _norm_grad(ctx: Any, g_new: Tensor | None, g_y: Tensor | None, g_stat: Tensor | None) -> Any:
    y, stat = ctx.saved_tensors
    if torch.is_grad_enabled() or g_y is None or g_stat is not None:
        g_x = reference.norm_gradient(g_new, g_y, g_stat, y, stat, read_plan(ctx.plan))
        return g_x, g_x.to(ctx.delta_dtype), None, None
    g_x, low = norm_backward(g_new, g_y, y, stat, ctx.plan, ctx.delta_dtype)
    return g_x, (g_x if ctx.delta_dtype == g_x.dtype else low), None, None


norm.register_autograd(_norm_grad, setup_context=_norm_setup)


# ---- queries, keys and values ----


@torch.library.custom_op("flashgatr::qkv", mutates_args=())
def qkv(
    y: Tensor,
    extra: Tensor | None,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (T, H, D), keys and values (T, 1 or H, D) of attention, and what they were made of (if worth keeping).

    `parameters` are those of qkv, then of the re-inserted channels; `logs` the learned weights that `terms` names.
    """
    p, be = read_plan(plan), backend(y)
    raw = _raw(y, extra, prepared, prepared_extra, plan)
    q, k, v = be.features(raw, p.heads, _named(terms, logs), p.distance_epsilon)
    return q, k, v, (raw if y.shape[0] < be.RECOMPUTE else y.new_empty(0, raw.shape[1]))


def _raw(
    y: Tensor, extra: Tensor | None, prepared: Tensor, prepared_extra: Tensor | None, plan: str
) -> Tensor:
    """Queries, keys and values before they become features."""
    be, plans = backend(y), _linear_plans(plan, y.device.type)
    raw: Tensor = be.linear(y, prepared, plans[_QKV])
    if extra is not None:
        raw = be.add_linear(raw, extra, prepared_extra, plans[_REINSERT], read_plan(plan).heads)
    return raw


def _named(terms: str, logs: Sequence[Tensor]) -> list[Tensor | None]:
    """The learned weights (alpha, beta, gamma), None for those that are not learned."""
    given = iter(logs)
    return [next(given) if name in terms else None for name in "abg"]


@qkv.register_fake
def _(
    y: Tensor,
    extra: Tensor | None,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    parameters: Sequence[Tensor],
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    heads, items = read_plan(plan).heads, y.shape[0]
    width = len(_linear_plans(plan, y.device.type)[_QKV].outputs)
    kept = items if items < backend(y).RECOMPUTE else 0
    return (
        y.new_empty(items, heads.queries, heads.features),
        y.new_empty(items, heads.keys, heads.features),
        y.new_empty(items, heads.keys, heads.values),
        backend(y).empty_rows(kept, width, y, y.dtype),
    )


@torch.library.custom_op("flashgatr::qkv_backward", mutates_args=())
def qkv_backward(
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    y: Tensor,
    extra: Tensor | None,
    raw: Tensor,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of y, of the re-inserted rows, of the parameters, of the learned weights (beta, alpha, gamma)."""
    p, be = read_plan(plan), backend(y)
    plans = _linear_plans(plan, y.device.type)
    used = plans[_QKV], *plans[_REINSERT:]
    weights = _named(terms, logs)
    if raw.shape[0] != y.shape[0]:
        raw = _raw(y, extra, prepared, prepared_extra, plan)
    g_raw, g_logs = be.features_backward(raw, g_q, g_k, g_v, p.heads, weights, p.distance_epsilon)
    gradients = be.WeightGradients(used, y)
    gradients.add(0, y, g_raw)
    g_extra = y.new_empty(0)
    if extra is not None:
        g_extra, reached = be.reinsert_input_gradient(g_raw, prepared_extra, used[1], p.heads)
        gradients.add(1, extra, reached)
    g_y = be.linear_input_gradient(g_raw, prepared, plans[_QKV], y.shape[1])
    return g_y, g_extra, gradients.collect(), g_logs


@qkv_backward.register_fake
def _(
    g_q: Tensor,
    g_k: Tensor,
    g_v: Tensor,
    y: Tensor,
    extra: Tensor | None,
    raw: Tensor,
    prepared: Tensor,
    prepared_extra: Tensor | None,
    logs: Sequence[Tensor],
    terms: str,
    plan: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    plans, heads, rows = _linear_plans(plan, y.device.type), read_plan(plan).heads, backend(y).empty_rows
    count = plans[_QKV].parameters + (0 if extra is None else plans[_REINSERT].parameters)
    return (
        rows(*y.shape, y, y.dtype),
        y.new_empty(0) if extra is None else rows(*extra.shape, extra, extra.dtype),
        y.new_empty(count, dtype=stream_dtype(y.dtype)),
        y.new_empty(heads.queries * (heads.mv + 2), dtype=stream_dtype(y.dtype)),
    )


def _qkv_setup(ctx: Any, inputs: Any, output: Any) -> None:
    y, extra, prepared, prepared_extra, parameters, logs, ctx.terms, ctx.plan = inputs
    raw = output[-1]
    ctx.kinds, ctx.log_kinds = _kinds(parameters), _kinds(logs)
    ctx.save_for_backward(y, extra, prepared, prepared_extra, raw, *logs, *parameters)
    ctx.mark_non_differentiable(raw)
    ctx.set_materialize_grads(False)


def _qkv_grad(ctx: Any, g_q: Tensor, g_k: Tensor, g_v: Tensor, _: Any) -> Any:
    y, extra, prepared, prepared_extra, raw, *rest = ctx.saved_tensors
    heads = read_plan(ctx.plan).heads
    g_q, g_k, g_v = _defined(
        (g_q, g_k, g_v),
        (y.shape[0], heads.queries, heads.features),
        (y.shape[0], heads.keys, heads.features),
        (y.shape[0], heads.keys, heads.values),
        like=y,
    )
    logs, parameters = rest[: len(ctx.log_kinds)], rest[len(ctx.log_kinds) :]
    if torch.is_grad_enabled():
        return _qkv_grad_recorded(ctx, (g_q, g_k, g_v), y, extra, logs, parameters)
    g_y, g_extra, g_theta, g_logs = qkv_backward(
        g_q, g_k, g_v, y, extra, raw, prepared, prepared_extra, logs, ctx.terms, ctx.plan
    )
    h, c = heads.queries, heads.mv
    beta, alpha, gamma = (g.view(h, -1) for g in g_logs.split([h * c, h, h]))
    named = [g for g, name in zip((alpha, beta, gamma), "abg", strict=True) if name in ctx.terms]
    return (
        g_y, None if extra is None else g_extra, None, None,
        _per_parameter(g_theta, ctx.kinds),
        [g.to(dtype) for g, (_, dtype) in zip(named, ctx.log_kinds, strict=True)],
        None, None,
    )  # fmt: skip


def _defined(
    gradients: Sequence[Tensor | None], *shapes: tuple[int, ...], like: Tensor
) -> list[Tensor]:
    """Zeros in the place of gradients that nobody sent."""
    pairs = zip(gradients, shapes, strict=True)
    return [like.new_zeros(shape) if g is None else g for g, shape in pairs]


def _qkv_grad_recorded(
    ctx: Any,
    outer: tuple[Tensor, ...],
    y: Tensor,
    extra: Tensor | None,
    logs: list[Tensor],
    parameters: list[Tensor],
) -> Any:
    plan = read_plan(ctx.plan)
    plans = _linear_plans(ctx.plan, y.device.type)
    used = plans[_QKV : _QKV + 1] + (() if extra is None else plans[_REINSERT:])

    def forward(y: Tensor, extra: Tensor | None, *rest: Tensor) -> tuple[Tensor, ...]:
        weights = _named(ctx.terms, rest[: len(logs)])
        own, *more = _grouped(rest[len(logs) :], used)
        return reference.qkv(y, extra, own, more[0] if more else [], weights, plan)

    g_y, g_extra, *rest = reference.gradients(forward, [y, extra, *logs, *parameters], outer)
    return g_y, g_extra, None, None, rest[len(logs) :], rest[: len(logs)], None, None


qkv.register_autograd(_qkv_grad, setup_context=_qkv_setup)


# ---- attention within small sets ----


@torch.library.custom_op("flashgatr::small_attention", mutates_args=())
def small_attention(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    """Attention within consecutive sets of a few items: (T, H, V)."""
    return backend(q).small_attention(q, k, v, items, scale)  # type: ignore[no-any-return]


@small_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, items: int, scale: float) -> Tensor:
    return v.new_empty(*q.shape[:2], v.shape[-1])


@torch.library.custom_op("flashgatr::small_attention_backward", mutates_args=())
def small_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return backend(q).small_attention_backward(q, k, v, g.contiguous(), items, scale)  # type: ignore[no-any-return]


@small_attention_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, items: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _small_setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, ctx.items, ctx.scale = inputs
    ctx.save_for_backward(q, k, v)


def _small_grad(ctx: Any, g: Tensor) -> Any:
    if torch.is_grad_enabled():

        def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
            return (reference.small_attention(q, k, v, ctx.items, ctx.scale),)

        return (*reference.gradients(forward, ctx.saved_tensors, [g]), None, None)
    return (*small_attention_backward(*ctx.saved_tensors, g, ctx.items, ctx.scale), None, None)


small_attention.register_autograd(_small_grad, setup_context=_small_setup)


# ---- a linear map by itself ----


@torch.library.custom_op("flashgatr::linear", mutates_args=())
def linear(
    x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: str, which: int
) -> Tensor:
    """One of a block's linear maps: rows to rows."""
    return backend(x).linear(x, prepared, _linear_plans(plan, x.device.type)[which])  # type: ignore[no-any-return]


@linear.register_fake
def _(x: Tensor, prepared: Tensor, parameters: Sequence[Tensor], plan: str, which: int) -> Tensor:
    width = len(_linear_plans(plan, x.device.type)[which].outputs)
    return backend(x).empty_rows(x.shape[0], width, x, x.dtype)  # type: ignore[no-any-return]


@torch.library.custom_op("flashgatr::linear_backward", mutates_args=())
def linear_backward(
    g: Tensor, x: Tensor, prepared: Tensor, plan: str, which: int
) -> tuple[Tensor, Tensor]:
    be, p = backend(x), _linear_plans(plan, x.device.type)[which]
    gradients = be.WeightGradients((p,), x)
    gradients.add(0, x, g)
    return be.linear_input_gradient(g, prepared, p, x.shape[1]), gradients.collect()


@linear_backward.register_fake
def _(g: Tensor, x: Tensor, prepared: Tensor, plan: str, which: int) -> tuple[Tensor, Tensor]:
    p = _linear_plans(plan, x.device.type)[which]
    in_order = p.inputs == columns(range(p.in_mv), range(p.in_s))  # else they are attention's rows
    g_x = backend(x).empty_rows(*x.shape, x, x.dtype) if in_order else x.new_empty(x.shape)
    return g_x, x.new_empty(p.parameters, dtype=stream_dtype(x.dtype))


def _linear_setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, prepared, parameters, ctx.plan, ctx.which = inputs
    ctx.kinds = _kinds(parameters)
    ctx.save_for_backward(x, prepared, *parameters)


def _linear_grad(ctx: Any, g: Tensor) -> Any:
    x, prepared, *parameters = ctx.saved_tensors
    if torch.is_grad_enabled():
        plan = _linear_plans(ctx.plan, x.device.type)[ctx.which]

        def forward(x: Tensor, *parameters: Tensor) -> tuple[Tensor]:
            return (reference.linear(x, parameters, plan),)

        recorded, *rest = reference.gradients(forward, [x, *parameters], [g])
        return recorded, None, rest, None, None
    g_x, g_theta = linear_backward(g, x, prepared, ctx.plan, ctx.which)
    return g_x, None, _per_parameter(g_theta, ctx.kinds), None, None


linear.register_autograd(_linear_grad, setup_context=_linear_setup)


# ---- the geometric MLP ----


@torch.library.custom_op("flashgatr::mlp", mutates_args=())
def mlp(
    y: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bilinear layer, gate, linear map; also the bilinear layer's four inputs and the gate's."""
    p, be = read_plan(plan), backend(y)
    inputs, output, last = _linear_plans(plan, y.device.type)[_INPUTS : _LAST + 1]
    projected = be.linear(y, prepared[0], inputs)
    wide = be.linear(be.bilinear(projected, y, reference, p.sizes), prepared[1], output)
    delta = be.linear(be.gate(wide, p.wide, p.activation), prepared[2], last)
    return delta, projected, wide


@mlp.register_fake
def _(
    y: Tensor,
    reference: Tensor,
    prepared: Sequence[Tensor],
    parameters: Sequence[Tensor],
    plan: str,
) -> tuple[Tensor, Tensor, Tensor]:
    p, rows, items = read_plan(plan), backend(y).empty_rows, y.shape[0]
    return (
        rows(*y.shape, y, y.dtype),
        rows(items, 4 * BLADES * p.mv, y, y.dtype),
        rows(items, p.wide.width, y, y.dtype),
    )


@torch.library.custom_op("flashgatr::mlp_backward", mutates_args=())
def mlp_backward(
    g: Tensor,
    y: Tensor,
    reference: Tensor,
    projected: Tensor,
    wide: Tensor,
    prepared: Sequence[Tensor],
    plan: str,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of y, of the reference and of the parameters."""
    p, be = read_plan(plan), backend(y)
    plans = inputs, output, last = _linear_plans(plan, y.device.type)[_INPUTS : _LAST + 1]
    gradients = be.WeightGradients(plans, y)
    g_gated = be.linear_input_gradient(g, prepared[2], last, p.wide.width)
    g_wide, gated = be.gate_backward(wide, g_gated, p.wide, p.activation)
    gradients.add(2, gated, g)
    del gated, g_gated
    g_product = be.linear_input_gradient(g_wide, prepared[1], output, p.s + 2 * BLADES * p.mv)
    g_projected, product, g_reference = be.bilinear_backward(
        projected, y, reference, g_product, p.sizes, needs_reference
    )
    gradients.add(1, product, g_wide)
    del product, g_wide
    g_y = be.linear_input_gradient(g_projected, prepared[0], inputs, y.shape[1])
    if p.s:
        g_y[:, : p.s] += g_product[:, : p.s]
    gradients.add(0, y, g_projected)
    return g_y, g_reference, gradients.collect()


@mlp_backward.register_fake
def _(
    g: Tensor,
    y: Tensor,
    reference: Tensor,
    projected: Tensor,
    wide: Tensor,
    prepared: Sequence[Tensor],
    plan: str,
    needs_reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    plans = _linear_plans(plan, y.device.type)[_INPUTS : _LAST + 1]
    return (
        backend(y).empty_rows(*y.shape, y, y.dtype),
        reference.new_empty(y.shape[0] if needs_reference else 0),
        y.new_empty(sum(p.parameters for p in plans), dtype=stream_dtype(y.dtype)),
    )


def _mlp_setup(ctx: Any, inputs: Any, output: Any) -> None:
    y, join_reference, prepared, parameters, ctx.plan = inputs
    _, projected, wide = output
    ctx.kinds = _kinds(parameters)
    ctx.save_for_backward(y, join_reference, projected, wide, *prepared, *parameters)
    ctx.mark_non_differentiable(projected, wide)
    ctx.set_materialize_grads(False)


def _mlp_grad(ctx: Any, g: Tensor | None, *_: Any) -> Any:
    if g is None:
        everything = len(ctx.saved_tensors) - 4 - len(ctx.kinds)
        return None, None, [None] * everything, [None] * len(ctx.kinds), None
    y, join_reference, projected, wide, *rest = ctx.saved_tensors
    count = len(rest) - len(ctx.kinds)
    prepared, parameters = rest[:count], rest[count:]
    nothing = [None] * count
    if torch.is_grad_enabled():
        plans = _linear_plans(ctx.plan, y.device.type)[_INPUTS : _LAST + 1]

        def forward(y: Tensor, join_reference: Tensor, *parameters: Tensor) -> tuple[Tensor]:
            groups = _grouped(parameters, plans)
            return (reference.mlp(y, join_reference, groups, read_plan(ctx.plan)),)

        g_y, g_reference, *found = reference.gradients(
            forward, [y, join_reference, *parameters], [g]
        )
        return g_y, g_reference, nothing, found, None
    needed = ctx.needs_input_grad[1]
    g_y, g_reference, g_theta = mlp_backward(
        g, y, join_reference, projected, wide, prepared, ctx.plan, needed
    )
    return g_y, g_reference if needed else None, nothing, _per_parameter(g_theta, ctx.kinds), None


mlp.register_autograd(_mlp_grad, setup_context=_mlp_setup)


# ---- the ends of a network on small sets ----


@torch.library.custom_op("flashgatr::enter", mutates_args=())
def enter(mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows around the centre of every sample, the centres (B, 3), and the mean e123 of every sample (B).

    mv is (B, items, C, 16), s (B, items, S). Not differentiable: for inputs that need no gradient.
    """
    mv, s = mv.contiguous(), s.contiguous()
    center, mean = gpu.survey(mv)
    return gpu.enter(mv, s, center), center, mean


@enter.register_fake
def _(mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    b, items, c, _ = mv.shape
    return mv.new_empty(b * items, s.shape[-1] + BLADES * c), mv.new_empty(b, 3), mv.new_empty(b)


@torch.library.custom_op("flashgatr::leave", mutates_args=())
def leave(x: Tensor, center: Tensor, mv: int, s: int) -> tuple[Tensor, Tensor]:
    """Multivectors (T, C, 16) and scalars (T, S) of rows with these channels, moved back from the centres."""
    return gpu.leave(x.contiguous(), center, Sizes(mv, s))


@leave.register_fake
def _(x: Tensor, center: Tensor, mv: int, s: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], mv, BLADES), x.new_empty(x.shape[0], s)


@torch.library.custom_op("flashgatr::leave_backward", mutates_args=())
def leave_backward(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    sizes = Sizes(g_mv.shape[1], g_s.shape[1])
    return gpu.leave_backward(g_mv.contiguous(), g_s.contiguous(), center, sizes)


@leave_backward.register_fake
def _(g_mv: Tensor, g_s: Tensor, center: Tensor) -> Tensor:
    return g_mv.new_empty(g_mv.shape[0], Sizes(g_mv.shape[1], g_s.shape[1]).width)


def _leave_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, center, _, _ = inputs
    ctx.save_for_backward(center)


def _leave_grad(ctx: Any, g_mv: Tensor, g_s: Tensor) -> Any:
    (center,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # linear in x: its gradient is linear in g
        return reference.leave_gradient(g_mv, g_s, center), None, None, None
    return leave_backward(g_mv, g_s, center), None, None, None


leave.register_autograd(_leave_grad, setup_context=_leave_setup)


# ---- the network's parts ----


def apply_linear(layer: EquiLinear, weights: Weights, x: Tensor) -> Tensor:
    """An equivariant linear map of rows, by itself."""
    sizes = layer.in_mv_channels, layer.out_mv_channels, layer.in_s_channels, layer.out_s_channels
    text = " ".join(map(str, ("linear", *sizes)))
    parameters = parameters_of(layer)
    (prepared,) = weights.get(parameters, text, x.dtype)
    return linear(x, prepared, parameters, text, 0)  # type: ignore[no-any-return]



def prepare_ahead(blocks: Sequence[GATrBlock], dtype: torch.dtype) -> None:
    """Prepare the weights of all blocks beside the first ones' work, if there is a stream for it."""
    side = gpu.SideStream.active
    if side is not None:
        for block in blocks:
            parameters = [p for layer in _layers(block) for p in parameters_of(layer)]
            block.weights.prepare_ahead(side, parameters, block.plan_text, dtype)


def run_block(
    block: GATrBlock, x: Tensor, delta: Tensor, around: Surroundings
) -> tuple[Tensor, Tensor]:
    """The block on rows: takes and returns the residual stream and what is still to be added to it."""
    text, layers, dtype = block.plan_text, _layers(block), delta.dtype
    parameters = [parameters_of(layer) for layer in layers]
    prepared = block.weights.get([p for group in parameters for p in group], text, dtype)
    x, y, _ = norm(x, delta, text, dtype)
    attention = block.attention.attention
    terms, logs = "", []
    for name, log in zip(
        "abg", (attention.log_alpha, attention.log_beta, attention.log_gamma), strict=True
    ):
        if log is not None:
            terms, logs = terms + name, [*logs, log]
    extra = around.extra if len(layers) > _REINSERT else None
    q, k, v, _ = qkv(
        y,
        extra,
        prepared[_QKV],
        prepared[_REINSERT] if extra is not None else None,
        parameters[_QKV] + (parameters[_REINSERT] if extra is not None else []),
        logs,
        terms,
        text,
    )
    out = _attend(q, k, v, attention.scale, around)
    delta = linear(out, prepared[_OUT], parameters[_OUT], text, _OUT)
    x, y, _ = norm(x, delta, text, dtype)
    mlp_parameters = [p for group in parameters[_INPUTS : _LAST + 1] for p in group]
    delta, _, _ = mlp(y, around.reference, prepared[_INPUTS : _LAST + 1], mlp_parameters, text)
    return x, delta


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, around: Surroundings) -> Tensor:
    """(T, H·V) from queries, keys and values of all items."""
    sets = around.sets
    is_open = sets.is_plain and around.attention_mask is None
    # A traced graph serves all sizes, so it must not depend on this one.
    if is_open and not torch.compiler.is_compiling() and sets.shape[-1] <= backend(q).SMALL_SET:
        out = small_attention(q, k, v, max(sets.shape[-1], 1), scale)
    else:
        shape = sets.shape
        out = attend(
            q.unflatten(0, shape),
            k.unflatten(0, shape),
            v.unflatten(0, shape),
            scale=scale,
            sets=sets,
            context_sets=sets,
            attention_mask=around.attention_mask,
        ).flatten(0, -3)
    return out.flatten(1)
