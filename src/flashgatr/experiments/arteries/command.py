"""`flashgatr data arteries` and `flashgatr predict arteries`: their options and output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from .anchoring import AnchorChoice
    from .data.preparation import PreparationResult

SHOWN = 20  # failed samples named one by one
MESH = (3, 2, 80)
MAX_REDUCTION = 0.49


def data(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")] = Path(
        "data/arteries"
    ),
    source: Annotated[
        Optional[Path],  # noqa: UP045  typer reads the annotation at run time
        typer.Option(help="Raw data: database.hdf5 or a folder of one file per sample."),
    ] = None,
    division: Annotated[
        str, typer.Option(help="Whose sets: original (the authors' code) or published.")
    ] = "original",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with what the published data are.")
    ] = False,
    levels: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            help="Also compute what this model knows about surfaces (pointnet2, gem_cnn), in "
            "parallel; training does it otherwise. May repeat."
        ),
    ] = None,
    synthetic: Annotated[
        int,
        typer.Option(
            min=0, help="Make so many vessels of our own (FOLDER/raw), then prepare them."
        ),
    ] = 0,
    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(show_default="0", help="Synthetic vessels: seed of all random numbers."),
    ] = None,
    mesh: Annotated[
        Optional[tuple[int, int, int]],  # noqa: UP045
        typer.Option(
            show_default="3 2 80",
            help="Synthetic vessels: elements in the core, the ring and along the vessel.",
        ),
    ] = None,
    max_reduction: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            show_default="0.49",
            help="Synthetic vessels: the most that stenoses take off the radius.",
        ),
    ] = None,
    spatial: Annotated[
        bool, typer.Option("--spatial", help="Synthetic vessels: bent in space, not in a plane.")
    ] = False,
    fields: Annotated[
        Optional[tuple[int, int]],  # noqa: UP045
        typer.Option(
            show_default=False,
            help="Synthetic vessels: also keep their flow, and draw so many random points in the "
            "lumen and on the wall (FOLDER/fields).",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; 0 takes as many as pay off.")] = 0,
) -> None:
    """Prepare vessels, published ones or synthetic ones. Finished files are kept."""
    shape: dict[str, Any] = dict(seed=seed, mesh=mesh, max_reduction=max_reduction)
    shape |= dict(spatial=spatial or None, fields=fields)
    given = {name: value for name, value in shape.items() if value is not None}
    _require_sense(source, synthetic, given)
    failed = 0
    if synthetic:
        source = folder / "raw"
        failed = _make(source, synthetic, workers or None, given)
        if fields:
            failed += _draw_points(source, folder / "fields", fields, seed or 0, workers or None)
    code = 0
    if source is not None or verify or not levels:
        code = prepare(folder, source, workers or None, division, verify)
    for name in levels or []:
        _prepare_levels(folder, name, division, workers or None)
    if failed:
        typer.echo(f"error: {failed} of {synthetic} vessels could not be made", err=True)
    raise typer.Exit(code or int(failed > 0))


def _require_sense(source: Path | None, synthetic: int, given: dict[str, Any]) -> None:
    """Refuse options that do not go together."""
    if synthetic and source:
        raise ValueError("got both --source and --synthetic; expected one of them")
    if "fields" in given and (min(given["fields"]) < 0 or not any(given["fields"])):
        raise ValueError(
            "--fields must be two numbers of points, not both 0, got {} {}".format(*given["fields"])
        )
    if 0 < synthetic < 3:
        raise ValueError(f"--synthetic must be at least 3 (train, val and test), got {synthetic}")
    if given and not synthetic:
        name = next(iter(given)).replace("_", "-")
        raise ValueError(f"--{name} goes with --synthetic NUMBER")


def _make(folder: Path, count: int, workers: int | None, given: dict[str, Any]) -> int:
    """Make synthetic vessels; returns how many could not be made."""
    from .synthetic.generate import generate

    result = generate(
        folder,
        count,
        given.get("seed", 0),
        mesh=given.get("mesh", MESH),
        workers=workers,
        planar=not given.get("spatial", False),
        max_reduction=given.get("max_reduction", MAX_REDUCTION),
        solutions="fields" in given,
        say=typer.echo,
    )
    return len(result.failed)


def _draw_points(
    solutions: Path, folder: Path, counts: tuple[int, int], seed: int, workers: int | None
) -> int:
    """Draw points of the flow fields, and a picture of the first; returns how many failed."""
    from ...io.files import write
    from .data.field_points import field_files
    from .synthetic.field_files import make_fields
    from .synthetic.field_picture import picture
    from .synthetic.solution import read_solution

    result = make_fields(solutions, folder, *counts, seed, workers=workers, say=typer.echo)
    first = field_files(folder)[0]
    image = first.with_suffix(".png")
    if not image.exists():
        write(image, picture(read_solution(solutions / first.name)))
    typer.echo(
        f"{folder}: points of {len(result.made):,} vessels made, {len(result.kept):,} kept, "
        f"{len(result.failed):,} failed; {image} shows {first.stem}"
    )
    return len(result.failed)


def _prepare_levels(folder: Path, name: str, division: str, workers: int | None) -> None:
    """Keep the scales and neighbours that a network on surfaces needs, for all sets."""
    from . import EXPERIMENT
    from .data.levels import prepare_levels
    from .data.sets import SETS, choose, load

    hierarchy = getattr(EXPERIMENT.build(name, {}), "hierarchy", None)
    if hierarchy is None:
        raise ValueError(f"--levels is for networks on surfaces, such as pointnet2, got {name!r}")
    for split in SETS:
        choose(folder, split, division=division)  # an error names the set that is missing
        meshes = load(folder, split, division=division)
        typer.echo(f"{split}: levels of {len(meshes):,} meshes for {name}")
        prepare_levels(meshes, hierarchy, folder, workers, _progress)


def prepare(
    folder: Path, source: Path | None, workers: int | None, division: str, verify: bool
) -> int:
    """Returns the exit code: 1 if samples could not be prepared or checks failed."""
    from .data.preparation import prepare_folder
    from .data.sets import DIVISIONS, describe

    if division not in DIVISIONS:
        raise ValueError(f"unknown division {division!r}; expected {' or '.join(DIVISIONS)}")
    if source is None and not verify:
        raise ValueError(
            "expected --source with raw data to prepare, --synthetic NUMBER to generate vessels, "
            "or --verify to check a folder"
        )
    failed = False
    if source is not None:
        result = prepare_folder(source, folder, workers=workers, progress=_progress)
        _show(result, folder)
        failed = bool(result.failed)
        if not result.made + result.kept:
            return 1
    if verify:
        return int(not _show_checks(folder, division) or failed)
    for name, found in describe(folder, division).items():
        scale = "no labels" if found.label_scale is None else f"label scale {found.label_scale:.3f}"
        typer.echo(f"{name}: {found.meshes:,} meshes, {found.nodes:,} nodes, {scale}")
    return int(failed)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a trained run, or pretrained:NAME.")],
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
        Optional[str],  # noqa: UP045
        typer.Option(help="Which sample of an HDF5 file or folder with several."),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="Point array of a .vtp or .vtu file to compare with, in dyn/cm².")
    ] = "wss_reference",
    both_signs: Annotated[
        bool, typer.Option("--both-signs", help="GATr exact under mirrors, at twice the cost.")
    ] = False,
    anchors: Annotated[
        int,
        typer.Option(
            min=0,
            show_default="none",
            help="All nodes attend to so many of them, for GATr on fine meshes.",
        ),
    ] = 0,
    anchor_method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            show_default="medoids", help="How anchors are chosen: medoids, farthest or random."
        ),
    ] = None,
    no_anchor_weights: Annotated[
        bool,
        typer.Option(
            "--no-anchor-weights", help="Anchors do not count as the nodes that they stand for."
        ),
    ] = False,
    anchor_seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(show_default="0", help="Seed of the choice of anchors."),
    ] = None,
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="auto, cpu or cuda, instead of the run's setting."),
    ] = None,
) -> None:
    """Predict the stress on the wall of a vessel: a .vtp file for ParaView, and a picture."""
    from .. import runs, shipped
    from ..console import progress_bar, show_table
    from .vessel.predict import run as predict_files

    weighted = False if no_anchor_weights else None
    given = dict(method=anchor_method, weighted=weighted, seed=anchor_seed)
    found, notes, files = predict_files(
        runs.require_run(shipped.find(run)),
        mesh,
        out,
        device=device or "",
        both_signs=both_signs,
        anchors=_anchors(anchors, {name: x for name, x in given.items() if x is not None}),
        progress=progress_bar("nodes"),
        sample=sample,
        inlet=inlet,
        scale=scale,
        extensions=extensions,
        reference=reference,
    )
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    show_table(found.mesh.name, ["", "found"], [list(row) for row in found.rows()])
    for file in files:
        typer.echo(f"wrote {file}")


def _anchors(count: int, given: dict[str, Any]) -> AnchorChoice | None:
    """The choice of anchors; None without --anchors, of which the others are details."""
    from .anchoring import AnchorChoice

    if count:
        return AnchorChoice(count, **given)
    if given:
        names = dict(method="anchor-method", weighted="no-anchor-weights", seed="anchor-seed")
        raise ValueError(f"--{names[next(iter(given))]} goes with --anchors NUMBER")
    return None


def _show(result: PreparationResult, folder: Path) -> None:
    for error in list(result.failed.values())[:SHOWN]:
        typer.echo(f"error: {error}", err=True)
    if len(result.failed) > SHOWN:
        names = ", ".join(list(result.failed)[SHOWN:])
        typer.echo(f"error: also failed: {names}", err=True)
    typer.echo(
        f"{folder}: {result.made:,} made, {result.kept:,} kept, {len(result.failed):,} failed"
    )


def _show_checks(folder: Path, division: str) -> bool:
    from .data.verification import verify

    checks = verify(folder, division)
    for check in checks:
        known = check.expected is not None
        verdict = (
            ("as published" if check.passed else "WRONG") if known else "nothing to compare with"
        )
        expected = f"{check.expected:>14,.6g}" if check.expected is not None else " " * 14
        typer.echo(f"{check.what:>26} {check.found:>14,.8g} {expected}  {verdict}")
    if all(check.expected is None for check in checks):
        typer.echo(
            "the files are intact, but they are not the published data, or too few to compare"
        )
    return all(check.passed for check in checks)


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    if sys.stderr.isatty():
        print(f"\r{done:,} of {total:,} samples", end=end, file=sys.stderr, flush=True)
    elif done == total or done % 100 == 0:
        print(f"{done:,} of {total:,} samples", file=sys.stderr, flush=True)
