"""The subcommands of `flashgatr`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

import typer

from .. import __version__
from . import cli

Folder = Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")]
Changes = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change one setting, such as train.steps=500."
    ),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flashgatr {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Experiments of the Geometric Algebra Transformer."""


def register(app: typer.Typer) -> None:
    app.callback()(options)
    for command in (demo, data, train, evaluate, report, sweep, bench, convert, doctor, parameters):
        app.command(name={"evaluate": "eval"}.get(command.__name__))(command)


def demo(
    folder: Folder = Path("runs/demo"),
    steps: Annotated[int, typer.Option(help="Training steps of each model.")] = 0,
) -> None:
    """Train a small GATr and a Transformer on the n-body task, compare them, write a report."""
    from . import demo as demonstration
    from .nbody.task import SETS
    from .report import write

    results = demonstration.run(folder, steps or demonstration.STEPS)
    for where in SETS:
        found = {name: sets[where] for name, sets in results.items()}
        cli.show_results(found, f"squared error on {where}", of="model")
    typer.echo(f"report: {write([folder], folder / 'report')}")


def data(
    experiment: Annotated[str, typer.Argument(help="Which experiment's data: nbody.")],
    folder: Folder = Path("data/nbody"),
    train: Annotated[int, typer.Option(help="Number of training systems.")] = 100_000,
    others: Annotated[int, typer.Option(help="Number of systems in each other set.")] = 5_000,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    preset: Annotated[
        str, typer.Option(help="released (the authors' generator), appendix or main_text.")
    ] = "released",
    workers: Annotated[int, typer.Option(help="Processes; 0 takes as many as pay off.")] = 0,
) -> None:
    """Generate data. Existing files with the same settings are kept."""
    from .nbody import data as nbody
    from .nbody.simulate import preset as settings

    if experiment != "nbody":
        raise ValueError(f"unknown experiment {experiment!r}; expected nbody")
    nbody.generate(
        folder,
        train=train,
        others=others,
        seed=seed,
        settings=settings(preset),
        workers=workers or None,
    )
    for name, found in nbody.describe(folder).items():
        typer.echo(
            f"{folder / name}.safetensors: {found.count:,} systems, sha256 {found.sha256[:16]}…"
        )


def train(
    experiment: Annotated[str, typer.Argument(help="Which experiment: nbody.")] = "nbody",
    config: Annotated[
        Optional[Path], typer.Option("--config", "-c", help="A TOML file with settings.")  # noqa: UP045
    ] = None,
    folder: Annotated[
        Optional[Path], typer.Option("--folder", "-f", help="Folder of the run.")  # noqa: UP045
    ] = None,
    change: Changes = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in the folder (or start it, if settings are given)."
        ),
    ] = False,
) -> None:
    """Train a model. Stop it any time; --resume goes on as if nothing had happened."""
    from . import config as configuration
    from . import runs

    if resume and config is None and folder is not None and (not change or cli.is_run(folder)):
        settings = runs.load_config(cli.run_folder(folder))
    else:  # with settings given, --resume means: start it, or continue it
        settings = configuration.load(config) if config else configuration.RunConfig()
        settings = replace(settings, experiment=experiment)
    if folder is not None:
        settings = replace(settings, folder=str(folder))
    settings = configuration.override(settings, change or [])
    summary = runs.train(settings, resume=resume)
    best = settings.train.restore_best and summary["best_score"] is not None
    step = summary["best_step"] if best else summary["step"]
    cli.show_results(summary["results"], f"{settings.model.name}: weights of step {step}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    change: Changes = None,
) -> None:
    """Evaluate a trained run again, on its own data or (--set data.folder=…) on other data."""
    from . import config as configuration
    from . import runs

    settings = configuration.override(runs.load_config(cli.run_folder(run)), change or [])
    cli.show_results(runs.evaluate(settings)["results"], f"{run}: {settings.model.name}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path(
        "report"
    ),
) -> None:
    """Write a report (HTML, PNG, JSON) on finished runs."""
    from .report import write

    typer.echo(f"wrote {write(runs, out)}")


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe: settings and a grid of values.")],
    folder: Folder = Path("runs/sweep"),
    change: Changes = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the runs.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each in its own process.")] = 1,
    record: Annotated[
        bool, typer.Option("--record", help="Append the results to benchmarks/results/.")
    ] = False,
) -> None:
    """Run all runs of a recipe that are not finished yet. Stop and start it as you like."""
    from . import sweep as recipes

    planned = recipes.plan(recipe, folder, change or [])
    if list_only:
        for run in planned:
            typer.echo(f"{'finished' if run.is_finished else 'to do':>8}  {run.name}")
        return
    recipes.execute(planned, lambda text: typer.echo(text, err=True), jobs=jobs)
    if record:
        typer.echo(f"recorded {recipes.record_results(planned, recipe.stem)} runs")


def bench(
    names: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
        typer.Argument(
            metavar="[NAME]...", help="Benchmarks (docs/benchmarks.md lists them), or all."
        ),
    ] = None,
) -> None:
    """Measure, print and record under benchmarks/results/."""
    from . import bench as benchmarks

    failed = benchmarks.run(names or ["all"])
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def convert(
    source: Annotated[Path, typer.Argument(help="A state dict of the authors' code (.pt).")],
    target: Annotated[Path, typer.Argument(help="Folder for the converted network.")],
    axial: Annotated[bool, typer.Option("--axial", help="The weights are an AxialGATr's.")] = False,
) -> None:
    """Convert weights of the authors' code."""
    from .. import AxialGATr, GATr

    network = (AxialGATr if axial else GATr).from_original(source)
    network.save_pretrained(target)
    typer.echo(f"{network} -> {target}")


def doctor() -> None:
    """Show versions, device and chosen paths, and measure the equivariance error here."""
    from .doctor import examine

    found, healthy = examine()
    for what, finding in found:
        typer.echo(f"{what:>28}  {finding}")
    raise typer.Exit(0 if healthy else 1)


def parameters() -> None:
    """List the paper's networks (presets) with their numbers of parameters."""
    cli.show_parameters()
