"""`flashgatr data NAME` and `flashgatr predict NAME`: a subcommand per experiment that has one.

NAME may also be the path of a user's file that defines `EXPERIMENT`. The options are the annotated
arguments of the experiment's own function, so `--help` lists them and the parser refuses those of
other experiments.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from .. import table
from ..experiment import Experiment

HELP = {
    "data": "Make or prepare an experiment's data. Existing files with the same settings are kept.",
    "predict": "Predict with a trained run of an experiment.",
}
"""The commands that an experiment may have, by the field of `Experiment` that declares them."""


def experiments_with(field: str) -> typer.Typer:
    """The command group with a subcommand for every experiment that has this field."""

    class Group(TyperGroup):
        def list_commands(self, context: Any) -> list[str]:
            return _names(field)

        def get_command(self, context: Any, name: str) -> Any:
            if context is not None and context.resilient_parsing and name not in table.names():
                return None  # the tab key runs no user's file and prints no error
            return _command(table.resolve(name), field)

    return typer.Typer(
        cls=Group,
        help=HELP[field],
        no_args_is_help=True,
        subcommand_metavar="EXPERIMENT [OPTIONS]...",
    )


def _names(field: str) -> list[str]:
    return [name for name in table.names() if getattr(table.find(name), field) is not None]


def _command(experiment: Experiment, field: str) -> Any:
    """The subcommand of one experiment, from its annotated function."""
    function = experiment.get(field)
    if function is None:
        raise ValueError(
            f"there is no command {field} for the experiment {experiment.name!r}; expected "
            f"{' or '.join(_names(field))}"
        )
    app = typer.Typer(add_completion=False)
    app.command(experiment.name)(function)
    return typer.main.get_command(app)
