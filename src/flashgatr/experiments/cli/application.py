"""The command and its exit codes.

Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration, 130 and 143 stopped by ctrl-C and
SIGTERM (after a checkpoint). Everything that needs torch is imported where it is used, so that
`--help` is fast.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TextIO

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
        add_completion=False,
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
    warnings.showwarning = _show_warning
    try:
        app()
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        say(f"error: {error}")
        raise SystemExit(code) from None


def _exit_code(error: Exception) -> int | None:
    """1: the command failed; 2: wrong arguments or files; None: an unexpected error."""
    from ... import LoadError
    from ...train import CheckpointError, TrainingError

    if isinstance(error, (CheckpointError, TrainingError)):
        return 1
    if isinstance(error, LoadError):
        return 2
    if isinstance(error, OSError):
        return 1
    return 2 if isinstance(error, (ValueError, TypeError)) else None


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"warning: {message}")
