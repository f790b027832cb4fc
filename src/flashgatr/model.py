"""GATr: multivectors in, multivectors out, equivariant under every Euclidean motion.

    linear map, blocks, linear map      in each sample's frame: see `frame` and `nn.block`

The fused kernels run the network where they support it (see `fast`), the plain modules otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor, nn

from . import arguments, io
from .batch import Sets
from .config import GATrConfig, preset
from .constants import indices
from .fast import FastPath
from .frame import Frame, JoinReference, frame_of, with_constant
from .nn import EquiLinear
from .nn.attention import Memory
from .nn.block import GATrBlock as GATrBlock
from .nn.block import Pair, run_in_turn
from .nn.block import Surroundings as Surroundings
from .precision import full_precision, stream_dtype
from .recomputation import recomputed


class GATr(nn.Module):
    """Geometric Algebra Transformer over sets of items.

    Constructed from keyword arguments or a `GATrConfig`; `net(mv, s)` maps multivectors
    (..., N, C, 16) and scalars (..., N, S) to a pair of the same form.

    >>> import torch
    >>> net = GATr(in_mv_channels=2, out_mv_channels=1, hidden_mv_channels=4, hidden_s_channels=8,
    ...            num_blocks=2, num_heads=2)
    >>> out, s = net(torch.randn(5, 2, 16))
    >>> out.shape, s.shape
    (torch.Size([5, 1, 16]), torch.Size([5, 0]))
    """

    item_axes = 1
    """Number of axes that count items."""

    check_finite = False
    """If True, NaN or infinity in valid items raises an error; every call waits for the device."""

    def __init__(self, config: GATrConfig | None = None, **options: Any) -> None:
        super().__init__()
        if config is None:
            config = GATrConfig.from_dict(options)
        elif not isinstance(config, GATrConfig):
            raise TypeError(
                f"{type(self).__name__} takes one GATrConfig or keyword arguments, such as "
                f"in_mv_channels=1, got {type(config).__name__}; pass a dictionary as **options"
            )
        elif options:
            raise TypeError(
                f"{type(self).__name__} takes one GATrConfig or keyword arguments, got both; put "
                f"{', '.join(sorted(options))} into the GATrConfig, with dataclasses.replace"
            )
        self._check_config(config)
        self.config = config
        self.linear_in = EquiLinear(
            config.first_mv_channels,
            config.hidden_mv_channels,
            config.in_s_channels,
            config.hidden_s_channels,
            in_parity=config.first_parity,
            out_parity=config.hidden_parity,
        )
        self.blocks = nn.ModuleList(
            GATrBlock(config, rotary=self._rotary(i)) for i in range(config.num_blocks)
        )
        self.linear_out = EquiLinear(
            config.hidden_mv_channels,
            config.out_mv_channels,
            config.hidden_s_channels,
            config.out_s_channels,
            in_parity=config.hidden_parity,
            out_parity=config.out_mv_parity,
        )
        self._reference_seen = False
        self._fast = FastPath(config, self.blocks)

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """A network of the paper: "nbody", "arteries", "scaling" (GATr) or "kuka" (AxialGATr)."""
        return cls(preset(name, **changes))

    @classmethod
    def from_pretrained(cls, path: str | PathLike[str]) -> Self:
        """Load what `save_pretrained` wrote; corrupt, foreign or incomplete files are an error.

        path: a folder, or `"hf://owner/name"` (or `"hf://owner/name@revision"`) on the Hugging Face
            hub.
        """
        values, state = io.load(io.local_folder(path), cls._saved_as())
        try:
            net = cls(GATrConfig.from_dict(values))
        except (TypeError, ValueError) as error:
            raise io.LoadError(f"{path} does not describe a network: {error}") from error
        return io.fill(net, state)

    def save_pretrained(self, path: str | PathLike[str]) -> None:
        """Write config.json and model.safetensors into the folder `path`."""
        io.save(path, self._saved_as(), self.config.to_dict(), self.state_dict())

    @classmethod
    def _saved_as(cls) -> str:
        """The name of the network in saved files."""
        return cls.__name__

    @classmethod
    def from_original(
        cls, source: Mapping[str, Tensor] | str | PathLike[str], **options: Any
    ) -> Self:
        """Convert weights of the authors' code: a state dict, or a file of one.

        Widths, heads and variants are inferred from the tensors. Options that they do not determine
        are given by their names in `GATrConfig`: activation, norm_epsilon, distance_epsilon,
        dropout, checkpoint, rotary_base, and which input channels are re-inserted (default: the
        first ones). Tensors that the network does not use are an error.
        """
        from .io import original

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
        frame: Frame | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Map multivectors (..., N, C, 16) and scalars (..., N, S) to those of the output channels.

        mask: (..., N), True for valid items; the others are ignored and their output is zero.
        attention_mask: boolean (True = may attend) or additive, (N, N) or (..., [heads,] N, N); a
            mask per head needs all batch axes.
        offsets: (B + 1) for packed sets; mv is then (all items, C, 16).
        max_items: size of the largest packed set, if known; required when compiling.
        join_reference: "data" (mean of the sample's input), "canonical" (e123 = 1; SE(3) only) or a
            multivector that broadcasts to (..., 16) per sample, or to mv as (..., 1, 1, 16). With
            types (`in_mv_parity`) joins need none.
        center: origin of the coordinates, (..., 3) per sample, instead of the sample's centroid.
        frame: centre, unit of length and join reference, instead of those of the input.
        """
        mv, s, sets = self._checked(mv, s, mask, offsets, max_items)
        is_fast = self.obstacle(mv) is None
        own_frame = frame is None and center is None and _is_data(join_reference)
        may_fuse_ends = own_frame and attention_mask is None and self._can_skip_warning(mv)
        if is_fast and may_fuse_ends and self._fast.takes_ends(mv, s, sets):
            return self._fast.run_with_ends(mv, s, sets, self.linear_in, self.linear_out)
        frame = self._frame_or(frame, mv, sets, join_reference, center)
        mv = frame.enter(mv, sets)
        around = self._surroundings(frame, mv, s, sets, attention_mask)
        if is_fast:
            mv, s = self._fast.run(mv, s, around, self.linear_in, self.linear_out)
        else:
            mv, s = self._run_plain(mv, s, around)
        return sets.keep(frame.leave(mv, sets)), sets.keep(s)

    def _checked(
        self,
        mv: Tensor,
        s: Tensor | None,
        mask: Tensor | None,
        offsets: Tensor | None,
        max_items: int | None,
    ) -> tuple[Tensor, Tensor, Sets]:
        """The input after all checks, with padding set to zero, and the sets that it forms."""
        c, axes = self.config, self.item_axes
        channels = c.in_mv_channels, c.in_s_channels
        mv, s = arguments.checked(mv, s, self.linear_in.weight, channels, axes)
        sets = Sets(
            mv.shape[:-2],
            axes=axes,
            mask=mask,
            offsets=offsets,
            max_items=max_items,
            device=mv.device,
        )
        mv, s = sets.keep(mv), sets.keep(s)
        if self.check_finite:
            arguments.require_finite(mv, s)
        return mv, s, sets

    def _frame_or(
        self,
        frame: Frame | None,
        mv: Tensor,
        sets: Sets,
        join_reference: JoinReference,
        center: Tensor | None,
    ) -> Frame:
        """The given frame, or that of the input."""
        if frame is None:
            return self.frame(mv, sets, join_reference, center)
        if not isinstance(frame, Frame):
            raise TypeError(
                f"frame must be a Frame, such as net.frame(mv) returns, got {type(frame).__name__}"
            )
        if center is not None or not _is_data(join_reference):
            raise ValueError(
                "a frame has a centre and a join reference; pass it without center and "
                "join_reference"
            )
        frame = frame.for_input(mv, sets)
        if self.config.is_typed:
            frame = replace(frame, reference=torch.ones_like(frame.reference))
        return frame

    def frame(
        self,
        mv: Tensor,
        sets: Sets | None = None,
        join_reference: JoinReference = "data",
        center: Tensor | None = None,
    ) -> Frame:
        """Centre, unit of length and join reference of every sample, as `forward` computes them."""
        sets = Sets(mv.shape[:-2], axes=self.item_axes) if sets is None else sets
        types, is_data = self.config.in_mv_parity, _is_data(join_reference)
        if types is not None:
            if not is_data:
                raise ValueError(
                    "joins of channels with types need no reference; call the network without "
                    "join_reference"
                )
            join_reference = "canonical"  # the number one
        frame = frame_of(
            mv,
            sets,
            recenter=self.config.recenter,
            length=self.config.length_scale,
            join_reference=join_reference,
            center=center,
        )
        if is_data and mv.shape[-2] and not self._can_skip_warning(mv):
            if types is None:
                self._reference_seen = arguments.warn_of_dead_join(mv, frame.reference, sets)
            else:
                self._reference_seen = arguments.warn_of_even_points(mv, types)
        return frame

    def _can_skip_warning(self, mv: Tensor) -> bool:
        """Whether to skip the warning: it was given already, or the values cannot be read."""
        return self._reference_seen or not arguments.can_be_read(mv)

    def _surroundings(
        self, frame: Frame, mv: Tensor, s: Tensor, sets: Sets, attention_mask: Any
    ) -> list[Surroundings]:
        """What the blocks receive beside the hidden state, per item axis that they attend over."""
        c = self.config
        reinsert = (
            mv.index_select(-2, indices(c.reinsert_mv_channels, mv)),
            s.index_select(-1, indices(c.reinsert_s_channels, s)),
        )
        reference, half = frame.references(sets), c.recomputed_half
        return [Surroundings(reference, reinsert, sets, attention_mask, half)]

    def _run_plain(
        self,
        mv: Tensor,
        s: Tensor,
        around: Sequence[Surroundings],
        memory_of: Callable[[int, Tensor, Tensor], Memory] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the plain modules, on an input that is already in its frame.

        memory_of(i, mv, s): what the items of block i, whose input is (mv, s), attend to, if not
            each other.
        """
        if self.config.is_typed:
            mv = with_constant(mv)
        with full_precision(mv.device):
            mv, s = self.linear_in(mv, s)

        def run(i: int, x: Pair, context: Surroundings) -> Pair:
            def block(mv: Tensor, s: Tensor) -> Pair:
                memory = None if memory_of is None else memory_of(i, mv, s)
                return self.blocks[i](mv, s, context._replace(memory=memory))  # type: ignore[no-any-return]

            return recomputed(self.config.checkpoint is True, block, *x)

        start = self._stream(mv), self._stream(s)
        mv, s = run_in_turn(len(self.blocks), start, around, run, swap_item_axes)
        with full_precision(mv.device):
            mv, s = self.linear_out(mv, s)
        return self._stream(mv), self._stream(s)

    @contextmanager
    def frozen(self) -> Iterator[Self]:
        """A context in which tensors derived from the parameters are computed only once.

        For inference on many small inputs. Parameters must not change inside the context: changes
        would not take effect.
        """
        with self._fast.frozen():
            yield self

    def obstacle(self, mv: Tensor) -> str | None:
        """Why the fused kernels cannot run this network on this input; None if they can."""
        return self._fast.obstacle(mv, self.linear_in, self.blocks, self.linear_out)

    def _rotary(self, block: int) -> bool:
        """Whether this block has a rotary position encoding."""
        return bool(self.config.rotary)

    def _check_config(self, config: GATrConfig) -> None:
        if isinstance(config.rotary, tuple):
            raise ValueError(
                f"rotary={config.rotary} is for two item axes; use AxialGATr, or True or False here"
            )

    def _stream(self, x: Tensor) -> Tensor:
        return x.to(stream_dtype(self.linear_in.weight.dtype))

    def __repr__(self) -> str:
        c = self.config
        parameters = sum(p.numel() for p in self.parameters())
        parameters -= sum(x.unused_parameters for x in self.modules() if isinstance(x, EquiLinear))
        types = f", types {c.in_mv_parity} -> {c.out_mv_parity}" if c.is_typed else ""
        kind = "multi-query" if c.multi_query else "multi-head"
        return (
            f"{type(self).__name__}({c.in_mv_channels} mv + {c.in_s_channels} s -> "
            f"{c.out_mv_channels} mv + {c.out_s_channels} s; {c.num_blocks} blocks of "
            f"{c.hidden_mv_channels} mv + {c.hidden_s_channels} s, {c.num_heads} {kind} heads, "
            f"{parameters:,} parameters{types})"
        )


def swap_item_axes(x: Pair, shape: tuple[int, ...], items: tuple[int, ...]) -> Pair:
    """Swap the last two item axes of multivectors and scalars.

    shape: the items of x, or the axes that they had before they were flattened. items: the shape
    of the items of the result.
    """
    first, second = len(shape) - 2, len(shape) - 1

    def swapped(x: Tensor, *channels: int) -> Tensor:
        return x.reshape(*shape, *channels).transpose(first, second).reshape(*items, *channels)

    mv, s = x
    return swapped(mv, *mv.shape[-2:]), swapped(s, s.shape[-1])


def _is_data(join_reference: JoinReference) -> bool:
    return isinstance(join_reference, str) and join_reference == "data"
