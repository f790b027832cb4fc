"""The command and its exit codes.

Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration, 130 and 143 stopped by ctrl-C and
SIGTERM (after a checkpoint). Everything that needs torch is imported where it is used, so that
`--help` is fast.
"""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, TextIO

from .. import table
from ..console import say

if TYPE_CHECKING:
    import typer as typer_module

HINT = 'the flashgatr command needs typer and rich: pip install "flashgatr[experiments]"'


def application() -> typer_module.Typer:
    """The command with all its subcommands."""
    import typer

    from ..demo import demo
    from . import commands
    from .per_experiment import experiments_with

    app = typer.Typer(
        cls=commands.Commands,
        help="Experiments of the Geometric Algebra Transformer.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(commands.options)
    app.command()(demo)
    app.add_typer(experiments_with("data"), name="data")
    app.command()(commands.train)
    app.command("eval")(commands.evaluate)
    app.add_typer(experiments_with("predict"), name="predict")
    for command in (
        commands.report,
        commands.sweep,
        commands.bench,
        commands.convert,
        commands.doctor,
        commands.parameters,
    ):
        app.command()(command)
    return app


def main() -> None:
    """Run the command; expected errors become one sentence and an exit code."""
    try:
        import rich  # noqa: F401

        app = application()
    except ImportError:
        say(HINT)
        raise SystemExit(1) from None
    warnings.showwarning = _Warnings()
    _escape_output()
    try:
        app(prog_name="flashgatr")  # also for `python -m flashgatr`: completion is for this name
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        say(f"error: {error}{_place(error)}")
        raise SystemExit(code) from None


def _escape_output() -> None:
    """Print characters that the output's encoding lacks as escapes, such as \\xe9 in ASCII."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _place(error: Exception) -> str:
    """The line of a user's experiment file in which an error came up; empty for other errors."""
    places = [
        f" ({frame.f_code.co_filename}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(table.MODULE_PREFIX)
    ]
    return places[-1] if places else ""


def _exit_code(error: Exception) -> int | None:
    """1: the command failed; 2: wrong arguments or files; None: an unexpected error."""
    from ... import LoadError
    from ...train import CheckpointError, TrainingError
    from ...train.answers import TaskError
    from ...train.checkpoint import DamagedError

    if isinstance(error, (DamagedError, TaskError)):
        return 2
    if isinstance(error, (CheckpointError, TrainingError)):
        return 1
    if isinstance(error, LoadError):
        return 2
    if isinstance(error, OSError):
        return 1
    return 2 if isinstance(error, (ValueError, TypeError)) else None


class _Warnings:
    """Prints every warning as one line, and equal ones once."""

    def __init__(self) -> None:
        self.shown: set[str] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if str(message) not in self.shown:
            self.shown.add(str(message))
            say(f"warning: {message}")
