"""The robotics report: its numbers, figures and sections."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...report import commands, learning_curves, markup, plots
from ...report.labels import labelled
from ...report.numbers import all_numbers, groups_of
from ...report.protocol import BAD_INPUT, Collected, Contents, Report, Run, Section
from ..demonstrations import sets, shards
from . import data_efficiency, strip, tables
from .titles import CAPTIONS, DASHES, INTRODUCTION, KINDS, MODELS, REFERENCE, TITLE

_FURTHER = ("position", "direction", "flag", "reached", "demonstrations")


def compose(collected: Collected) -> Contents:
    """The report on these runs."""
    counted = [replace(run, samples=_demonstrations(run)) for run in collected.runs]
    collected = replace(collected, runs=labelled(counted, MODELS))
    runs = collected.runs
    data = _data(collected)
    report = all_numbers(
        collected, _groups(collected), _commands(runs, data), reference=REFERENCE, data=data
    )
    pictures = _draw(collected, report)

    def figure(name: str) -> str:
        dashes = DASHES * (name == "figure.png" and data_efficiency.shows_paper(report))
        return markup.figure(name, pictures, CAPTIONS[name] + dashes)

    sections = [
        Section(
            "Planning",
            figure("figure.png")
            + "".join(tables.planning(report, kind) for kind in KINDS)
            + figure("strip.png"),
        ),
        Section("Denoising", tables.denoising(report)),
        Section("Acting", tables.acting(report)),
        Section("Training", figure("curves.png")),
        Section("Reproduce", markup.preformatted(report["commands"]) + tables.runs(report)),
    ]
    shown = [section for section in sections if section.html]
    return Contents(TITLE, INTRODUCTION, shown, report, pictures)


REPORT = Report(compose, required_sets=frozenset({"test"}), further=_FURTHER)


def _demonstrations(run: Run) -> int | None:
    """The number of training demonstrations that the results name."""
    found = run.results["test"].get("demonstrations")
    return int(found) if found else None


def _groups(collected: Collected) -> list[dict[str, Any]]:
    """Groups of runs, each with what its results say about planning besides the numbers."""
    runs = collected.runs
    sets = list(dict.fromkeys(name for run in runs for name in run.results))
    groups = groups_of(runs, sets, (*collected.experiment.metrics, *_FURTHER))
    for group in groups:
        who = group["label"], group["samples"]
        run = next(run for run in runs if (run.label, run.samples) == who)
        group["planning"] = {
            name: {
                key: found[key]
                for key in ("scenes", "scene_set", "sampler", "sampling_steps")
                if isinstance(found.get(key), int | str)
            }
            for name, found in run.summary["results"].items()
            if name.startswith("plan_")
        }
    return groups


def _data(collected: Collected) -> dict[str, Any]:
    """What the data folders of the runs hold, where they can be read."""
    found: dict[str, Any] = {}
    for folder in dict.fromkeys(run.config.data.folder for run in collected.runs):
        if sets.is_published(Path(folder)):
            collected.notes.append(f"{folder} holds the published demonstrations")
            continue
        try:
            described = shards.describe(folder)
        except BAD_INPUT as error:
            collected.notes.append(f"the data of some runs are not available: {error}")
        else:
            found[folder] = {"sha256": described.sha256, **described.to_dict()}
            del found[folder]["shards"]
    return found


def _commands(runs: Sequence[Run], data: dict[str, Any]) -> str:
    """A script that makes the data, the runs and the report again."""
    lines = [
        f"flashgatr data kuka --folder {shlex.quote(folder)} "
        f"--demonstrations {found['demonstrations']} --seed {found['recipe']['seed']} "
        f"--diversity {found['recipe']['diversity']} --start {found['recipe']['setting']['start']}"
        for folder, found in data.items()
    ]
    return "\n".join([*lines, *commands.train_each(runs), commands.report_again("kuka")])


def _draw(collected: Collected, report: dict[str, Any]) -> dict[str, bytes | None]:
    runs, labels = collected.runs, collected.labels
    return plots.draw_all(
        {
            "figure.png": lambda: data_efficiency.draw(report, labels),
            "strip.png": lambda: strip.draw(runs),
            "curves.png": lambda: learning_curves.draw(
                [learning_curves.read(run) for run in runs],
                labels,
                "demonstrations",
                "validation loss",
            ),
        },
        collected.notes,
    )
