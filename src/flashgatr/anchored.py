"""AnchoredGATr: GATr on a few anchors, whose keys and values any number of queries can read.

    encode    anchors x_M:   x = block(x),          keys and values of every block are kept
    decode    queries x_N:   x = block(x; kept),    in every block, the queries read the anchors

Queries neither read each other nor change the anchors. The cost is N·M instead of N², and the
queries can be computed in tiles of any order. The frame (centre, unit of length, join reference)
is that of the anchors. A query with an anchor's input has the anchor's output, and with all items
as anchors the network is GATr. The parameters are those of GATr.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .anchors import anchor_sets, rows_of, select
from .batch import Sets
from .config import GATrConfig
from .encoded import (
    Anchors,
    check_answered,
    check_network,
    check_samples,
    check_tile,
    checked_weights,
)
from .fast import FastPath
from .frame import Frame, JoinReference
from .kernels.block import RowMemory
from .model import GATr
from .nn.attention import Memory
from .nn.block import GATrBlock, Surroundings
from .precision import check_tensor
from .processes import Gathering, Processes

TILE = 65536
"""Queries that `decode` computes at a time."""
_ROWS = 64
"""Tiles are padded to a multiple of this. PyTorch's CPU loops compute the last rows of another
number by other instructions, which round differently: a query's bits would depend on its place.
"""

Outputs = tuple[Tensor, Tensor]
Progress = Callable[[int, int], object]
"""Called with the number of finished queries and that of all."""


class AnchoredGATr(GATr):
    """GATr in which all items attend to a few of them, the anchors.

    `net(mv, s, anchors=index)` computes all items at once. `encode` and `decode` compute any number
    of queries, in tiles. Without anchors the network is a GATr; it reads and writes GATr's files.

    >>> net = AnchoredGATr(in_mv_channels=1, out_mv_channels=1, num_blocks=1, num_heads=2,
    ...                    hidden_mv_channels=4, hidden_s_channels=8)
    >>> mv = torch.randn(100, 1, 16)
    >>> state = net.encode(mv[:10])
    >>> net.decode(state, mv, tile=32)[0].shape
    torch.Size([100, 1, 16])
    """

    @classmethod
    def from_gatr(cls, net: GATr) -> Self:
        """A network with the modules of this one; they have the same parameters from then on."""
        if type(net) not in (GATr, AnchoredGATr):
            raise TypeError(
                f"expected a GATr, got {type(net).__name__}; anchors are for GATr alone"
            )
        with torch.device("meta"):  # start values would be drawn, and thrown away
            found = cls(net.config)
        found.check_finite = net.check_finite
        found.linear_in, found.blocks, found.linear_out = net.linear_in, net.blocks, net.linear_out
        found._fast = FastPath(net.config, found.blocks)
        return found.train(net.training)

    @classmethod
    def _saved_as(cls) -> str:
        return GATr.__name__

    def _check_config(self, config: GATrConfig) -> None:
        if config.rotary:
            raise ValueError(
                f"rotary={config.rotary} orders the items of a sequence, but queries have no place "
                "among the anchors; use rotary=False"
            )

    def forward(
        self,
        mv: Tensor,
        s: Tensor | None = None,
        *,
        anchors: Tensor | None = None,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
        attention_mask: Any = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        join_reference: JoinReference = "data",
        center: Tensor | None = None,
        frame: Frame | None = None,
        processes: Processes | None = None,
    ) -> Outputs:
        """As `GATr.forward`, but all items attend to the anchors alone.

        anchors: numbers of the anchors, (..., M) as `choose_anchors` returns them; None for GATr.
        weights: (..., M), how many items each anchor stands for; see `cell_weights`.
        processes: each of them passes its share of the items, with its own anchors among them. The
            items attend to the anchors of all processes.
        """
        if anchors is None:
            if weights is not None:
                raise ValueError("weights are those of anchors; pass anchors=…, too")
            if processes is not None:
                raise ValueError("processes share anchors and queries; pass anchors=…, too")
            return super().forward(
                mv,
                s,
                mask=mask,
                attention_mask=attention_mask,
                offsets=offsets,
                max_items=max_items,
                join_reference=join_reference,
                center=center,
                frame=frame,
            )
        if attention_mask is not None:
            raise ValueError(
                "attention_mask cannot be combined with anchors; the items attend to all anchors "
                "of their sample"
            )
        mv, s, sets = self._checked(mv, s, mask, offsets, max_items)
        theirs, rows = anchor_sets(anchors, sets), rows_of(anchors, sets)
        weights = checked_weights(weights, theirs, mv)
        chosen, read, gathering = select(mv, rows, sets, anchors), theirs, None
        if processes is not None and processes.size > 1:
            gathering = Gathering(processes, theirs, mv, weights is not None)
            chosen, read = gathering.items(chosen), gathering.sets
            weights = None if weights is None else gathering.items(weights)
        check_answered(read, sets, processes)
        frame = self._frame_or(frame, chosen, read, join_reference, center)
        log_weights = None if weights is None else weights.log()
        mv = frame.enter(mv, sets)
        (around,) = self._surroundings(frame, mv, s, sets, None)

        def of(x: Tensor) -> Tensor:
            return select(x, rows, sets, anchors)

        def memory_of(i: int, mv: Tensor, s: Tensor) -> Memory:
            reinsert = of(around.reinsert[0]), of(around.reinsert[1])
            context = around._replace(reinsert=reinsert, sets=theirs)
            memory = self._block(i).memory_of(of(mv), of(s), context, log_weights)
            if gathering is None:
                return memory
            keys, values = gathering.items_of_pair(memory.keys, memory.values)
            return memory._replace(keys=keys, values=values, sets=read)

        joined = None if gathering is None else gathering.rows_of_pair
        memories = [RowMemory(read, log_weights, rows, joined=joined)]
        mv, s = self._run(mv, s, around, memories, memory_of, self.obstacle(mv) is None)
        return sets.keep(frame.leave(mv, sets)), sets.keep(s)

    def encode(
        self,
        mv: Tensor,
        s: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        join_reference: JoinReference = "data",
        center: Tensor | None = None,
        frame: Frame | None = None,
    ) -> Anchors:
        """Run the network on the anchors; the result holds what queries read, and the outputs.

        mv, s: input of the anchors alone. weights: (..., M), how many items each anchor stands for.
        The other arguments are those of `GATr.forward`.
        """
        self._refuse_dropout("encode")
        mv, s, sets = self._checked(mv, s, mask, offsets, max_items)
        if sets.is_plain and not sets.shape[-1]:
            raise ValueError(f"expected at least one anchor, got shape {tuple(mv.shape)}")
        weights = checked_weights(weights, sets, mv)
        frame = self._frame_or(frame, mv, sets, join_reference, center)
        log_weights = None if weights is None else weights.log()
        mv = frame.enter(mv, sets)
        (around,) = self._surroundings(frame, mv, s, sets, None)
        around = around._replace(recompute=None)
        kept: list[tuple[Tensor, Tensor]] = []

        def memory_of(i: int, mv: Tensor, s: Tensor) -> Memory:
            memory = self._block(i).memory_of(mv, s, around, log_weights)
            kept.append((memory.keys, memory.values))
            return memory

        is_fused = self.obstacle(mv) is None
        memories = [RowMemory(sets, log_weights, kept=kept)]
        mv, s = self._run(mv, s, around, memories, memory_of, is_fused)
        keys, values = zip(*kept[: len(self.blocks)], strict=True)  # a backward pass appends more
        mv = sets.keep(frame.leave(mv, sets))
        s = sets.keep(s)
        return Anchors(mv, s, keys, values, frame, sets, weights, is_fused, self.config)

    def decode(
        self,
        state: Anchors,
        mv: Tensor,
        s: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        tile: int | None = TILE,
    ) -> Outputs:
        """Outputs of queries, which read the encoded anchors: as `GATr.forward`.

        state: what `encode` returned, with the same samples. Packed anchors need packed queries.
        max_items: as in `GATr.forward`, of the queries.
        tile: queries that are computed at a time. Every tile is padded to this number of queries,
            so that the output of a query does not depend on the other ones, not even in its last
            bit. None computes all queries at once, without padding, and so does a compiled call.
        """
        self._refuse_dropout("decode")
        check_tile(tile)
        check_network(state, self.config)
        mv, s, sets = self._checked(mv, s, mask, offsets, max_items)
        check_samples(state, sets)
        check_answered(state.sets, sets)
        if tile is None or torch.compiler.is_compiling():
            mv, s = self._read(state, mv, s, sets)
            return sets.keep(mv), sets.keep(s)
        with self.frozen():
            if sets.offsets is None:
                mv, s = self._read_tiles(state, mv, s, tile)
                return sets.keep(mv), sets.keep(s)
            found = _Tiles(mv.shape[0], 0)
            found.add(self._nothing(mv[:0], s[:0]), 0)  # there may be no sample
            parts = zip(mv.split(sets.lengths), s.split(sets.lengths), strict=True)
            for i, (part, part_s) in enumerate(parts):
                found.add(self._read_tiles(state.sample(i), part, part_s, tile), len(part))
            mv, s = found.joined()
            return mv, s

    def field(
        self,
        state: Anchors,
        embed: Callable[[Tensor], Any],
        *,
        extract: Callable[[Tensor, Tensor], Any] | None = None,
        tile: int | None = TILE,
        progress: Progress | None = None,
    ) -> Callable[[Tensor], Any]:
        """A function from positions (..., N, 3) to the outputs of queries there.

        embed: maps positions to the input of the network, mv or (mv, s). It is called tile by tile,
            and so is the network, so that their memory does not depend on N. `tile` is that of
            `decode`.
        extract: maps the outputs (mv, s) of a tile to a tensor, which the function then returns
            instead of the pair of outputs.
        progress: called with the number of finished queries and N after every tile.
        """
        check_tile(tile)
        check_network(state, self.config)
        if state.sets.offsets is not None:
            raise ValueError("a field has one set of anchors; take one with state.sample(number)")

        def at(position: Tensor) -> Any:
            check_tensor("position", position)
            if position.dim() < 2:
                raise ValueError(f"expected positions (..., N, 3), got {tuple(position.shape)}")
            total = position.shape[-2]
            found = _Tiles(total, len(state.sets.samples))
            with self.frozen():
                for part in position.split(tile or max(total, 1), dim=-2):
                    given = embed(part)
                    pair = (given, None) if isinstance(given, Tensor) else given
                    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                        raise TypeError(
                            "embed must return a tensor of multivectors, or the pair (mv, s); got "
                            f"{type(given).__name__}"
                        )
                    out = self.decode(state, *pair, tile=tile)
                    found.add(out if extract is None else (extract(*out),), part.shape[-2])
                    if progress is not None:
                        progress(found.filled, total)
            joined = found.joined()
            return joined if extract is None else joined[0]

        return at

    def _block(self, i: int) -> GATrBlock:
        return self.blocks[i]  # type: ignore[return-value]

    def _run(
        self,
        mv: Tensor,
        s: Tensor,
        around: Surroundings,
        memories: Sequence[RowMemory],
        memory_of: Callable[[int, Tensor, Tensor], Memory],
        is_fused: bool,
    ) -> Outputs:
        """The network within its frame; `memories` are for the kernels, `memory_of` for modules."""
        if is_fused:
            return self._fast.run(mv, s, [around], self.linear_in, self.linear_out, memories)
        return self._run_plain(mv, s, [around], memory_of)

    def _read(self, state: Anchors, mv: Tensor, s: Tensor, sets: Sets) -> Outputs:
        """The outputs of all these queries in one pass."""
        if not mv.shape[-3]:
            return self._nothing(mv, s)
        obstacle = self.obstacle(mv)
        if state.is_fused and obstacle is not None:
            raise ValueError(
                f"the fused kernels encoded the anchors, but they cannot run now ({obstacle}); "
                "encode the anchors again"
            )
        frame, log_weights = state.frame.for_input(mv, sets), state.log_weights
        mv = frame.enter(mv, sets)
        (around,) = self._surroundings(frame, mv, s, sets, None)

        def memory_of(i: int, mv: Tensor, s: Tensor) -> Memory:
            channels = self._block(i).attention.widths[0]
            return Memory(state.keys[i], state.values[i], channels, state.sets, log_weights)

        memories = [
            RowMemory(state.sets, log_weights, None, k, v)
            for k, v in zip(state.keys, state.values, strict=True)
        ]
        mv, s = self._run(mv, s, around, memories, memory_of, state.is_fused)
        return frame.leave(mv, sets), s

    def _read_tiles(self, state: Anchors, mv: Tensor, s: Tensor, tile: int) -> Outputs:
        """The outputs of the queries of padded or plain sets, tile by tile."""
        if not mv.shape[-3]:
            return self._nothing(mv, s)
        found = _Tiles(mv.shape[-3], mv.dim() - 3)
        for part_mv, part_s in zip(mv.split(tile, dim=-3), s.split(tile, dim=-2), strict=True):
            size = part_mv.shape[-3]
            rest = tile + -tile % _ROWS - size
            if rest:
                part_mv = F.pad(part_mv, (0, 0, 0, 0, 0, rest))
                part_s = F.pad(part_s, (0, 0, 0, rest))
            out_mv, out_s = self._read(state, part_mv, part_s, Sets(part_mv.shape[:-2]))
            found.add((out_mv[..., :size, :, :], out_s[..., :size, :]), size)
        mv, s = found.joined()
        return mv, s

    def _nothing(self, mv: Tensor, s: Tensor) -> Outputs:
        """The outputs of no queries."""
        c = self.config
        out = mv.new_zeros(*mv.shape[:-2], c.out_mv_channels, mv.shape[-1])
        return out, s.new_zeros(*s.shape[:-1], c.out_s_channels)

    def _refuse_dropout(self, method: str) -> None:
        if self.training and self.config.dropout:
            raise ValueError(
                f"{method} has no dropout, because queries must read the same anchors in every "
                "call; call net.eval() first, or train with net(mv, s, anchors=…)"
            )


class _Tiles:
    """Tensors of tiles, joined along the axis `dim`, which has `total` items in the end.

    Without gradients, a tile is written to its place at once: tiles that wait to be joined would
    take as much memory as the whole.
    """

    def __init__(self, total: int, dim: int) -> None:
        self.total, self.dim, self.filled = total, dim, 0
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, part: tuple[Tensor, ...], size: int) -> None:
        """The next `size` items of every tensor."""
        for x in part:
            if not isinstance(x, Tensor):
                raise TypeError(f"extract must return a tensor, got {type(x).__name__}")
            if x.shape[self.dim : self.dim + 1] != (size,):
                raise ValueError(
                    f"a tile of {size} queries gave a tensor of shape {tuple(x.shape)}; extract "
                    f"must return a value for each query, so {size} along axis {self.dim}"
                )
        if torch.is_grad_enabled():
            self._parts.append(part)
        else:
            if not self._parts:
                self._parts.append(tuple(self._whole(x) for x in part))
            for whole, x in zip(self._parts[0], part, strict=True):
                whole.narrow(self.dim, self.filled, size).copy_(x)
        self.filled += size

    def joined(self) -> tuple[Tensor, ...]:
        if len(self._parts) == 1:
            return self._parts[0]
        return tuple(torch.cat(x, dim=self.dim) for x in zip(*self._parts, strict=True))

    def _whole(self, part: Tensor) -> Tensor:
        return part.new_empty(*part.shape[: self.dim], self.total, *part.shape[self.dim + 1 :])
