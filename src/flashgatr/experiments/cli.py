"""The `flashgatr` command.

flashgatr parameters    a table of the paper's networks and their numbers of parameters
flashgatr --version
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import AxialGATr, GATr, GATrConfig, __version__
from ..config import PRESETS, preset

if TYPE_CHECKING:
    import typer

AXIAL = ("kuka",)
"""Presets for two item axes."""


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


def parameters() -> None:
    """List the paper's networks (presets) with their numbers of parameters."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Presets: GATr.from_preset(name), AxialGATr.from_preset(name)")
    for left in ("preset", "network"):
        table.add_column(left)
    for right in ("blocks", "mv", "scalars", "heads"):
        table.add_column(right, justify="right")
    table.add_column("attention")
    table.add_column("parameters", justify="right")
    for row in rows():
        c = row.config
        kind = "multi-query" if c.multi_query else "multi-head"
        table.add_row(
            row.preset,
            row.network.__name__,
            str(c.num_blocks),
            str(c.hidden_mv_channels),
            str(c.hidden_s_channels),
            str(c.num_heads),
            f"{kind} x{c.attention_width}",
            f"{row.parameters:,} ({row.parameters / 1e6:.3f} M)",
        )
    width = None if sys.stdout.isatty() else 100  # a pipe has no width to fold the table to
    Console(width=width).print(table)


def application() -> typer.Typer:
    """The command with all its subcommands."""
    import typer

    app = typer.Typer(
        help="Experiments of the Geometric Algebra Transformer.",
        add_completion=False,
        no_args_is_help=True,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"flashgatr {__version__}")
            raise typer.Exit

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        pass

    app.command()(parameters)
    return app


def main() -> None:
    try:
        app = application()
        import rich  # noqa: F401
    except ImportError:
        print(
            'the flashgatr command needs typer and rich: pip install "flashgatr[experiments]"',
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    app()
