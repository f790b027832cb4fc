"""`flashgatr data charges`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def data(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")] = Path(
        "data/charges"
    ),
    force: Annotated[str, typer.Option(help="charges or gravity.")] = "charges",
    clip: Annotated[
        str, typer.Option(help="Limit charged forces per coordinate (published) or by their norm.")
    ] = "coordinate",
    train: Annotated[int, typer.Option(help="Number of training systems, up to 10,000.")] = 3_000,
    others: Annotated[int, typer.Option(help="Systems in each other set, up to 2,000.")] = 2_000,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 43,
    input_step: Annotated[
        int | None,
        typer.Option(help="Step of the input (charges: 3,100, gravity: 0, if not given)."),
    ] = None,
) -> None:
    """Generate the three sets of systems. Existing files with the same settings are kept."""
    from .data import data_name, generate
    from .simulate import CLIPS, STANDARD, Interaction

    if force == "gravity" and clip == "coordinate":
        clip = CLIPS[force][0]  # the default of charges; gravity is not clipped
    Interaction(force=force, clip=clip)  # an error for unknown values
    settings = STANDARD[data_name(force, clip)]
    if input_step is not None:
        settings = replace(settings, input_step=input_step)
    found = generate(folder, settings, train=train, others=others, seed=seed)
    for name, description in found.items():
        typer.echo(
            f"{folder / data_name(force, clip)}_{name}.safetensors: {description.count:,} systems, "
            f"sha256 {description.sha256[:16]}…"
        )
