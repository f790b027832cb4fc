"""Numbers that are specific to n-body reports: data, straight-line guess, commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ...report import commands as command_lines
from ...report.protocol import BAD_INPUT, Run
from .. import data
from ..metrics import summarise
from ..simulate import PRESETS, Gravity
from ..task import straight_line
from .titles import SETS

Described: TypeAlias = dict[str, dict[str, data.Description]]
"""Per data folder: the descriptions of its sets."""


def describe_data(runs: Sequence[Run], notes: list[str]) -> Described:
    """The readable data folders of the runs, starting with the one that most runs used."""
    sets: Described = {}
    folders = [run.config.data.folder for run in runs]
    for folder in sorted(dict.fromkeys(folders), key=folders.count, reverse=True):
        try:
            sets[folder] = data.describe(folder)
        except BAD_INPUT as error:
            notes.append(f"the data of some runs are not available: {error}")
    if len({d["eval"].sha256 for d in sets.values() if "eval" in d}) > 1:
        notes.append("runs were evaluated on different systems: compare them with care")
    return sets


def with_samples(run: Run, sets: Described) -> Run:
    """The run with its number of training systems, if its settings or its data give it."""
    train = sets.get(run.config.data.folder, {}).get("train")
    samples = run.config.data.train_samples or (train.count if train else None)
    return replace(run, samples=samples)


def straight_line_errors(
    runs: Sequence[Run], sets: Described, notes: list[str]
) -> dict[str, dict[str, float]]:
    """Errors of the guess x₀ + v·t on the data that most runs used."""
    guess = {}
    folder, described = next(iter(sets.items()), ("", {}))
    for name in SETS:
        source = "eval" if name == "eval_moved" else name
        used = {run.results[name]["systems"] for run in runs if name in run.results}
        if source in described and used == {described[source].count}:
            errors = straight_line(data.load(folder, source), described[source].settings.time)
            guess[name] = summarise(errors)
        elif source in described and used:
            notes.append(f"the {source} set in {folder} is not the one all runs were evaluated on")
    return guess


def commands(runs: Sequence[Run], sets: Described) -> str:
    """A script that reproduces the data, the runs and the report."""
    places = {folder: f"data/nbody{i + 1 if i else ''}" for i, folder in enumerate(sets)}
    lines = [
        _data_command(places[folder], described)
        for folder, described in sets.items()
        if "train" in described and "eval" in described
    ]
    loops: dict[tuple[str, ...], dict[int, list[int]]] = {}
    for run in runs:
        options = command_lines.assignments(run.config)
        if (place := places.get(run.config.data.folder, "data/nbody")) != "data/nbody":
            options.append(f"data.folder={place}")
        seeds = loops.setdefault((run.label, *options), {})
        seeds.setdefault(run.config.data.train_samples, []).append(run.config.seed)
    for (label, *options), seeds in loops.items():
        name = f"{command_lines.folder_name(label)}-$n-$seed"
        options = ["seed=$seed", "data.train_samples=$n", *map(shlex.quote, options)]
        for chosen in dict.fromkeys(map(tuple, seeds.values())):
            counts = " ".join(str(n) for n in seeds if tuple(seeds[n]) == chosen)
            lines.append(
                f"for n in {counts}; do for seed in {' '.join(map(str, chosen))}; do\n  "
                + command_lines.train("nbody", name, options)
                + "\ndone; done"
            )
    return "\n".join([*lines, command_lines.report_again("nbody")])


def _data_command(place: str, described: dict[str, data.Description]) -> str:
    train, others = described["train"], described["eval"].count
    known = [name for name in PRESETS if Gravity(**PRESETS[name]) == train.settings]
    return (
        f"flashgatr data nbody --folder {place} --train {train.count} --others {others} "
        f"--seed {train.seed}"
        + (f" --preset {known[0]}" if known else f"  # but with {train.settings}")
    )
