"""The `flashgatr` command. Each subcommand is a few lines over the module that does the work.

Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration, 130 and 143 stopped by ctrl-C and SIGTERM (after a checkpoint).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import AxialGATr, GATr, GATrConfig, LoadError
from ..config import PRESETS, preset
from . import measures

if TYPE_CHECKING:
    import typer as typer_module

AXIAL = ("kuka",)
"""Presets for two item axes."""
HINT = 'the flashgatr command needs typer and rich: pip install "flashgatr[experiments]"'


@dataclass(frozen=True)
class Row:
    """One preset: its network's class, its configuration, its number of parameters."""

    preset: str
    network: type[GATr]
    config: GATrConfig
    parameters: int


def rows() -> list[Row]:
    """All presets. The networks are made without memory for their weights."""
    found = []
    for name in PRESETS:
        network, config = AxialGATr if name in AXIAL else GATr, preset(name)
        with torch.device("meta"):
            number = sum(p.numel() for p in network(config).parameters())
        found.append(Row(name, network, config, number))
    return found


def _table(title: str, columns: list[str], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for line in lines:
        table.add_row(*line)
    width = None if sys.stdout.isatty() else 110  # a pipe has no width to fold the table to
    Console(width=width).print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def application() -> typer_module.Typer:
    """The command with all its subcommands."""
    import typer

    from . import commands

    app = typer.Typer(
        help="Experiments of the Geometric Algebra Transformer.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    commands.register(app)
    return app


def main() -> None:
    try:
        import rich  # noqa: F401

        app = application()
    except ImportError:
        _say(HINT)
        raise SystemExit(1) from None
    from .engine import CheckpointError, TrainingError

    try:
        app()
    except (CheckpointError, TrainingError, OSError) as error:
        _say(f"error: {error}")
        raise SystemExit(1) from None
    except (LoadError, ValueError, TypeError) as error:  # our own errors are sentences
        _say(f"error: {error}")
        raise SystemExit(2) from None


def show_parameters() -> None:
    """Print the presets with their numbers of parameters."""
    columns = ["preset", "network", "blocks", "mv", "scalars", "heads", "attention", "parameters"]
    lines = []
    for row in rows():
        c = row.config
        kind = "multi-query" if c.multi_query else "multi-head"
        lines.append(
            [
                row.preset,
                row.network.__name__,
                str(c.num_blocks),
                str(c.hidden_mv_channels),
                str(c.hidden_s_channels),
                str(c.num_heads),
                f"{kind} x{c.attention_width}",
                f"{row.parameters:,} ({row.parameters / 1e6:.3f} M)",
            ]
        )
    _table("Presets: GATr.from_preset(name), AxialGATr.from_preset(name)", columns, lines)


def show_results(
    results: dict[str, dict[str, Any]], title: str, of: str = "set", experiment: str = "nbody"
) -> None:
    """Print metrics, a line per evaluation set of one run, or per model on one set."""
    measured = measures.of(experiment)
    lines = [[name, *measured.row(found)] for name, found in results.items()]
    _table(title, [of, *measured.titles], lines)


def is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def run_folder(path: Path) -> Path:
    if not is_run(path):
        what = "it has no config.toml" if path.is_dir() else "there is no such folder"
        raise LoadError(f"{path} is not a run: {what}; make one with flashgatr train")
    return path
