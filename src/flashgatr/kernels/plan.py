"""What is static about a block, as the operators need it: sizes, heads, the plans of its linear maps.

Operators take a plan as text, since torch's operators know tensors, numbers and strings only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

from ..algebra import BLADES, EUCLIDEAN
from ..nn.linear import EquiLinear
from . import cpu, gpu
from .rows import ALIGN, LinearPlan, linear_plan

if TYPE_CHECKING:
    from ..model import GATrBlock

BACKENDS: dict[str, ModuleType] = {"cuda": gpu, "cpu": cpu}
_ACTIVATIONS = ("gelu", "relu", "sigmoid")
OUT, QKV, INPUTS, OUTPUT, LAST, REINSERT = range(6)  # as registered: neighbours in memory


def backend(x: Tensor) -> ModuleType:
    return BACKENDS[x.device.type]


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

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of an item's queries, keys and values."""
        features, values = self.features, self.values
        return (self.queries, features), (self.keys, features), (self.keys, values)


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
    return BlockPlan(*map(int, integers), float(norm), float(distance))  # type: ignore[call-arg]


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
def linear_plans(text: str, device: str) -> tuple[LinearPlan, ...]:
    """The linear maps of a block in the order of `layers_of`, or the one of a text "linear ..."."""
    if text.startswith("linear"):
        return (linear_plan(*map(int, text.split()[1:])),)
    plan, be = read_plan(text), BACKENDS[device]
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


def layers_of(block: GATrBlock) -> list[EquiLinear]:
    attention, mlp = block.attention, block.mlp
    layers = [attention.output, attention.qkv, mlp.bilinear.inputs, mlp.bilinear.output, mlp.linear]
    return layers if attention.reinsert is None else [*layers, attention.reinsert]


def grouped(parameters: Sequence[Tensor], plans: Sequence[LinearPlan]) -> list[list[Tensor]]:
    """The parameters of each map."""
    left, groups = list(parameters), []
    for plan in plans:
        missing, group = plan.parameters, []
        while missing:
            group.append(left.pop(0))
            missing -= group[-1].numel()
        groups.append(group)
    return groups
