"""GATr: multivectors in, multivectors out, equivariant under every Euclidean motion.

    x = x + attention(norm(x))
    x = x + mlp(norm(x))

The network moves every sample to its own centre, works there and moves back: f(x) = T_c f(T_-c x). For an equivariant f
that changes nothing but the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import inputs, io
from .algebra import BLADES, E123
from .batch import Sets
from .config import GATrConfig, preset
from .constants import indices
from .kernels import fused, paths
from .kernels.rows import from_rows, to_rows
from .nn import EquiLayerNorm, EquiLinear, GeoMLP, SelfAttention
from .nn.precision import full_precision, stream_dtype
from .versors import rescale, translate, working_center

JoinReference = Literal["data", "canonical"] | Tensor


class Surroundings(NamedTuple):
    """What every block sees beside its hidden state."""

    reference: Tensor
    """e123 of the join's reference, broadcastable to (..., N)."""
    reinsert: tuple[Tensor, Tensor]
    """Input channels for queries and keys."""
    sets: Sets
    attention_mask: Any
    """A mask, or None; a pair of those for axial networks."""
    extra: Tensor | None = None
    """The input channels for queries and keys as rows, for fused blocks."""
    is_fused: bool = False
    """Whether blocks get rows: the residual stream and what is still to be added to it, instead of (mv, s)."""
    weights: Mapping[int, fused.Ready] | None = None
    """What is prepared of the parameters of fused blocks, by the block's id, if it is."""


class GATrBlock(nn.Module):
    """Pre-norm transformer block on pairs (mv, s): `block(mv, s, around)`.

    `around` is a `flashgatr.model.Surroundings`: the join's reference (e123, broadcastable to (..., N)), a pair of input
    channels to re-insert (with no channels if there are none), a `Sets` that says which items form a sample, and an
    attention mask or None.
    """

    def __init__(self, config: GATrConfig, *, rotary: bool = False) -> None:
        super().__init__()
        widths = config.hidden_mv_channels, config.hidden_s_channels
        self.norm = EquiLayerNorm(config.norm_epsilon)
        self.attention = SelfAttention(
            *widths,
            config.num_heads,
            multi_query=config.multi_query,
            attention_width=config.attention_width,
            distance_aware=config.distance_aware,
            learned_weights=config.learned_weights,
            rotary=rotary,
            rotary_base=config.rotary_base,
            reinsert_mv_channels=len(config.reinsert_mv_channels),
            reinsert_s_channels=len(config.reinsert_s_channels),
            dropout=config.dropout,
            epsilon=config.distance_epsilon,
        )
        self.mlp = GeoMLP(*widths, activation=config.activation, dropout=config.dropout)
        self.plan = fused.block_plan(self)
        self.plan_text = self.plan.text
        self.weights = fused.Weights()

    def forward(self, mv: Tensor, s: Tensor, around: Surroundings) -> tuple[Tensor, Tensor]:
        if around.is_fused:
            return fused.run_block(self, mv, s, around)
        context = around.reinsert, around.sets, around.attention_mask
        mv, s = _add((mv, s), self.attention(*self.norm(mv, s), *context))
        mv, s = _add((mv, s), self.mlp(*self.norm(mv, s), around.reference))
        return mv, s


