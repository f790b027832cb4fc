"""A transformer block on pairs (mv, s).

x = x + attention(norm(x))
x = x + mlp(norm(x))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..batch import Sets
from ..config import GATrConfig
from ..recomputation import recomputed
from .attention import Memory, SelfAttention
from .mlp import GeoMLP
from .norm import EquiLayerNorm

X = TypeVar("X")
ATTENTION_GAIN, JOIN_GAIN = 3, 3
"""What `initialization="geometric"` multiplies: attention's output map, the factors of joins."""
Pair = tuple[Tensor, Tensor]


class Surroundings(NamedTuple):
    """The inputs of a block besides its hidden state."""

    reference: Tensor
    """The e123 component of the join's reference, broadcastable to (..., N)."""
    reinsert: Pair
    """Channels of the network's input that are re-inserted into queries and keys."""
    sets: Sets
    attention_mask: Tensor | None = None
    recompute: str | None = None
    """The half that the backward pass computes again to save memory: "attention", "mlp" or None."""
    memory: Memory | None = None
    """Keys and values that the items attend to, instead of each other."""


class GATrBlock(nn.Module):
    """Pre-norm transformer block on pairs (mv, s): `block(mv, s, around)`.

    `around` is a `flashgatr.nn.Surroundings`: the e123 component of the join's reference,
    broadcastable to (..., N); a pair (mv, s) of input channels to re-insert, of width zero if
    there are none; a `Sets` that describes which items form a sample; an attention mask or None;
    the half of the block to recompute in the backward pass, or None; a `Memory` of other items
    that the items attend to, or None if they attend to each other.
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
            parity=config.hidden_parity,
            reinsert_parity=config.reinsert_parity,
        )
        self.mlp = GeoMLP(
            *widths,
            activation=config.activation,
            dropout=config.dropout,
            parity=config.hidden_parity,
        )
        if config.initialization == "geometric":
            self._strengthen_geometry()

    @torch.no_grad()
    def _strengthen_geometry(self) -> None:
        """Enlarge the start values through which geometry reaches the scalars.

        Lines arise only where a join's two factors differ, so from what attention adds to an item;
        invariants arise from products of two lines. With the default start values each of these
        steps makes numbers ten or more times smaller.
        """
        for parameter in self.attention.output.parameters():
            parameter.mul_(ATTENTION_GAIN)
        inputs = self.mlp.bilinear.inputs
        joins = slice(inputs.out_mv_channels // 2, None)
        inputs.weight[joins].mul_(JOIN_GAIN)

    def forward(self, mv: Tensor, s: Tensor, around: Surroundings) -> Pair:
        def attention(mv: Tensor, s: Tensor) -> Pair:
            context = around.reinsert, around.sets, around.attention_mask
            more = {} if around.memory is None else dict(memory=around.memory)
            return _add((mv, s), self.attention(*self.norm(mv, s), *context, **more))

        def mlp(mv: Tensor, s: Tensor) -> Pair:
            return _add((mv, s), self.mlp(*self.norm(mv, s), around.reference))

        mv, s = recomputed(around.recompute == "attention", attention, mv, s)
        return recomputed(around.recompute == "mlp", mlp, mv, s)

    def memory_of(
        self, mv: Tensor, s: Tensor, around: Surroundings, log_weights: Tensor | None
    ) -> Memory:
        """Keys and values of these items, for the `memory` of other items' surroundings.

        log_weights: (..., N), added to the logits of attention to these items, or None.
        """
        mv, s = self.norm(mv, s)
        return self.attention.memory_of(mv, s, around.reinsert, around.sets, log_weights)


def _add(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def run_in_turn(
    count: int,
    x: X,
    contexts: Sequence[Any],
    run: Callable[[int, X, Any], X],
    swap: Callable[[X, tuple[int, ...], tuple[int, ...]], X],
) -> X:
    """Apply blocks 0 to count - 1 to x; `run(i, x, context)` applies block i.

    With one context, all blocks attend over the same item axis. With two, even blocks get the
    first one. Odd blocks get the second, and x with its two item axes exchanged:
    `swap(x, shape, items)` exchanges the last two of the axes `shape`, and the result's items have
    the shape `items` (packed sets have one axis of items).
    """
    for i in range(count):
        context = contexts[i % len(contexts)]
        if i % len(contexts):
            *leading, first, second = shape = contexts[0].sets.shape
            x = run(i, swap(x, shape, context.sets.shape), context)
            x = swap(x, (*leading, second, first), shape)
        else:
            x = run(i, x, context)
    return x
