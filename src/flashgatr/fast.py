"""The fast path: kernels run a network's blocks on rows, with the parameters of the modules.

It is chosen once per call of the network. If it cannot run, `FastPath.obstacle` tells why, and
the plain modules run instead. `kernels` knows tensors and sizes, `nn` knows modules; only this
file and `misfits` know both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .batch import Sets
from .config import GATrConfig
from .frame import with_constant
from .functional import ACTIVATIONS
from .functional.rotary import rotary_table
from .kernels import paths
from .kernels.backend import linear_plans
from .kernels.block import RowBlock, RowContext, RowMemory, run_block
from .kernels.block_node import MOST_ROWS
from .kernels.cuda.side_stream import SideStream
from .kernels.linear import linear
from .kernels.plan import BlockMaps, BlockPlan, block_plan
from .kernels.rows import Types, from_rows, linear_plan, to_rows
from .kernels.small_sets import SMALL_SAMPLE, enter, leave
from .kernels.weights import Weights, prepare_together
from .misfits import has_hooks, inside, misfit, unknown_kind
from .nn import EquiLinear, GeoMLP, SelfAttention
from .nn.block import GATrBlock, Surroundings
from .precision import full_precision, stream_dtype
from .recomputation import recomputed

Rows = tuple[Tensor, Tensor]
"""The residual stream, and the update still to be added to it."""

_SHARDED = "run_on_rows"
"""Name of the method that FSDP gets on a sharded block: gather its parameters, run it on rows."""


class FastBlock:
    """What the fast path keeps for one block: its plan and its prepared weights."""

    def __init__(self, block: GATrBlock) -> None:
        self.block, self.kind = block, type(block)
        self.plan = plan_of(block)
        self.query_plan = self.plan.of_queries  # not in a call: a compiler warns of its cache
        self.modules = inside(block)
        self.weights, self.query_weights = Weights(), Weights()

    @property
    def layers(self) -> BlockMaps[EquiLinear]:
        attention, mlp = self.block.attention, self.block.mlp
        bilinear = mlp.bilinear
        return BlockMaps(
            attention.output, attention.qkv, bilinear.inputs, bilinear.output, mlp.linear,
            attention.reinsert,
        )  # fmt: skip

    @property
    def parameters(self) -> BlockMaps[list[Tensor]]:
        layers = self.layers
        return BlockMaps(
            parameters_of(layers.output),
            parameters_of(layers.qkv),
            parameters_of(layers.inputs),
            parameters_of(layers.wide),
            parameters_of(layers.last),
            None if layers.reinsert is None else parameters_of(layers.reinsert),
        )

    def run(
        self, x: Tensor, delta: Tensor, context: RowContext, prepared: list[Tensor] | None = None
    ) -> Rows:
        """Run the block on rows; `prepared` are its weights if they are prepared already."""
        plan, parameters, weights = self.plan, self.parameters, self.weights
        if context.memory is not None and context.memory.keys is not None:
            plan, parameters = self.query_plan, self._query_parameters
            weights, prepared = self.query_weights, None
        if prepared is None:
            flat = [p for group in parameters.every for p in group]
            prepared = weights.get(flat, plan, delta.dtype)
        logit_weights = self.block.attention.attention.weights
        return run_block(RowBlock(plan, parameters, prepared, logit_weights), x, delta, context)

    @property
    def _query_parameters(self) -> BlockMaps[list[Tensor]]:
        """`parameters`, with only those outputs of `qkv` and `reinsert` that are queries."""
        layers, heads = self.layers, self.plan.heads
        outputs = heads.queries * heads.mv, heads.queries * heads.s
        reinsert = None
        if layers.reinsert is not None:
            reinsert = _first_outputs(layers.reinsert, *outputs)
        return self.parameters._replace(qkv=_first_outputs(layers.qkv, *outputs), reinsert=reinsert)

    def obstacle(self, module: nn.Module) -> str | None:
        """Why the kernels cannot replace this module of the network; None if they can."""
        original = getattr(module, "_orig_mod", module)  # a compiled module holds the original
        if original is not self.block:
            return "a block was replaced by another module"
        if type(self.block) is not self.kind:
            self._follow_sharding()
        if has_hooks(module) or has_hooks(self.block):
            return "a block has hooks, which expect multivectors and scalars"
        return self._replaced()

    def _replaced(self) -> str | None:
        """Why the block does not fit its plan, if a module inside it was replaced."""
        now = inside(self.block)
        if len(now) == len(self.modules) and all(map(operator.is_, now, self.modules)):
            return None
        parts = self.block.attention, self.block.mlp
        attention, mlp = (getattr(part, "_orig_mod", part) for part in parts)
        if not (isinstance(attention, SelfAttention) and isinstance(mlp, GeoMLP)):
            kinds = f"{type(attention).__name__} and {type(mlp).__name__}"
            return f"the fused kernels support SelfAttention and GeoMLP in a block, not {kinds}"
        for layer in self.layers.every:
            if not isinstance(layer, EquiLinear):
                return unknown_kind(layer)
        plans = linear_plans(self.plan, "cpu").every  # sizes are the same on all devices
        misfits = filter(None, map(misfit, self.layers.every, plans))
        if plan_of(self.block) is not self.plan:
            return next(misfits, "a module of a block was replaced by one with other settings")
        return next(misfits, None)

    def _follow_sharding(self) -> None:
        """Sharding (FSDP) changed the block's class: gather its parameters before `run`, too."""
        from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

        self.kind = type(self.block)
        if isinstance(self.block, FSDPModule):
            setattr(self.block, _SHARDED, self.run)
            register_fsdp_forward_method(self.block, _SHARDED)
            setattr(self, "run", getattr(self.block, _SHARDED))  # noqa: B010


