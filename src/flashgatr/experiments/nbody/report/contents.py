"""The n-body report: its numbers, figures and sections."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ...report import learning_curves, markup, plots
from ...report.labels import labelled
from ...report.numbers import all_numbers, groups_of
from ...report.protocol import Collected, Contents, Report, Section
from . import data_efficiency, numbers, tables, trajectories
from .numbers import Described
from .titles import CAPTIONS, INTRODUCTION, METRICS, MODELS, REFERENCE, SETS, TITLE


def compose(collected: Collected) -> Contents:
    """The report on these runs."""
    sets = numbers.describe_data(collected.runs, collected.notes)
    counted = [numbers.with_samples(run, sets) for run in collected.runs]
    collected = replace(collected, runs=labelled(counted, MODELS))
    if any(run.samples is None for run in collected.runs):
        collected.notes.append(
            "runs on all of a training set that is not at hand are not in the figure"
        )
    report = all_numbers(
        collected,
        groups_of(collected.runs, SETS, METRICS),
        numbers.commands(collected.runs, sets),
        straight_line=numbers.straight_line_errors(collected.runs, sets, collected.notes),
        reference=REFERENCE,
        data={folder: {k: asdict(v) for k, v in d.items()} for folder, d in sets.items()},
    )
    pictures = _draw(collected, sets, report)

    def figure(name: str) -> str:
        caption = data_efficiency.caption(report) if name == "figure.png" else CAPTIONS[name]
        return markup.figure(name, pictures, caption)

    sections = [
        Section(
            "Results",
            figure("figure.png") + "".join(tables.results(report, name) for name in SETS),
        ),
        Section("Systems", figure("trajectories.png")),
        Section("Training", figure("curves.png")),
        Section("Reproduce", markup.preformatted(report["commands"]) + tables.runs(report)),
    ]
    return Contents(TITLE, INTRODUCTION, sections, report, pictures)


REPORT = Report(compose, required=frozenset({*METRICS, "systems"}))


def _draw(collected: Collected, sets: Described, report: dict[str, Any]) -> dict[str, bytes | None]:
    runs, labels = collected.runs, collected.labels
    return plots.draw_all(
        {
            "figure.png": lambda: data_efficiency.draw(report, labels),
            "curves.png": lambda: learning_curves.draw(
                [learning_curves.read(run) for run in runs],
                labels,
                collected.experiment.count,
                "mean squared error",
            ),
            "trajectories.png": lambda: trajectories.draw(trajectories.scenes(runs, sets), labels),
        },
        collected.notes,
    )
