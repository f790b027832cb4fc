"""Finding the finished runs to report on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ... import LoadError
from ...train.settings import ConfigError
from ...train.trainer import fingerprint
from .. import runs
from ..experiment import Experiment
from . import generic, lookup
from .labels import identity_of
from .protocol import BAD_INPUT, Collected, Report, Run


def collect(paths: Sequence[Path]) -> Collected:
    """The finished runs in and below some folders, of the experiment that most runs belong to."""
    notes: list[str] = []
    folders, empty = _run_folders(paths)
    experiment = _main_experiment(folders)
    report = report_of(experiment)
    found: dict[object, Run] = {}
    unreadable: dict[str, str] = {}
    unfinished, foreign = [], []
    for folder in folders:
        if not (folder / runs.RESULTS).exists():
            unfinished.append(str(folder))
            continue
        try:
            run = read_run(folder, experiment, report)
        except BAD_INPUT as error:
            unreadable[str(folder)] = f"{error}" or type(error).__name__
            continue
        first = found.setdefault(identity_of(run.config), run)
        if first is not run:
            notes.append(f"{folder} repeats {first.folder} and is left out")
        elif run.summary.get("run") != fingerprint(run.config):
            foreign.append(str(folder))
    if unfinished:
        notes.append(f"not finished yet and left out: {', '.join(unfinished)}")
    if foreign:
        notes.append(f"results of other settings or another version: {', '.join(foreign)}")
    if not found:
        reasons = [f"{folder}: {reason}" for folder, reason in unreadable.items()] + notes
        raise LoadError(
            f"there is no finished run in {', '.join(map(str, paths))}; make one with "
            "flashgatr train" + "".join(f"\n  {reason}" for reason in reasons[:5])
        )
    if empty:
        notes.append(f"there is no run in {', '.join(empty)}")
    return Collected(experiment, list(found.values()), unreadable, notes)


def report_of(experiment: Experiment) -> Report:
    """The experiment's own report, or the generic one."""
    found = experiment.get("report")
    if found is None:
        return generic.REPORT
    if not isinstance(found, Report):
        raise ConfigError(
            f"the report of the experiment {experiment.name!r} must be a Report of "
            f"flashgatr.experiments.report.protocol, got {type(found).__name__}"
        )
    return found


def read_run(folder: Path, experiment: Experiment, report: Report) -> Run:
    """A finished run of this experiment; for other folders, an error says what is missing."""
    config = runs.load_config(folder)
    if config.experiment != experiment.name:
        raise LoadError(_other_experiment(config.experiment))
    summary = runs.read_results(folder)
    results = (summary or {}).get("results")
    if summary is None or results is None or not _has_sets(results, report):
        raise LoadError(f"{runs.RESULTS} holds no results; run flashgatr eval {folder}")
    wanted = (*experiment.metrics, experiment.count, *report.further)
    numbers: dict[str, dict[str, float]] = {}
    for name, metrics in results.items():
        if not isinstance(metrics, dict) or not report.required <= metrics.keys():
            raise LoadError(f"{runs.RESULTS} lacks metrics of {name}; run flashgatr eval {folder}")
        numbers[name] = {
            key: math.nan if metrics[key] is None else float(metrics[key])
            for key in wanted
            if key in metrics
        }
    return Run(folder, config, summary, numbers)


def _has_sets(results: object, report: Report) -> bool:
    """Whether the results have the evaluation sets that the report needs."""
    if not isinstance(results, dict) or not results:
        return False
    return report.required_sets <= results.keys() and (
        not report.one_of or bool(report.one_of & results.keys())
    )


def _other_experiment(name: str) -> str:
    if name in lookup.known_experiments():
        return f"this run belongs to the experiment {name!r}; report on one experiment at a time"
    return (
        f"this run belongs to the experiment {name!r}, which flashgatr does not know; pass the "
        "file that defines it with --experiment"
    )


def _run_folders(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """All folders with settings in and below the paths; and the paths without any."""
    folders: dict[Path, Path] = {}
    empty = []
    for path in paths:
        if not path.is_dir():
            raise LoadError(f"{path} is not a folder; pass runs, or folders that hold runs")
        files = sorted(path.rglob(runs.CONFIG))
        for file in files:
            folders.setdefault(file.parent.resolve(), file.parent)
        if not files:
            empty.append(str(path))
    return list(folders.values()), empty


def _main_experiment(folders: Sequence[Path]) -> Experiment:
    """The known experiment that most runs belong to, finished or not."""
    names = []
    for folder in folders:
        with suppress(*BAD_INPUT):
            names.append(runs.load_config(folder).experiment)
    known = lookup.known_experiments()
    return known[max(known, key=names.count)]
