"""Output of the commands: tables on standard output, messages on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from .experiment import Experiment

LONG = 20_000
"""Predictions of so many items show their progress."""


def say(text: str) -> None:
    """Print a message on standard error."""
    print(text, file=sys.stderr, flush=True)


def progress_bar(what: str) -> Callable[[int, int], None]:
    """A function of the numbers of finished items and of all, which draws a bar on a terminal.

    It draws nothing elsewhere or for few items. what: the items, in the plural.
    """

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty() and total >= LONG:
            bar = ("=" * round(30 * done / total)).ljust(30)
            end = "\n" if done == total else ""
            print(f"\r[{bar}] {done:,} of {total:,} {what}", end=end, file=sys.stderr, flush=True)

    return show


def show_table(title: str, columns: list[str], lines: list[list[str]]) -> None:
    """Print a table; the first column is aligned to the left, the others to the right.

    Square brackets are printed: rich's markup would swallow them from names of files and sets.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title))
    for number, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if number == 0 else "right")
    for line in lines:
        table.add_row(*map(escape, line))
    width = None if sys.stdout.isatty() else 110  # a pipe has no width of its own
    Console(width=width).print(table)


def show_results(
    experiment: Experiment, results: Mapping[str, Any], title: str, of: str = "set"
) -> None:
    """Print metrics, one line per evaluation set of a run, or per model on one set."""
    for name, found in results.items():
        if not isinstance(found, Mapping):
            raise TypeError(
                f"the task of {experiment.name} must return a table of metrics for each evaluation "
                f"set, such as {{'test': {{'mse': 0.1}}}}; got {found!r} for {name!r}"
            )
    lines = [[name, *experiment.row(found)] for name, found in results.items()]
    show_table(title, [of, *experiment.titles], lines)