class FastLinear:
    """What the fast path keeps for the network's first or last linear map."""

    def __init__(
        self, inputs: tuple[int, int], outputs: tuple[int, int], types: Types | None
    ) -> None:
        """inputs, outputs: multivector and scalar channels; types: of the multivectors."""
        self.plan = linear_plan(inputs[0], outputs[0], inputs[1], outputs[1], types=types)
        self.weights = Weights()

    def run(self, x: Tensor, layer: EquiLinear) -> Tensor:
        parameters = parameters_of(layer)
        (prepared,) = self.weights.get(parameters, self.plan, x.dtype)
        found: Tensor = linear(x, prepared, parameters, self.plan)
        return found.to(stream_dtype(layer.weight.dtype))


class FastPath:
    """Runs a network on rows. Its modules own all parameters; this object keeps derived values."""

    def __init__(self, config: GATrConfig, blocks: nn.ModuleList) -> None:
        self.config = config
        self.blocks = [FastBlock(block) for block in blocks if isinstance(block, GATrBlock)]
        hidden = config.hidden_mv_channels, config.hidden_s_channels
        outer = config.first_mv_channels, config.in_s_channels
        first = last = None
        if config.first_parity and config.hidden_parity and config.out_mv_parity is not None:
            first = config.first_parity, config.hidden_parity
            last = config.hidden_parity, config.out_mv_parity
        self._first = FastLinear(outer, hidden, first)
        self._last = FastLinear(hidden, (config.out_mv_channels, config.out_s_channels), last)

    def obstacle(
        self, mv: Tensor, linear_in: nn.Module, blocks: nn.ModuleList, linear_out: nn.Module
    ) -> str | None:
        """Why the kernels cannot run these modules on this input; None if they can."""
        if blocks.training and self.config.dropout:
            return "the fused kernels have no dropout"
        if len(self.blocks) != len(blocks):
            return "blocks were added or removed"
        for fast, module in zip(self.blocks, blocks, strict=True):
            if found := fast.obstacle(module):
                return found
        if not (isinstance(linear_in, EquiLinear) and isinstance(linear_out, EquiLinear)):
            return unknown_kind(linear_out if isinstance(linear_in, EquiLinear) else linear_in)
        for layer, ours in ((linear_in, self._first), (linear_out, self._last)):
            if found := misfit(layer, ours.plan):
                return found
        features = max(fast.plan.heads.features for fast in self.blocks)
        return paths.obstacle(mv, linear_in.weight, features)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within: parameters must not change; weights are prepared once and kept."""
        of_blocks = [w for fast in self.blocks for w in (fast.weights, fast.query_weights)]
        kept = [self._first.weights, self._last.weights, *of_blocks]
        for weights in kept:
            weights.freeze(True)
        try:
            yield
        finally:
            for weights in kept:
                weights.freeze(False)

    def run(
        self,
        mv: Tensor,
        s: Tensor,
        around: Sequence[Surroundings],
        linear_in: EquiLinear,
        linear_out: EquiLinear,
        memories: Sequence[RowMemory] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The network within its frame; `around` has the contexts of even and odd blocks.

        memories: one per block, or one for all blocks, if the items do not attend to each other.
        """
        if memories is not None and len(memories) not in (1, len(self.blocks)):
            raise ValueError(
                f"got memories of {len(memories)} blocks, expected one for each of the "
                f"{len(self.blocks)} blocks, or one for all of them"
            )
        items, c = mv.shape[:-2], self.config
        dtype = paths.compute_dtype(linear_in.weight)
        contexts = self._contexts(around, dtype)
        if c.is_typed:
            mv = with_constant(mv)
        if memories is not None:
            contexts = [contexts[0]._replace(memory=memory) for memory in memories]
        x = self._run_rows(to_rows(mv, s), contexts, linear_in, linear_out)
        return from_rows(x, items, (c.out_mv_channels, c.out_s_channels))

    def _contexts(self, around: Sequence[Surroundings], dtype: torch.dtype) -> list[RowContext]:
        """The contexts on rows. Rows are never moved: of two item axes, the kernels of odd blocks
        attend over the first, across the rows.
        """
        c, first = self.config, around[0]
        rows = None
        if c.reinsert_mv_channels or c.reinsert_s_channels:
            rows = to_rows(*first.reinsert).to(dtype)
        reference = first.reference.expand(first.sets.shape).reshape(-1).contiguous()
        contexts = []
        for i, (given, fast) in enumerate(zip(around, self.blocks, strict=False)):
            across = first.sets.shape if i else None
            rotary = _rotary(fast.plan, given.sets, across, reference.device, dtype)
            rest = given.sets, given.attention_mask, given.recompute, across
            contexts.append(RowContext(reference, rows, rotary, *rest))
        return contexts

    def takes_ends(self, mv: Tensor, s: Tensor, sets: Sets) -> bool:
        """Whether kernels can also compute and apply the frames: for small plain sets on CUDA."""
        c = self.config
        return (
            mv.is_cuda
            and sets.is_plain
            and sets.axes == 1
            and 0 < mv.shape[-3] * c.first_mv_channels <= SMALL_SAMPLE
            and c.out_mv_channels > 0
            and mv.dtype == torch.float32
            and c.recenter
            and c.length_scale == 1
            and not (c.reinsert_mv_channels or c.reinsert_s_channels)
            and not (torch.is_grad_enabled() and (mv.requires_grad or s.requires_grad))
        )

    def run_with_ends(
        self, mv: Tensor, s: Tensor, sets: Sets, linear_in: EquiLinear, linear_out: EquiLinear
    ) -> tuple[Tensor, Tensor]:
        """The whole network with its frames; joins have reference "data", or types need none."""
        c, shape = self.config, sets.shape
        samples = math.prod(shape[:-1])  # reshape cannot infer it if there are no scalars
        mv, s = mv.reshape(samples, *mv.shape[-3:]), s.reshape(samples, *s.shape[-2:])
        rows, center, mean = enter(with_constant(mv) if c.is_typed else mv, s)
        if c.is_typed:
            reference = mv.new_ones(samples * mv.shape[1])
        else:
            reference = mean[:, None].expand(mv.shape[:2]).reshape(-1)
        rotary = _rotary(self.blocks[0].plan, sets, None, mv.device, mv.dtype)
        context = RowContext(reference, None, rotary, sets, None, c.recomputed_half)
        rows = self._run_rows(rows, [context], linear_in, linear_out)
        mv, s = leave(rows, center, c.out_mv_channels, c.out_s_channels)
        return mv.unflatten(0, shape), s.unflatten(0, shape)

    def _run_rows(
        self,
        x: Tensor,
        contexts: Sequence[RowContext],
        linear_in: EquiLinear,
        linear_out: EquiLinear,
    ) -> Tensor:
        dtype = paths.compute_dtype(linear_in.weight)
        prepared = self._prepare(x.shape[0], dtype)
        with full_precision(x.device):
            x = self._first.run(x, linear_in)
        delta = torch.zeros_like(x, dtype=dtype)

        def run(i: int, rows: Rows, context: RowContext) -> Rows:
            def block(x: Tensor, delta: Tensor) -> Rows:
                return self.blocks[i].run(x, delta, context, prepared[i] if prepared else None)

            return recomputed(self.config.checkpoint is True, block, *rows)

        for i in range(len(self.blocks)):
            x, delta = run(i, (x, delta), contexts[i % len(contexts)])
        with full_precision(x.device):
            return self._last.run(x + delta, linear_out)

    def _prepare(self, rows: int, dtype: torch.dtype) -> list[list[Tensor]] | None:
        """The weights of all blocks, or None if each block prepares its own when it runs."""
        if torch.compiler.is_compiling() or self.config.checkpoint:
            return None
        side = SideStream.active
        if side is not None:
            for fast in self.blocks:
                flat = [p for group in fast.parameters.every for p in group]
                fast.weights.prepare_ahead(side, flat, fast.plan, dtype)
            return None
        if rows > MOST_ROWS or any(fast.weights.is_frozen for fast in self.blocks):
            return None
        groups, plans = [fast.parameters for fast in self.blocks], [x.plan for x in self.blocks]
        return prepare_together(groups, plans, dtype)


