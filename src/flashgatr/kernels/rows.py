"""Rows: the layout in which the fast kernels store items, and linear maps in this layout.

One item is one row: its scalars, then its multivectors, blade by blade, channels innermost. The
blades are in the order 1 e1 e2 e3 e12 e13 e23 e123, then e0 times each of these. The half that
enters the norm is therefore contiguous.

An equivariant linear map on rows is one matrix. Most entries are zero; the others are parameters,
each repeated several times. `dense_table` gives for every entry its parameter and factor.
Preparing weights is one gather with this table, and the gradient of the parameters is the
transpose of it.

Shapes: T items, C multivector and S scalar channels; x_TF with F = S + 16 C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..algebra import BLADES, E123, EUCLIDEAN, GRADES, NULL, PGA, POINT, SCALAR
from ..constants import indices
from ..functional.features import WITHOUT_E123
from ..functional.linear import MAPS, SCALES

ORDER = EUCLIDEAN + NULL
"""Blades in the order of a row."""
PLACE = tuple(ORDER.index(blade) for blade in range(BLADES))
"""The position of each blade in that order."""
ATTENDED = (*WITHOUT_E123, E123, *POINT)
"""Blades that distance-aware attention reads from queries and keys."""
ALIGN = 8
"""Groups of columns start at multiples of this, so that 16-bit rows are read 16 bytes at a time."""

_IS_SCALAR, _IS_PADDING = -1, -2
ENTRY = 16
"""An entry of a table is ENTRY · parameter + index of the factor."""
_ONE, ZERO = MAPS, MAPS + 1
FACTORS = (*SCALES, 1.0, 0.0)
"""The factors by their index; the matrix is zero where the index is ZERO."""


def to_rows(mv: Tensor, s: Tensor) -> Tensor:
    """Multivectors (..., C, 16) and scalars (..., S) to (T, F)."""
    mv = mv.index_select(-1, indices(ORDER, mv)).transpose(-1, -2)
    return torch.cat([s.flatten(0, -2), mv.flatten(-2).flatten(0, -2)], dim=-1)


def from_rows(
    x: Tensor, items: tuple[int, ...], channels: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The inverse of `to_rows`."""
    mv_channels, s_channels = channels
    s, mv = x.split([s_channels, BLADES * mv_channels], dim=-1)
    mv = mv.unflatten(-1, (BLADES, mv_channels)).index_select(-2, indices(PLACE, mv))
    return mv.transpose(-1, -2).unflatten(0, items), s.unflatten(0, items)


Types = tuple[str, str]
"""Types of a map's multivector channels in and out, a letter each: "e" (even) or "o" (odd)."""


@dataclass(frozen=True)
class Columns:
    """The contents of each column: a blade of a multivector channel, a scalar, or padding."""

    blade: tuple[int, ...]
    channel: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.blade)

    def __add__(self, other: Columns) -> Columns:
        return Columns(self.blade + other.blade, self.channel + other.channel)

    def aligned(self) -> Columns:
        return self + nothing(-len(self) % ALIGN)


def nothing(count: int) -> Columns:
    """Columns of zeros."""
    return Columns((_IS_PADDING,) * count, (0,) * count)


def columns(mv: range, s: range, blades: tuple[int, ...] = ORDER) -> Columns:
    """Columns of these channels: scalars, then multivectors blade by blade."""
    blade = (_IS_SCALAR,) * len(s) + tuple(b for b in blades for _ in mv)
    return Columns(blade, (*s, *(c for _ in blades for c in mv)))


def head_columns(heads: range, mv: int, s: int, blades: tuple[int, ...] = ORDER) -> Columns:
    """One head after another, each in the order of `columns`."""
    empty = Columns((), ())
    return sum(
        (columns(range(h * mv, (h + 1) * mv), range(h * s, (h + 1) * s), blades) for h in heads),
        empty,
    )


@dataclass(frozen=True, eq=False)
class LinearPlan:
    """The static description of an equivariant linear map between two kinds of rows.

    `linear_plan` returns the same object for the same arguments. Plans are compared by identity,
    because comparing their columns would take longer than a small kernel runs.
    """

    in_mv: int
    out_mv: int
    in_s: int
    out_s: int
    bias: bool
    inputs: Columns
    outputs: Columns
    types: Types | None = None
    """Of the multivector channels; weights between unlike types, and between scalars and odd
    channels, are zero. None: no weights are."""
    text: str = field(init=False, repr=False)
    """The plan for torch's operators, which take only plans with standard columns and a bias."""

    def __post_init__(self) -> None:
        text = f"linear {self.in_mv} {self.out_mv} {self.in_s} {self.out_s}"
        if self.types is not None:
            text += " {}>{}".format(*self.types)
        object.__setattr__(self, "text", text)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Copying and unpickling give the same object."""
        sizes = self.in_mv, self.out_mv, self.in_s, self.out_s
        return linear_plan, (*sizes, self.bias, self.inputs, self.outputs, self.types)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of weight, s2mv, mv2s, s2s, bias_mv, bias_s."""
        return (
            self.out_mv * self.in_mv * MAPS,
            self.out_mv * self.in_s,
            self.out_s * self.in_mv,
            self.out_s * self.in_s,
            self.out_mv * self.bias,
            self.out_s * self.bias,
        )

    @property
    def parameters(self) -> int:
        """Number of elements of all parameters."""
        return sum(self.sizes)


