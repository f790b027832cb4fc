"""`flashgatr data flows` and `flashgatr predict flows`: their options and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

MESH = (3, 3, 140)
SOLUTIONS = "solutions"
"""Where the coefficients of the flows go, below the folder of the points."""


def data(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")] = Path(
        "data/flows"
    ),
    vessels: Annotated[
        int, typer.Option(min=3, help="Number of vessels, for training, validation and test.")
    ] = 60,
    lumen: Annotated[int, typer.Option(min=1, help="Points of each lumen.")] = 1_000_000,
    wall: Annotated[int, typer.Option(min=1, help="Points of each wall.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    mesh: Annotated[
        Optional[tuple[int, int, int]],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(
            show_default="3 3 140", help="Elements in the core, the ring and along the vessel."
        ),
    ] = None,
    max_reduction: Annotated[
        float, typer.Option(help="The most that stenoses take off the radius.")
    ] = 0.35,
    spatial: Annotated[
        bool, typer.Option("--spatial", help="Vessels bent in space, not in a plane.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes; 0 takes as many as pay off.")] = 0,
) -> None:
    """Solve the flow in vessels and draw random points of it. Finished files are kept."""
    from ..arteries.synthetic.field_files import make_fields
    from ..arteries.synthetic.generate import generate

    solutions, count = folder / SOLUTIONS, workers or None
    shape = dict(mesh=mesh or MESH, planar=not spatial, max_reduction=max_reduction)
    solved = generate(
        solutions,
        vessels,
        seed,
        workers=count,
        solutions=True,
        say=typer.echo,
        **shape,  # type: ignore[arg-type]
    )
    drawn = make_fields(solutions, folder, lumen, wall, seed, workers=count, say=typer.echo)
    failed = len(solved.failed) + len(drawn.failed)
    typer.echo(
        f"{folder}: points of {len(drawn.made):,} vessels made, {len(drawn.kept):,} kept, "
        f"{failed:,} failed"
    )
    raise typer.Exit(int(failed > 0))


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or pretrained:NAME.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where errors.json, errors.png and flow.png go.")
    ] = Path("predictions/flows"),
    points: Annotated[
        Optional[list[int]],  # noqa: UP045
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
    vessels: Annotated[
        int, typer.Option(min=0, show_default="all", help="Use the first so many test vessels.")
    ] = 0,
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The points, instead of those of the run's settings."),
    ] = None,
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="auto, cpu or cuda, instead of the run's setting."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Append the errors to benchmarks/results/, too.")
    ] = False,
) -> None:
    """Predict the flow in the test vessels: errors against points and anchors, and pictures."""
    from .. import runs, shipped
    from ..console import progress_bar, show_table
    from .prediction import run as predict_vessels

    found, files = predict_vessels(
        runs.require_run(shipped.find(run)),
        out,
        points=points,
        anchors=anchors,
        limit=vessels,
        data=folder,
        device=device,
        record=record,
        progress=progress_bar("points"),
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