def _rotary(
    plan: BlockPlan,
    sets: Sets,
    across: tuple[int, ...] | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor | None:
    """The table that rotates the scalars of all rows, (T, S); None without rotary positions.

    across: see `RowContext`.
    """
    if not plan.rotary_base:
        return None
    how = plan.heads.s, plan.rotary_base, stream_dtype(dtype)
    table = rotary_table(sets.positions(device), *how).expand(*sets.shape, -1)
    if across is not None:
        *leading, first, second = across
        table = table.reshape(*leading, second, first, plan.heads.s).transpose(-3, -2)
    return table.reshape(-1, plan.heads.s).contiguous()  # of one position, reshape gives a view


def parameters_of(layer: EquiLinear) -> list[Tensor]:
    """The non-empty parameters of a linear map, in the order of `LinearWeights`."""
    return [p for p in layer.stored if p is not None and p.numel()]


def _first_outputs(layer: EquiLinear, mv: int, s: int) -> list[Tensor]:
    """`parameters_of` a map to the first `mv` multivector and `s` scalar channels of its output."""
    weight, s2mv, mv2s, s2s, bias_mv, bias_s = layer.stored
    every = (weight, mv), (s2mv, mv), (mv2s, s), (s2s, s), (bias_mv, mv), (bias_s, s)
    return [p[:n] for p, n in every if p is not None and p[:n].numel()]


def plan_of(block: GATrBlock) -> BlockPlan:
    """The static description of a block."""
    attention, mlp = block.attention, block.mlp
    reinsert = attention.reinsert
    return block_plan(
        attention.qkv.in_mv_channels,
        attention.qkv.in_s_channels,
        attention.num_heads,
        attention.kv_heads,
        *attention.widths,
        attention.attention.distance_aware,
        tuple(ACTIVATIONS).index(mlp.gate.activation),
        reinsert.in_mv_channels if reinsert is not None else 0,
        reinsert.in_s_channels if reinsert is not None else 0,
        not attention.multi_query,
        block.norm.epsilon,
        attention.attention.epsilon,
        attention.rotary_base or 0.0,
        reinsert_types=_reinsert_types(block),
    )


def _reinsert_types(block: GATrBlock) -> str | None:
    """Types of the channels that are re-inserted into a block; None in a block without types."""
    if not block.mlp.gate.is_typed:
        return None
    reinsert = block.attention.reinsert
    return "" if reinsert is None or reinsert.types is None else reinsert.types[0]
