"""`flashgatr data arteries`: prepares raw data, lists the sets, compares with published data."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from .data.preparation import Result, prepare_folder
from .data.sets import DIVISIONS, describe
from .data.verification import verify as checks_of

SHOWN = 20  # failed samples named one by one


def data(
    folder: Path, source: Path | None, workers: int | None, division: str, verify: bool
) -> int:
    """Returns the exit code: 1 if samples could not be prepared or checks failed."""
    if division not in DIVISIONS:
        raise ValueError(f"unknown division {division!r}; expected {' or '.join(DIVISIONS)}")
    if source is None and not verify:
        raise ValueError(
            "expected --source with raw data to prepare, or --verify to check a folder"
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


def _show(result: Result, folder: Path) -> None:
    for error in list(result.failed.values())[:SHOWN]:
        typer.echo(f"error: {error}", err=True)
    if len(result.failed) > SHOWN:
        names = ", ".join(list(result.failed)[SHOWN:])
        typer.echo(f"error: also failed: {names}", err=True)
    typer.echo(
        f"{folder}: {result.made:,} made, {result.kept:,} kept, {len(result.failed):,} failed"
    )


def _show_checks(folder: Path, division: str) -> bool:
    checks = checks_of(folder, division)
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
