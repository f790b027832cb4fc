"""The values that pass between this package and an experiment's own report.

`collect` finds runs and returns `Collected`; the experiment's `Report.compose` makes `Contents` of
them, and `writer` stores these. An experiment can add to the generic report:

    def compose(collected: Collected) -> Contents:
        contents = generic.compose(collected)
        mine = Section("Mine", markup.table(["spring", "length"], [["soft", 2.5]]))
        return replace(contents, sections=[mine, *contents.sections])

    EXPERIMENT = Experiment("springs", ..., report=Report(compose))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...train.settings import RunConfig
from ..experiment import Experiment

BAD_INPUT = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""Errors that unsuitable files raise when they are read."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    config: RunConfig
    summary: dict[str, Any]
    """All of results.json."""
    results: dict[str, dict[str, float]]
    """Per evaluation set: the experiment's metrics, its count, and `Report.further`."""
    label: str = ""
    samples: int | None = None
    """Number of training samples; None: all of a set whose size is unknown."""


@dataclass(frozen=True)
class Collected:
    """The runs to report on, and remarks about others."""

    experiment: Experiment
    runs: list[Run]
    unreadable: dict[str, str]
    """Folder and reason."""
    notes: list[str]
    """Remarks for the reader; a report appends its own."""

    @property
    def labels(self) -> list[str]:
        """The different labels, in the order of the runs."""
        return list(dict.fromkeys(run.label for run in self.runs))


@dataclass(frozen=True)
class Section:
    """A part of the page: a title and HTML, in which every text is escaped (see `markup`)."""

    title: str
    html: str


@dataclass(frozen=True)
class Contents:
    """A complete report. Sections without HTML are left out; notes and unreadable runs are added.

    introduction: HTML.  numbers: report.json.
    pictures: PNG files by name; None if one could not be drawn (an earlier one is then removed).
    """

    title: str
    introduction: str
    sections: Sequence[Section]
    numbers: dict[str, Any]
    pictures: Mapping[str, bytes | None]


@dataclass(frozen=True)
class Report:
    """How an experiment reports on its runs: the value of `Experiment.report`.

    Runs whose results lack one of the `required_sets` or, if `one_of` names some, all of these, are
    listed as unreadable, and so are runs with a set that lacks one of the `required` numbers.
    """

    compose: Callable[[Collected], Contents]
    required_sets: frozenset[str] = frozenset()
    one_of: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    further: tuple[str, ...] = ()
    """Numbers to read from the results of a set besides the metrics and the count."""
