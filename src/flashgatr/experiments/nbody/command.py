"""`flashgatr data nbody`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def data(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")] = Path(
        "data/nbody"
    ),
    train: Annotated[int, typer.Option(help="Number of training systems.")] = 100_000,
    others: Annotated[int, typer.Option(help="Number of systems in each other set.")] = 5_000,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    preset: Annotated[
        str, typer.Option(help="released (the authors' generator), appendix or main_text.")
    ] = "released",
    workers: Annotated[int, typer.Option(help="Processes; 0 takes as many as pay off.")] = 0,
) -> None:
    """Generate the five sets of systems. Existing files with the same settings are kept."""
    from .data import describe, generate
    from .simulate import preset as settings

    generate(
        folder,
        train=train,
        others=others,
        seed=seed,
        settings=settings(preset),
        workers=workers or None,
    )
    for name, found in describe(folder).items():
        typer.echo(
            f"{folder / name}.safetensors: {found.count:,} systems, sha256 {found.sha256[:16]}…"
        )
