"""`flashgatr predict flows RUN`: errors against points and anchors, and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where errors.json, errors.png and flow.png go.")
    ] = Path("predictions/flows"),
    points: Annotated[
        Optional[list[int]],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(
            show_default="all",
            help="Use the first so many points of the lumen and of the wall; may be repeated.",
        ),
    ] = None,
    anchors: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option(
            show_default="as trained",
            help="Anchors of the lumen, and as many of the wall; may be repeated.",
        ),
    ] = None,
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The points, instead of those of the run's settings."),
    ] = None,
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="auto, cpu or cuda, instead of the run's setting."),
    ] = None,
) -> None:
    """Predict the flow in the test vessels: errors against points and anchors, and pictures."""
    from .. import runs
    from ..console import show_table
    from .prediction import run as predict_vessels

    found, files = predict_vessels(
        runs.require_run(run), out, points=points, anchors=anchors, data=folder, device=device
    )
    head = ["points", "anchors", "velocity ε, %", "stress ε, %"]
    rows = [
        [
            f"{x['points']:,}",
            f"{x['anchors']:,}",
            f"{x['epsilon_velocity']:.2f}",
            f"{x['epsilon_stress']:.2f}",
        ]
        for x in found
    ]
    show_table(f"{found[0]['vessels']:g} test vessels", head, rows)
    for file in files:
        typer.echo(f"wrote {file}")
