"""Plans: the static description of a block on rows (channels, heads, epsilons).

torch's operators take only tensors, numbers and strings. At their boundary, and nowhere else, a
plan is converted to text, `plan.text`; `read_plan` converts it back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from ..algebra import BLADES
from ..functional.features import attention_scale, features_per_channel
from ..functional.linear import halves
from ..functional.products import factor_types
from .rows import ALIGN, LinearPlan, Types, linear_plan

T = TypeVar("T")


@dataclass(frozen=True)
class Sizes:
    """Numbers of channels of rows."""

    mv: int
    s: int

    @property
    def width(self) -> int:
        return self.s + BLADES * self.mv


@dataclass(frozen=True)
class HeadLayout:
    """Heads of queries and keys, and the channels of each head."""

    queries: int
    keys: int
    mv: int
    s: int
    distance_aware: bool

    @property
    def total(self) -> int:
        """Heads of queries, keys and values together."""
        return self.queries + 2 * self.keys

    @property
    def used_features(self) -> int:
        """Features of one head: its scalars, and those of its multivectors."""
        return self.s + self.mv * features_per_channel(self.distance_aware)

    @property
    def features(self) -> int:
        """Width of a query: `used_features`, padded with zeros to a multiple of ALIGN."""
        return self.used_features + -self.used_features % ALIGN

    @property
    def values(self) -> int:
        """Width of a value."""
        return self.s + BLADES * self.mv

    @property
    def learned(self) -> int:
        """Number of learned logit weights: beta per head and channel, alpha and gamma per head."""
        return self.queries * (self.mv + 2)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of one item's queries, keys and values."""
        return (
            (self.queries, self.features),
            (self.keys, self.features),
            (self.keys, self.values),
        )


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """The static description of a block; `block_plan` returns the same object for the same values.

    Plans are compared by identity, because they are keys of caches that every call reads.
    """

    mv: int
    s: int
    queries: int
    keys: int
    head_mv: int
    head_s: int
    distance_aware: bool
    activation: int
    """The activation's position in `functional.ACTIVATIONS`."""
    reinsert_mv: int
    reinsert_s: int
    reinsert_values: bool
    """Whether re-inserted channels are added to the values, too."""
    norm_epsilon: float
    distance_epsilon: float
    rotary_base: float
    """Of the rotary positions; 0 without them."""
    reinsert_types: str | None = None
    """Types of the re-inserted multivector channels; None in a block without types."""
    text: str = field(init=False, repr=False)
    sizes: Sizes = field(init=False, repr=False)
    wide: Sizes = field(init=False, repr=False)
    """Channels inside the MLP."""
    heads: HeadLayout = field(init=False, repr=False)
    scale: float = field(init=False, repr=False)
    """The factor of attention's logits."""

    def __post_init__(self) -> None:
        head = self.head_mv, self.head_s, self.distance_aware
        made = dict(
            text=self._as_text(),
            sizes=Sizes(self.mv, self.s),
            wide=Sizes(2 * self.mv, 2 * self.s),
            heads=HeadLayout(self.queries, self.keys, *head),
            scale=attention_scale(*head),
        )
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def is_typed(self) -> bool:
        return self.reinsert_types is not None

    @property
    def gates(self) -> int:
        """Channels inside the MLP with gates of their own; odd ones take those of even ones."""
        return self.mv if self.is_typed else self.wide.mv

    @property
    def types(self) -> BlockMaps[Types | None]:
        """Types of the channels of each map."""
        if self.reinsert_types is None:
            return BlockMaps(None, None, None, None, None)
        hidden, wide, head = halves(self.mv), halves(self.wide.mv), halves(self.head_mv)
        factors, results = factor_types(self.mv)
        return BlockMaps(
            output=(head * self.queries, hidden),
            qkv=(hidden, head * self.heads.total),
            inputs=(hidden, factors),
            wide=(results, wide),
            last=(wide, hidden),
            reinsert=(self.reinsert_types, head * self.reached),
        )

    @property
    def reached(self) -> int:
        """Heads to which re-inserted channels are added: queries, keys, perhaps values."""
        return self.queries + self.keys * (1 + self.reinsert_values)

    @property
    def of_queries(self) -> BlockPlan:
        """The plan of the same block for items that compute no keys and values of their own."""
        numbers = (0 if n == "keys" else getattr(self, n) for n in _FIELDS)
        return block_plan(*numbers, reinsert_types=self.reinsert_types)

    def _as_text(self) -> str:
        numbers = [str(getattr(self, name) + 0) for name in _FIELDS]  # booleans as 0 and 1
        types = [] if self.reinsert_types is None else [_TYPES + self.reinsert_types]
        return " ".join(["block", *numbers, *types])

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Copying and unpickling give the same object."""
        return read_plan, (self.text,)


_FIELDS = (
    "mv", "s", "queries", "keys", "head_mv", "head_s", "distance_aware", "activation",
    "reinsert_mv", "reinsert_s", "reinsert_values", "norm_epsilon", "distance_epsilon",
    "rotary_base",
)  # fmt: skip
_TYPES = "types:"
_REALS = ("norm_epsilon", "distance_epsilon", "rotary_base")


@functools.lru_cache(maxsize=1024)
def block_plan(*values: float, reinsert_types: str | None = None) -> BlockPlan:
    """The plan with these values, in the order of `BlockPlan`'s fields."""
    given: dict[str, Any] = dict(zip(_FIELDS, values, strict=True))
    for name in _FIELDS:
        given[name] = (float if name in _REALS else int)(given[name])
    given["distance_aware"] = bool(given["distance_aware"])
    given["reinsert_values"] = bool(given["reinsert_values"])
    return BlockPlan(**given, reinsert_types=reinsert_types)


Plan = BlockPlan | LinearPlan


@functools.lru_cache(maxsize=1024)
def read_plan(text: str) -> Plan:
    """The plan of this text: the inverse of `BlockPlan.text` and `LinearPlan.text`."""
    kind, *values = text.split()
    if kind == "block":
        types = values.pop().removeprefix(_TYPES) if len(values) > len(_FIELDS) else None
        return block_plan(*map(float, values), reinsert_types=types)
    in_mv, out_mv, in_s, out_s = map(int, values[:4])
    if len(values) == 4:
        return linear_plan(in_mv, out_mv, in_s, out_s)
    types_in, types_out = values[4].split(">")
    return linear_plan(in_mv, out_mv, in_s, out_s, types=(types_in, types_out))


class BlockMaps(NamedTuple, Generic[T]):
    """One value for each linear map of a block, in the order of the parameters in memory."""

    output: T
    """From attention's output to the residual stream."""
    qkv: T
    """To queries, keys and values."""
    inputs: T
    """To the four inputs of the bilinear layer."""
    wide: T
    """From products and joins to the gate, twice as wide as the residual stream."""
    last: T
    """From the gate to the residual stream."""
    reinsert: T | None = None
    """From re-inserted input channels to queries, keys and perhaps values; None without them."""

    @property
    def every(self) -> tuple[T, ...]:
        """The values of all maps that exist."""
        *most, last = self
        return tuple(most) if last is None else tuple(self)  # type: ignore[arg-type]


def grouped(parameters: Sequence[Tensor], plans: Sequence[LinearPlan]) -> list[list[Tensor]]:
    """Split the parameters of several maps into those of each map."""
    left, groups = list(parameters), []
    for plan in plans:
        missing, group = plan.parameters, []
        while missing:
            group.append(left.pop(0))
            missing -= group[-1].numel()
        groups.append(group)
    return groups