def _add(x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return x[0] + y[0], x[1] + y[1]


class GATr(nn.Module):
    """Geometric Algebra Transformer over sets of items.

    Made from keyword arguments or a `GATrConfig`; `net(mv, s)` maps multivectors (..., N, C, 16) and scalars
    (..., N, S) to a pair of the same form.

    >>> net = GATr(in_mv_channels=2, out_mv_channels=1, hidden_mv_channels=4, hidden_s_channels=8,
    ...            num_blocks=2, num_heads=2)
    >>> out, s = net(torch.randn(5, 2, 16))
    >>> out.shape, s.shape
    (torch.Size([5, 1, 16]), torch.Size([5, 0]))
    """

    item_axes = 1
    """How many axes count items."""

    check_finite = False
    """Set to True to have every call refuse NaN and infinity in its valid items (it waits for the device)."""

    def __init__(self, config: GATrConfig | None = None, **options: Any) -> None:
        super().__init__()
        if config is None:
            config = GATrConfig.from_dict(options)
        elif options or not isinstance(config, GATrConfig):
            raise TypeError(
                f"{type(self).__name__} takes one GATrConfig or keyword arguments, got "
                f"{type(config).__name__} and {sorted(options)}"
            )
        self._check_config(config)
        self.config = config
        self.linear_in = EquiLinear(
            config.in_mv_channels,
            config.hidden_mv_channels,
            config.in_s_channels,
            config.hidden_s_channels,
        )
        self.blocks = nn.ModuleList(
            GATrBlock(config, rotary=self._rotary(i)) for i in range(config.num_blocks)
        )
        self.linear_out = EquiLinear(
            config.hidden_mv_channels,
            config.out_mv_channels,
            config.hidden_s_channels,
            config.out_s_channels,
        )
        self._reference_seen = False
        self._weights = fused.Weights(), fused.Weights()

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """One of the paper's networks: "nbody", "arteries", "scaling" (GATr), "kuka" (AxialGATr)."""
        return cls(preset(name, **changes))

    @classmethod
    def from_pretrained(cls, path: str | PathLike[str]) -> Self:
        """Load what `save_pretrained` wrote; corrupt, foreign or incomplete files are an error."""
        values, state = io.load(path, cls.__name__)
        try:
            net = cls(GATrConfig.from_dict(values))
        except (TypeError, ValueError) as error:
            raise io.LoadError(f"{path} describes no network: {error}") from error
        return io.fill(net, state)

    def save_pretrained(self, path: str | PathLike[str]) -> None:
        """Write config.json and model.safetensors into the folder `path`."""
        io.save(path, type(self).__name__, self.config.to_dict(), self.state_dict())

    @classmethod
    def from_original(
        cls, source: Mapping[str, Tensor] | str | PathLike[str], **options: Any
    ) -> Self:
        """Convert weights of the authors' code: a state dict, or a file of one.

        Widths, heads and variants are read off the tensors. What those do not tell can be given by the names of
        `GATrConfig`: activation, norm_epsilon, distance_epsilon, dropout, checkpoint, rotary_base, and which
        input channels are re-inserted (default: the first ones). Tensors without a place here are an error.
        """
        from . import original

        config, state = original.convert(source, axial=cls.item_axes == 2, options=options)
        return io.fill(cls(config), state)

    def forward(
        self,
        mv: Tensor,
        s: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        attention_mask: Any = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        join_reference: JoinReference = "data",
        center: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Multivectors (..., N, C, 16) and scalars (..., N, S) to the same with the output's channels.

        mask: (..., N), True for valid items; others are ignored and come back as zero.
        attention_mask: boolean (True = may attend) or additive, (N, N) or (..., [heads,] N, N); one per head
            needs the batch axes.
        offsets: (B + 1) for packed sets; mv is then (all items, C, 16). max_items: largest set, if known;
            needed when compiling.
        join_reference: "data" (mean of the sample's input), "canonical" (e123 = 1; SE(3) only) or a
            multivector that broadcasts to (..., 16) per sample.
        center: (..., 3) point per sample to work around, instead of its centroid.
        """
        channels = self.config.in_mv_channels, self.config.in_s_channels
        mv, s = inputs.checked(mv, s, self.linear_in.weight, channels, self.item_axes)
        sets = Sets(
            mv.shape[:-2],
            axes=self.item_axes,
            mask=mask,
            offsets=offsets,
            max_items=max_items,
            device=mv.device,
        )
        mv, s = sets.keep(mv), sets.keep(s)
        if self.check_finite:
            inputs.require_finite(mv, s)
        if (
            center is None
            and attention_mask is None
            and self._is_small(mv, s, sets, join_reference)
        ):
            return self._run_small(mv, s, sets)
        reference = self._reference(mv, sets, join_reference)
        shift = self._center(mv, sets, center)
        if shift is not None:
            mv = translate(mv, -shift)
        if self.config.length_scale != 1:
            mv = rescale(mv, 1 / self.config.length_scale)
        around = Surroundings(reference, self._reinserted(mv, s), sets, attention_mask)
        run = self._run_plain if self.obstacle(mv) else self._run_fused
        mv, s = run(mv, s, around)

        if self.config.length_scale != 1:
            mv = rescale(mv, self.config.length_scale)
        if shift is not None:
            mv = translate(mv, shift)
        return sets.keep(mv), sets.keep(s)

    @contextmanager
    def frozen(self) -> Iterator[Self]:
        """Within: parameters stay as they are, so that what is derived from them is made once.

        For inference on many small inputs. Changes of parameters within are not seen.
        """
        kept: list[fused.Weights] = list(self._weights)
        kept += [block.weights for block in self.blocks if isinstance(block, GATrBlock)]
        for weights in kept:
            weights.freeze(True)
        try:
            yield self
        finally:
            for weights in kept:
                weights.freeze(False)

    def obstacle(self, mv: Tensor) -> str | None:
        """Why the fused kernels cannot run this network on such an input; None if they do."""
        if self.config.rotary not in (False, (False, False)):
            return "the fused kernels have no rotary positions"
        if self.training and self.config.dropout:
            return "the fused kernels have no dropout"
        block = self.blocks[0]
        assert isinstance(block, GATrBlock)
        return paths.obstacle(mv, self.linear_in.weight, block.plan.heads.features)

    def _run_plain(self, mv: Tensor, s: Tensor, around: Surroundings) -> tuple[Tensor, Tensor]:
        with full_precision(mv.device):
            mv, s = self.linear_in(mv, s)
        mv, s = self._stream(mv), self._stream(s)
        mv, s = self._run_blocks(mv, s, around)
        with full_precision(mv.device):
            mv, s = self.linear_out(mv, s)
        return self._stream(mv), self._stream(s)

    def _run_fused(self, mv: Tensor, s: Tensor, around: Surroundings) -> tuple[Tensor, Tensor]:
        """The same on rows."""
        items = mv.shape[:-2]
        dtype = paths.compute_dtype(self.linear_in.weight)
        c = self.config
        reinserts = c.reinsert_mv_channels or c.reinsert_s_channels
        around = around._replace(
            reference=around.reference.expand(items).reshape(-1).contiguous(),
            extra=to_rows(*around.reinsert).to(dtype) if reinserts else None,
            is_fused=True,
        )
        x = self._run_rows(to_rows(mv, s), around)
        return from_rows(x, items, (c.out_mv_channels, c.out_s_channels))

    def _is_small(self, mv: Tensor, s: Tensor, sets: Sets, join_reference: JoinReference) -> bool:
        """Whether the kernels for the ends of a network on small sets can serve."""
        c = self.config
        return (
            mv.is_cuda
            and sets.is_plain
            and self.item_axes == 1
            and 0 < mv.shape[-3] * c.in_mv_channels <= fused.SMALL_SAMPLE
            and c.out_mv_channels > 0
            and mv.dtype == torch.float32
            and isinstance(join_reference, str)
            and join_reference == "data"
            and c.recenter
            and c.length_scale == 1
            and not (c.reinsert_mv_channels or c.reinsert_s_channels)
            and (self._reference_seen or not inputs.can_be_read(mv))
            and not (torch.is_grad_enabled() and (mv.requires_grad or s.requires_grad))
            and self.obstacle(mv) is None
        )

    def _run_small(self, mv: Tensor, s: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
        """The fused network with its ends fused too: centres, shifts and rows in a kernel each."""
        c, shape = self.config, sets.shape
        samples = math.prod(shape[:-1])  # reshape cannot find it where there are no scalars
        mv, s = mv.reshape(samples, *mv.shape[-3:]), s.reshape(samples, *s.shape[-2:])
        rows, center, mean = fused.enter(mv, s)
        reference = mean[:, None].expand(mv.shape[:2]).reshape(-1)
        around = Surroundings(reference, (mv, s), sets, None, None, True)
        rows = self._run_rows(rows, around)
        mv, s = fused.leave(rows, center, c.out_mv_channels, c.out_s_channels)
        return mv.unflatten(0, shape), s.unflatten(0, shape)

    def _run_rows(self, x: Tensor, around: Surroundings) -> Tensor:
        dtype = paths.compute_dtype(self.linear_in.weight)
        if not torch.compiler.is_compiling() and not self.config.checkpoint:
            # A compiled block is a module of another kind, and prepares its own.
            ours = [block for block in self.blocks if isinstance(block, GATrBlock)]
            around = fused.prepared_for(ours, x, around, dtype)
        with full_precision(x.device):
            x = self._stream(fused.apply_linear(self.linear_in, self._weights[0], x))
        delta = torch.zeros_like(x, dtype=dtype)
        x, delta = self._run_blocks(x, delta, around)
        with full_precision(x.device):
            return self._stream(fused.apply_linear(self.linear_out, self._weights[1], x + delta))

    def _run_blocks(self, mv: Tensor, s: Tensor, around: Surroundings) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            mv, s = self._run_block(block, mv, s, around)
        return mv, s

    def _run_block(
        self, block: nn.Module, mv: Tensor, s: Tensor, around: Surroundings
    ) -> tuple[Tensor, Tensor]:
        if not (self.config.checkpoint and torch.is_grad_enabled()):
            return block(mv, s, around)  # type: ignore[no-any-return]
        return checkpoint(  # type: ignore[no-any-return]
            lambda mv, s: block(mv, s, around), mv, s, use_reentrant=False
        )

    def _rotary(self, block: int) -> bool:
        """Whether this block turns its scalars by position."""
        assert isinstance(self.config.rotary, bool)
        return self.config.rotary

    def _check_config(self, config: GATrConfig) -> None:
        if isinstance(config.rotary, tuple):
            raise ValueError(
                f"rotary={config.rotary} is for two item axes; use AxialGATr, or True or False here"
            )

    def _stream(self, x: Tensor) -> Tensor:
        return x.to(stream_dtype(self.linear_in.weight.dtype))

    def _reinserted(self, mv: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        mv_channels, s_channels = self.config.reinsert_mv_channels, self.config.reinsert_s_channels
        return (
            mv.index_select(-2, indices(mv_channels, mv)),
            s.index_select(-1, indices(s_channels, s)),
        )

    def _center(self, mv: Tensor, sets: Sets, center: Tensor | None) -> Tensor | None:
        """Shift (..., 1, 3) that broadcasts over channels, or None."""
        if center is None:
            if not self.config.recenter or not self.config.in_mv_channels:
                return None
            center = working_center(mv, sets)
        per_sample = inputs.per_sample(center, 3, sets.samples, "center", "a point")
        return sets.spread(per_sample.to(mv)).unsqueeze(-2)

    def _reference(self, mv: Tensor, sets: Sets, join_reference: JoinReference) -> Tensor:
        """e123 of the reference, one number per sample, broadcastable to items."""
        if isinstance(join_reference, Tensor):
            given = inputs.per_sample(
                join_reference, BLADES, sets.samples, "join_reference", "a multivector"
            )
            value = given.to(mv)[..., E123, None]
        elif join_reference == "canonical":
            value = mv.new_ones(1)
        elif join_reference == "data":
            value = mv.new_zeros(1)
            if self.config.in_mv_channels:
                value = sets.mean(mv[..., E123].mean(-1, keepdim=True))
                if not self._reference_seen and inputs.can_be_read(value):
                    self._reference_seen = inputs.warn_of_dead_join(mv, value, sets)
        else:
            raise ValueError(
                f"unknown join_reference {join_reference!r}; expected 'data', 'canonical' or a "
                "multivector tensor"
            )
        return sets.spread(value.expand(*sets.samples, 1)).squeeze(-1)

    def __repr__(self) -> str:
        c = self.config
        parameters = sum(p.numel() for p in self.parameters())
        kind = "multi-query" if c.multi_query else "multi-head"
        return (
            f"{type(self).__name__}({c.in_mv_channels} mv + {c.in_s_channels} s -> "
            f"{c.out_mv_channels} mv + {c.out_s_channels} s; {c.num_blocks} blocks of "
            f"{c.hidden_mv_channels} mv + {c.hidden_s_channels} s, {c.num_heads} {kind} heads, "
            f"{parameters:,} parameters)"
        )
