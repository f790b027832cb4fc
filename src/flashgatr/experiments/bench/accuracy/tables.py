"""Tables of docs/results.md: what was measured, in Markdown, and what was not, in a sentence.

table = Table(["model", "mse"], [["GATr", "0.10"]], [Gap("MLP", "`recipe:nbody_readme`")])
table.text                    the rows
not_measured(table.missing)   "Not measured yet: MLP, by `recipe:nbody_readme`."
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NOTHING = "–"
"""A cell without a number."""


class Gap(NamedTuple):
    """Something that is not measured."""

    what: str
    how: str
    """The recipe or command that measures it."""
    where: str = ""
    """On which data, or in which way, where this tells it from others."""


@dataclass(frozen=True)
class Table:
    head: list[str]
    rows: list[list[str]]
    missing: list[Gap] = field(default_factory=list)
    shows: str = ""
    """What the rows show, in a sentence."""

    @property
    def text(self) -> str:
        """The sentence and the rows; empty if there are none."""
        shown = [self.shows, markdown(self.head, self.rows)] if self.rows else []
        return "\n\n".join(filter(None, shown))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows without the columns in which no row has anything."""
    columns = [k for k in range(len(head)) if any(row[k] != NOTHING for row in rows)]
    first, *others = (f"| {' | '.join(row[k] for k in columns)} |" for row in (head, *rows))
    return "\n".join([first, "|---" * len(columns) + "|", *others])


def not_measured(gaps: Iterable[Gap]) -> str:
    """A sentence; empty if nothing is missing.

    >>> not_measured([Gap("A", "`x`"), Gap("B", "`y`", "on walls"), Gap("C", "`y`", "on walls")])
    'Not measured yet: A, by `x`; B and C on walls, by `y`.'
    """
    found: dict[str, dict[str, list[str]]] = {}
    for what, how, where in gaps:
        found.setdefault(how, {}).setdefault(where, []).append(what)
    parts = []
    for how, places in found.items():
        whats = [f"{listed(some)} {where}".rstrip() for where, some in places.items()]
        parts.append(f"{', '.join(whats)}, by {how}")
    return f"Not measured yet: {'; '.join(parts)}." if parts else ""


def leading(cell: str) -> float | None:
    """The number with which a cell begins.

    >>> leading("6.84e-04 ± 1.76e-05"), leading("1,008"), leading("at least 64")
    (0.000684, 1008.0, None)
    """
    found = re.match(r"\d[\d,]*(\.\d+)?(e[+-]\d+)?", cell)
    return float(found[0].replace(",", "")) if found else None


def rank(cell: str) -> float:
    """What to sort by: the number with which a cell begins, or infinity, as for a diverged run.

    >>> rank("0.5 ± 0.1"), rank("nan")
    (0.5, inf)
    """
    number = leading(cell)
    return math.inf if number is None else number


def emphasise(
    rows: Iterable[Sequence[str]],
    columns: Iterable[int],
    group: Callable[[Sequence[str]], Hashable] = lambda row: "all",
    best: Callable[[Iterable[float]], float] = min,
) -> list[list[str]]:
    """The rows with the best numbers of these columns in bold, each among the rows of its group.

    group: rows that may be compared have the same; None may not be compared with any.
    """
    shown = [list(row) for row in rows]
    groups = [group(row) for row in shown]
    for column in columns:
        numbers = [leading(row[column]) for row in shown]
        for row, own, number in zip(shown, groups, numbers, strict=True):
            others = [x for x, g in zip(numbers, groups, strict=True) if x is not None and g == own]
            if own is not None and len(others) > 1 and number == best(others):
                value, comma, rest = row[column].partition(", ")
                row[column] = f"**{value}**{comma}{rest}"
    return shown


def listed(names: Iterable[str]) -> str:
    """Different names in a row.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} and {last}" if first else last
