"""The subcommands of `flashgatr`."""

from __future__ import annotations

import json
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
    for command in (
        demo,
        data,
        train,
        evaluate,
        predict,
        report,
        sweep,
        bench,
        convert,
        doctor,
        parameters,
    ):
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
    context: typer.Context,
    experiment: Annotated[str, typer.Argument(help="Which experiment's data: nbody or arteries.")],
    folder: Annotated[
        Optional[Path],  # noqa: UP045  typer reads the annotation at run time
        typer.Option("--folder", "-f", help="Where the files go (default: data/EXPERIMENT)."),
    ] = None,
    train: Annotated[int, typer.Option(help="nbody: number of training systems.")] = 100_000,
    others: Annotated[
        int, typer.Option(help="nbody: number of systems in each other set.")
    ] = 5_000,
    seed: Annotated[
        int, typer.Option(help="nbody, synthetic arteries: seed of all random numbers.")
    ] = 0,
    preset: Annotated[
        str, typer.Option(help="nbody: released (the authors' generator), appendix or main_text.")
    ] = "released",
    source: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="arteries: raw data, database.hdf5 or a folder of one file per sample."),
    ] = None,
    division: Annotated[
        str, typer.Option(help="arteries: whose sets, original (the authors' code) or published.")
    ] = "original",
    verify: Annotated[
        bool, typer.Option("--verify", help="arteries: compare with what the published data are.")
    ] = False,
    synthetic: Annotated[
        int,
        typer.Option(
            min=0, help="arteries: make so many vessels of our own (FOLDER/raw), then prepare them."
        ),
    ] = 0,
    mesh: Annotated[
        tuple[int, int, int],
        typer.Option(
            help="synthetic arteries: elements in the core, the ring and along the vessel."
        ),
    ] = (3, 2, 80),
    max_reduction: Annotated[
        float, typer.Option(help="synthetic arteries: the most that stenoses take off the radius.")
    ] = 0.49,
    spatial: Annotated[
        bool, typer.Option("--spatial", help="synthetic arteries: bent in space, not in a plane.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes; 0 takes as many as pay off.")] = 0,
) -> None:
    """Generate (nbody) or prepare (arteries) data. Existing files with the same settings are kept."""
    shape = ["mesh", "max_reduction", "spatial"]
    own = dict(
        nbody=["train", "others", "preset"],
        arteries=["source", "division", "verify", "synthetic", *shape],
    )
    if experiment not in own:
        raise ValueError(f"unknown experiment {experiment!r}; expected {' or '.join(own)}")
    folder = folder or Path("data") / experiment
    origins = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, place in origins.items() if place and place.name == "COMMANDLINE"]
    for name in (x for other, names in own.items() if other != experiment for x in names):
        if name in given:
            raise ValueError(f"--{name.replace('_', '-')} is not for the {experiment} data")
    if experiment == "arteries":
        from .arteries import command

        failed = 0
        if synthetic and source:
            raise ValueError("got both --source and --synthetic; expected one of them")
        if 0 < synthetic < 3:
            raise ValueError(
                f"--synthetic must be at least 3 (train, val and test), got {synthetic}"
            )
        for name in given:
            if not synthetic and name in ["seed", *shape]:
                raise ValueError(f"--{name.replace('_', '-')} goes with --synthetic NUMBER")
        if synthetic:
            from .arteries.synthetic.generate import generate

            source = folder / "raw"
            failed = len(
                generate(
                    source,
                    synthetic,
                    seed,
                    mesh=mesh,
                    workers=workers or None,
                    planar=not spatial,
                    max_reduction=max_reduction,
                    say=typer.echo,
                ).failed
            )
        code = command.data(folder, source, workers or None, division, verify)
        if failed:
            typer.echo(f"error: {failed} of {synthetic} vessels could not be made", err=True)
        raise typer.Exit(code or int(failed > 0))
    from .nbody import data as nbody
    from .nbody.simulate import preset as settings

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
    experiment: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Argument(help="Which experiment: nbody or arteries (default: the settings')."),
    ] = None,
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
        experiment, change = _experiment(experiment, change or [])
        settings = (
            configuration.load(config, experiment)
            if config
            else runs.defaults(experiment or "nbody")
        )
    if folder is not None:
        settings = replace(settings, folder=str(folder))
    settings = configuration.override(settings, change or [])
    summary = runs.train(settings, resume=resume)
    best = settings.train.restore_best and summary["best_score"] is not None
    step = summary["best_step"] if best else summary["step"]
    title = f"{settings.model.name}: weights of step {step}"
    cli.show_results(summary["results"], title, experiment=settings.experiment)


