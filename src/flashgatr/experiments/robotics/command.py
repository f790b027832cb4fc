"""`flashgatr data kuka` and `flashgatr predict kuka`: their options and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def data(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")] = Path(
        "data/kuka"
    ),
    demonstrations: Annotated[int, typer.Option(help="How many; 200 are held out.")] = 11_200,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    diversity: Annotated[
        float, typer.Option(help="From 0 (one way to stack a scene) to 1 (very many).")
    ] = 0.5,
    start: Annotated[
        str, typer.Option(help="The arm at the beginning: bent, or upright as in the original.")
    ] = "bent",
    check: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(help="Replay every demonstration in this engine: mujoco or bullet."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 takes as many as pay off.")] = 0,
) -> None:
    """Let the scripted expert stack blocks. Existing files of the same recipe are kept, also after
    an interruption.
    """
    from .demonstrations import shards
    from .demonstrations.stream import Recipe, failures
    from .evaluation import Messages
    from .world import physics
    from .world.scenes import Setting

    if check is not None:
        physics.require(check)
    recipe = Recipe(seed, diversity, Setting(start=start))
    making = Messages("planning", phases=1, unit="demonstration")
    found = shards.generate(
        folder, demonstrations, recipe, workers=workers or None, progress=making
    )
    typer.echo(f"{folder}: {found.count:,} demonstrations, sha256 {found.sha256[:16]}…")
    if check is None:
        return
    replaying = Messages(f"replaying in {check}", phases=1, unit="demonstration")
    wrong = failures(shards.read(folder), check, workers, replaying)
    typer.echo(f"{found.count - len(wrong):,} of {found.count:,} end with a tower in {check}")
    raise typer.Exit(int(len(wrong) > 0.01 * found.count))


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or pretrained:NAME.")],
    seed: Annotated[int, typer.Option(help="Which scene, and seed of the plans.")] = 0,
    turned: Annotated[
        bool, typer.Option("--turned", help="A scene that is turned about the vertical.")
    ] = False,
    engine: Annotated[str, typer.Option(help="The physics engine: mujoco or bullet.")] = "mujoco",
    sampler: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="dpm_solver (the default), ddim, or ancestral (1,000 steps; slow)."),
    ] = None,
    sampling_steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Denoising steps of dpm_solver and ddim. [default: 20]"),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the film and the trajectory go.")
    ] = Path("predictions"),
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="auto, cpu or cuda, instead of the run's setting."),
    ] = None,
) -> None:
    """Plan a scene and execute the plans: a film (.gif) and the trajectory (.safetensors)."""
    from .. import runs, shipped
    from ..console import show_table
    from . import prediction

    prediction.require_folder(out)
    found = prediction.predict(
        runs.require_run(shipped.find(run)),
        seed=seed,
        turned=turned,
        engine=engine,
        sampler=sampler,
        sampling_steps=sampling_steps,
        device=device or "",
    )
    show_table(f"scene {seed}", ["", "found"], [list(row) for row in found.rows()])
    for file in prediction.save(found, out):
        typer.echo(f"wrote {file}")
