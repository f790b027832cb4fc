"""The subcommands that are the same for every experiment, a few lines each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

Folder = Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")]
Changes = Annotated[
    Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Change one setting, such as train.steps=500."
    ),
]
Record = Annotated[
    bool, typer.Option("--record", help="Append the results to benchmarks/results/.")
]


ORDER = [
    "demo",
    "data",
    "train",
    "eval",
    "predict",
    "report",
    "sweep",
    "bench",
    "convert",
    "doctor",
    "parameters",
]  # as a user needs them


class Commands(TyperGroup):
    """All subcommands, in the order of `ORDER`."""

    def list_commands(self, context: Any) -> list[str]:
        return sorted(super().list_commands(context), key=ORDER.index)


def _show_version(wanted: bool) -> None:
    if wanted:
        from ... import __version__

        typer.echo(f"flashgatr {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Experiments of the Geometric Algebra Transformer."""


ExperimentFile = Annotated[
    Optional[Path],  # noqa: UP045  typer reads the annotation at run time
    typer.Option(
        "--experiment",
        "-e",
        metavar="FILE",
        help="The Python file that defines the run's experiment, if it is one of your own.",
    ),
]


def _experiments(incomplete: str) -> list[str]:
    """The names of experiments that the tab key offers."""
    from .. import table

    return [name for name in table.names() if name.startswith(incomplete)]


def train(
    experiment: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Argument(
            help="Which experiment: its name, or a Python file that defines EXPERIMENT (default: "
            "the settings').",
            autocompletion=_experiments,
        ),
    ] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", "-c", help="A TOML file with settings, or a run that has some."),
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
    file: ExperimentFile = None,
) -> None:
    """Train a model. Stop it any time; --resume goes on as if nothing had happened."""
    from ...train.settings import override
    from .. import console, runs, shipped, table

    name = _name(experiment, file)
    if resume and config is None and folder is not None and (not change or runs.is_run(folder)):
        settings = runs.load_config(runs.require_run(folder))
        if name not in (None, settings.experiment):
            raise ValueError(f"{folder} is a run of {settings.experiment!r}, not of {name!r}")
    else:  # with settings given, --resume means: start it, or continue it
        name, change = _chosen(name, change or [])
        if config is not None:
            given = shipped.find(config)
            settings = runs.load_settings(given / runs.CONFIG if given.is_dir() else given, name)
        else:
            settings = runs.make_settings({} if name is None else {"experiment": name})
    if folder is not None:
        settings = replace(settings, folder=str(folder))
    settings = override(settings, change or [])
    summary = runs.train(settings, resume=resume)
    best = settings.train.restore_best and summary["best_score"] is not None
    step = summary["best_step"] if best else summary["step"]
    title = f"{settings.model.name}: weights of step {step}"
    console.show_results(table.find(settings.experiment), summary["results"], title)


def _name(experiment: str | None, file: Path | None) -> str | None:
    """The experiment's name, after running the file that defines it, if one is given."""
    from .. import table

    if experiment is not None and experiment.endswith(".py"):
        if file is not None:
            raise ValueError(f"got two files that define an experiment: {experiment} and {file}")
        file, experiment = Path(experiment), None
    if file is None:
        return experiment
    defined = table.load_file(file).name
    if experiment not in (None, defined):
        raise ValueError(f"{file} defines the experiment {defined!r}, not {experiment!r}")
    return defined


def _chosen(given: str | None, changes: list[str]) -> tuple[str | None, list[str]]:
    """The experiment that the arguments name, and the assignments without `experiment`."""
    from ...train.settings import read_assignment

    others = []
    for change in changes:
        path, value = read_assignment(change)
        if path == ("experiment",):
            given = str(value)
        else:
            others.append(change)
    return given, others


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or pretrained:NAME.")],
    change: Changes = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", "-o", help="Write the results into this JSON file, too."),
    ] = None,
    record: Record = False,
    file: ExperimentFile = None,
) -> None:
    """Evaluate a trained run again, on its own data or (--set data.folder=…) on other data."""
    from ...train.settings import override, write_atomically
    from .. import console, recording, runs, shipped, table

    _name(None, file)
    given, run = run, shipped.find(run)
    own = runs.load_config(runs.require_run(run))
    settings = override(own, change or [])
    is_own = given == run and replace(settings, device=own.device) == own
    results = runs.evaluate(settings, keep=is_own)["results"]
    title = f"{run}: {settings.model.name}"
    console.show_results(table.find(settings.experiment), results, title)
    if out is not None:
        found = {"run": str(run), "changes": change or [], "results": results}
        write_atomically(out, json.dumps(found, indent=1) + "\n")
    if record:
        differing = recording.changed(own, settings)
        if settings.data.folder != own.data.folder:
            differing["data.folder"] = settings.data.folder
        recording.record_run(settings, results, recording.name_of(given), differing)
    if not is_own:
        console.say(
            f"{run / runs.RESULTS} stays as it is, since these are results with other settings"
        )


def report(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the report.")] = Path(
        "report"
    ),
    file: ExperimentFile = None,
) -> None:
    """Write a report (HTML, PNG, JSON) on finished runs."""
    from ..report import write

    _name(None, file)
    typer.echo(f"wrote {write(runs, out)}")


def sweep(
    recipe: Annotated[
        Path,
        typer.Argument(help="A recipe: a file with settings and a grid of values, or recipe:NAME."),
    ],
    folder: Folder = Path("runs/sweep"),
    change: Changes = None,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(
            metavar="KEY=VALUE", help="Only runs with this value of the grid (repeat for more)."
        ),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the runs.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, each in its own process.")] = 1,
    record: Record = False,
    file: ExperimentFile = None,
) -> None:
    """Run all runs of a recipe that are not finished yet. Stop and start it as you like."""
    from .. import shipped
    from .. import sweep as recipes

    recipe = shipped.find(recipe)
    every = recipes.plan(recipe, folder, change or [], _name(None, file))
    planned = recipes.select(every, only or [])
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
            metavar="[NAME]...",
            show_default="all",
            help="Benchmarks (docs/benchmarks.md lists them), or all.",
        ),
    ] = None,
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--model", help="Measure this model only; may repeat. Few benchmarks take it."
        ),
    ] = None,
) -> None:
    """Measure, print and record under benchmarks/results/."""
    from .. import bench as benchmarks

    failed = benchmarks.run(names or ["all"], model or [])
    if failed:
        typer.echo(f"failed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def convert(
    source: Annotated[Path, typer.Argument(help="A state dict of the authors' code (.pt).")],
    target: Annotated[Path, typer.Argument(help="Folder for the converted network.")],
    axial: Annotated[bool, typer.Option("--axial", help="The weights are an AxialGATr's.")] = False,
) -> None:
    """Convert weights of the authors' code."""
    from ... import AxialGATr, GATr

    network = (AxialGATr if axial else GATr).from_original(source)
    network.save_pretrained(target)
    typer.echo(f"{network} -> {target}")


def doctor() -> None:
    """Show versions, device and chosen paths, and measure the equivariance error here."""
    from ..doctor import examine

    found, healthy = examine()
    for what, finding in found:
        typer.echo(f"{what:>28}  {finding}")
    raise typer.Exit(0 if healthy else 1)


def parameters() -> None:
    """List the paper's networks (presets) with their numbers of parameters."""
    from . import presets

    presets.show()