def _experiment(given: str | None, changes: list[str]) -> tuple[str | None, list[str]]:
    """The experiment, whose defaults hold for all that is not set; and the other assignments."""
    from . import config as configuration

    others = []
    for change in changes:
        path, value = configuration.read_assignment(change)
        if path == ("experiment",):
            given = str(value)
        else:
            others.append(change)
    return given, others


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    change: Changes = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", "-o", help="Write the results into this JSON file, too."),
    ] = None,
) -> None:
    """Evaluate a trained run again, on its own data or (--set data.folder=…) on other data."""
    from . import config as configuration
    from . import runs

    own = runs.load_config(cli.run_folder(run))
    settings = configuration.override(own, change or [])
    is_own = replace(settings, device=own.device) == own
    results = runs.evaluate(settings, keep=is_own)["results"]
    title = f"{run}: {settings.model.name}"
    cli.show_results(results, title, experiment=settings.experiment)
    if out is not None:
        found = {"run": str(run), "changes": change or [], "results": results}
        configuration.write_atomically(out, json.dumps(found, indent=1) + "\n")
    if not is_own:
        cli._say(
            f"{run / runs.RESULTS} stays as it is, since these are results with other settings"
        )


def predict(
    experiment: Annotated[str, typer.Argument(help="Which experiment: arteries.")],
    run: Annotated[Path, typer.Argument(help="Folder of a trained run.")],
    mesh: Annotated[
        Path, typer.Argument(help="A vessel: .vtp, .vtu, .stl, .ply, .obj, or .hdf5 as published.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where NAME.vtp and NAME.png go.")
    ] = Path("predictions"),
    inlet: Annotated[
        str, typer.Option(help="The inlet: auto, the number of an end, or a point 'x y z' near it.")
    ] = "auto",
    scale: Annotated[str, typer.Option(help="Unit of the mesh: auto, cm, mm or m.")] = "auto",
    extensions: Annotated[
        str, typer.Option(help="Straight flow extensions: auto, cut, add or keep.")
    ] = "auto",
    sample: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(help="Which sample of an HDF5 file or folder with several."),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="Point array of a .vtp or .vtu file to compare with, in dyn/cm².")
    ] = "wss_reference",
    both_signs: Annotated[
        bool, typer.Option("--both-signs", help="GATr exact under mirrors, at twice the cost.")
    ] = False,
    device: Annotated[
        Optional[str],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(help="auto, cpu or cuda, instead of the run's setting."),
    ] = None,
) -> None:
    """Predict the stress on the wall of a vessel: a .vtp file for ParaView, and a picture."""
    if experiment != "arteries":
        raise ValueError(f"unknown experiment {experiment!r} to predict in; expected arteries")
    from .arteries.vessel import predict as arteries

    found, notes, files = arteries.run(
        cli.run_folder(run),
        mesh,
        out,
        device=device or "",
        both_signs=both_signs,
        sample=sample,
        inlet=inlet,
        scale=scale,
        extensions=extensions,
        reference=reference,
    )
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    cli._table(found.mesh.name, ["", "found"], [list(row) for row in found.rows()])
    for file in files:
        typer.echo(f"wrote {file}")


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
    only: Annotated[
        Optional[list[str]],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(
            metavar="KEY=VALUE", help="Only runs with this value of the grid (repeat for more)."
        ),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the runs.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs at a time, each in its own process.")] = 1,
    record: Annotated[
        bool, typer.Option("--record", help="Append the results to benchmarks/results/.")
    ] = False,
) -> None:
    """Run all runs of a recipe that are not finished yet. Stop and start it as you like."""
    from . import sweep as recipes

    planned = recipes.select(recipes.plan(recipe, folder, change or []), only or [])
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