Blocks = tuple[tuple[LinearPlan, ...], ...]
"""The linear maps of each of several blocks."""


@functools.lru_cache(maxsize=1024)
def linear_plan(
    in_mv: int,
    out_mv: int,
    in_s: int,
    out_s: int,
    bias: bool = True,
    inputs: Columns | None = None,
    outputs: Columns | None = None,
    types: Types | None = None,
) -> LinearPlan:
    """The plan of a map of these sizes; rows are in standard order unless columns are given."""
    if inputs is None:
        inputs = columns(range(in_mv), range(in_s))
    if outputs is None:
        outputs = columns(range(out_mv), range(out_s))
    return LinearPlan(in_mv, out_mv, in_s, out_s, bias, inputs, outputs, types)


def _on_the_cpu(function: Callable[[LinearPlan], Tensor]) -> Callable[[LinearPlan], Tensor]:
    """Decorator: build the table on the CPU, whatever the default device is, once for each plan."""

    @functools.lru_cache(maxsize=256)
    def made(plan: LinearPlan) -> Tensor:
        with torch.device("cpu"):
            return function(plan)

    return functools.wraps(function)(made)


@_on_the_cpu
def dense_table(plan: LinearPlan) -> Tensor:
    """The entries of the map's matrix, (inputs + 1, outputs); its last row is the bias."""
    blade_i, channel_i = (
        torch.tensor(x).unsqueeze(1) for x in (plan.inputs.blade, plan.inputs.channel)
    )
    blade_o, channel_o = (
        torch.tensor(x).unsqueeze(0) for x in (plan.outputs.blade, plan.outputs.channel)
    )
    starts = [sum(plan.sizes[:i]) for i in range(len(plan.sizes))]
    weight, s2mv, mv2s, s2s, bias_mv, bias_s = starts
    table = torch.full((len(plan.inputs) + 1, len(plan.outputs)), ZERO)
    body = table[:-1]

    def put(where: Tensor, parameter: Tensor, factor: Tensor | int) -> None:
        where, parameter = torch.broadcast_tensors(where, parameter)
        value = parameter * ENTRY + factor
        body[where] = value.expand_as(body)[where]

    pair = channel_o * plan.in_mv + channel_i
    map_of = torch.full((BLADES, BLADES), -1)
    for blade, k in enumerate(PGA.grades):
        map_of[blade, blade] = k
    for source, target in zip(EUCLIDEAN, NULL, strict=True):
        map_of[source, target] = GRADES + PGA.grades[source]
    both = map_of[blade_i.clamp(min=0), blade_o.clamp(min=0)]
    is_mv = (blade_i >= 0) & (blade_o >= 0)
    put(is_mv & (both >= 0), weight + pair * MAPS + both, both)
    put(
        (blade_i == _IS_SCALAR) & (blade_o == SCALAR),
        s2mv + channel_o * plan.in_s + channel_i, _ONE,
    )  # fmt: skip
    put(
        (blade_i == SCALAR) & (blade_o == _IS_SCALAR),
        mv2s + channel_o * plan.in_mv + channel_i, _ONE,
    )  # fmt: skip
    put(
        (blade_i == _IS_SCALAR) & (blade_o == _IS_SCALAR),
        s2s + channel_o * plan.in_s + channel_i, _ONE,
    )  # fmt: skip
    if plan.bias:
        to_mv, to_s = blade_o[0] == SCALAR, blade_o[0] == _IS_SCALAR
        table[-1, to_mv] = (bias_mv + channel_o[0, to_mv]) * ENTRY + _ONE
        table[-1, to_s] = (bias_s + channel_o[0, to_s]) * ENTRY + _ONE
    if plan.types is not None:
        odd_in, odd_out = map(_is_odd, (plan.inputs, plan.outputs), plan.types)
        odd_in = torch.cat([odd_in, torch.tensor([False])])  # the bias
        table[odd_in[:, None] != odd_out] = ZERO
    return table.int()


def _is_odd(columns: Columns, letters: str) -> Tensor:
    """Whether each column belongs to an odd channel."""
    pairs = zip(columns.blade, columns.channel, strict=True)
    return torch.tensor([blade >= 0 and letters[channel] == "o" for blade, channel in pairs]).bool()


@_on_the_cpu
def inverse_table(plan: LinearPlan) -> Tensor:
    """(parameters, most): the places of each parameter in the flat matrix, filled up with -1."""
    table = dense_table(plan).long().flatten()
    used = ((table % ENTRY) != ZERO).nonzero()[:, 0]
    parameter = table[used] // ENTRY
    order = parameter.argsort(stable=True)
    used, parameter = used[order], parameter[order]
    counts = torch.bincount(parameter, minlength=plan.parameters)
    starts = counts.cumsum(0) - counts
    slot = torch.arange(len(used)) - starts[parameter]
    most = max(int(counts.max()) if len(counts) else 0, 1)
    found = torch.full((plan.parameters, most), -1)
    found[parameter, slot] = used
    return found.int()


@_on_the_cpu
def parameter_factors(plan: LinearPlan) -> Tensor:
    """The factor of each parameter."""
    factors = torch.ones(plan.parameters)
    factors[: plan.sizes[0]] = torch.tensor(SCALES).repeat(plan.sizes[0] // MAPS)
    return factors
