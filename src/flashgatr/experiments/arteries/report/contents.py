"""The artery report, put together."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ...report import commands, learning_curves, markup, plots
from ...report.labels import labelled
from ...report.numbers import all_numbers, groups_of
from ...report.protocol import Collected, Contents, Report, Run, Section
from . import errors, tables, wall_maps, walls
from .facts import (
    configured_orientation,
    error_per_mesh,
    is_synthetic,
    last_set,
    tested_orientation,
)
from .titles import CAPTIONS, INTRODUCTION, MODELS, PAPER_CAPTION, REFERENCE, SETS, SYNTHETIC, TITLE


def compose(collected: Collected) -> Contents:
    """The report on these runs."""
    collected = replace(collected, runs=label(collected.runs))
    runs, notes = collected.runs, collected.notes
    _note_differences(runs, notes)
    if len({tuple(sorted(error_per_mesh(run))) for run in runs}) > 1:
        notes.append("runs were evaluated on different meshes: compare them with care")
    metrics = collected.experiment.metrics
    groups = _groups(runs, (*metrics, "change_mean"))
    report = all_numbers(collected, groups, _commands(runs), reference=REFERENCE)
    for run, shown in zip(runs, report["runs"], strict=True):
        shown["per_mesh"] = error_per_mesh(run)
    pictures = _draw(collected, report)
    title, introduction, captions = _texts(groups)

    def figure(name: str) -> str:
        return markup.figure(name, pictures, captions[name])

    script = markup.preformatted(report["commands"])
    sections = [
        Section("Results", tables.results(report, metrics) + figure("figure.png")),
        Section("Meshes", figure("histograms.png") + figure("maps.png") + figure("scatter.png")),
        Section("Symmetry", tables.symmetry(report)),
        Section("Ablations", tables.ablations(report)),
        Section("Training", figure("curves.png")),
        Section(
            "Reproduce",
            script + tables.runs(report) + markup.settings(report["settings"]),
        ),
    ]
    return Contents(title, introduction, sections, report, pictures)


REPORT = Report(
    compose,
    one_of=frozenset({"test", "val"}),
    required=frozenset(
        {"epsilon_mean", "epsilon_median", "epsilon_q75", "nmae", "cosine", "meshes"}
    ),
    further=("change_mean", "train_meshes"),
)


def label(runs: Sequence[Run]) -> list[Run]:
    """The runs with labels that also tell what only the results say about the test meshes."""
    counted = [replace(run, samples=_trained_meshes(run)) for run in runs]
    found = []
    for run in labelled(counted, MODELS):
        parts = [run.label]
        if tested_orientation(run) != configured_orientation(run):
            parts.append(f"tested {tested_orientation(run)}")
        if is_synthetic(run):
            parts.append("synthetic vessels")
        found.append(replace(run, label=", ".join(parts)))
    return found


def _trained_meshes(run: Run) -> int | None:
    """The number of training meshes that the results name."""
    found = run.results[last_set(run)].get("train_meshes", math.nan)
    return int(found) if math.isfinite(found) else None


def _note_differences(runs: Sequence[Run], notes: list[str]) -> None:
    """Note results that differ from what the settings say, or are not on the paper's data."""
    if any(map(is_synthetic, runs)):
        some = "the" if all(map(is_synthetic, runs)) else "some"
        notes.append(
            f"{some} vessels are synthetic and not the paper's: errors on them cannot be compared "
            "with the paper's numbers"
        )
    for run in runs:
        if tested_orientation(run) != configured_orientation(run):
            notes.append(
                f"{run.folder} was configured with {configured_orientation(run)} orientations, its "
                f"results are on {tested_orientation(run)} ones"
            )
        wanted = run.config.data.train_samples
        if wanted and run.samples != wanted:
            notes.append(
                f"{run.folder} was configured with {wanted:,} training meshes, its results say "
                f"{run.samples:,}"
            )


def _groups(runs: Sequence[Run], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Groups of runs, with the model of each and its kind of test meshes."""
    groups = groups_of(runs, SETS, metrics)
    for group in groups:
        run = next(run for run in runs if run.label == group["label"])
        group["model"] = run.config.model.name
        group["orientation"] = tested_orientation(run)
        group["synthetic"] = is_synthetic(run)
    return groups


def _commands(runs: Sequence[Run]) -> str:
    """A script that makes the runs and the report again; the data are the user's."""
    folders = dict.fromkeys(run.config.data.folder for run in runs)
    comment = f"# the prepared meshes lie in {', '.join(map(shlex.quote, folders))}"
    return "\n".join([comment, *commands.train_each(runs), commands.report_again("arteries")])


def _texts(groups: Sequence[dict[str, Any]]) -> tuple[str, str, dict[str, str]]:
    """Title, introduction and captions, which say which vessels are synthetic, and on which meshes
    errors are.
    """
    title, introduction = TITLE, INTRODUCTION
    synthetic, shown = [group["synthetic"] for group in groups], errors.shown_set(groups)
    names, tested = {"test": "test", "val": "validation"}, {"test" in g["results"] for g in groups}
    about = dict(
        shown=names[shown],
        evaluated="test or validation" if len(tested) > 1 else names[shown],
    )
    captions = {name: text.format(**about) for name, text in CAPTIONS.items()}
    if all(synthetic):
        title += " on synthetic vessels"
        introduction += SYNTHETIC.format(some="The")
    else:
        captions["figure.png"] += f" {PAPER_CAPTION}" * (shown == "test")
        if any(synthetic):
            title += ", on synthetic vessels too"
            introduction += SYNTHETIC.format(some="Some")
    return title, introduction, captions


def _draw(collected: Collected, report: dict[str, Any]) -> dict[str, bytes | None]:
    runs, labels = collected.runs, collected.labels
    shown = cache(lambda: walls.choose(runs))
    reference = None if all(map(is_synthetic, runs)) else REFERENCE
    per_mesh = errors.best_per_label(runs)
    pictures = plots.draw_all(
        {
            "figure.png": lambda: errors.against_meshes(report["groups"], labels, reference),
            "curves.png": lambda: learning_curves.draw(
                [learning_curves.read(run) for run in runs], labels, "meshes", "mean ε, %"
            ),
            "histograms.png": lambda: errors.histograms(per_mesh, labels),
            "scatter.png": lambda: wall_maps.scatter(shown(), labels),
            "maps.png": lambda: wall_maps.maps(shown(), labels),
        },
        collected.notes,
    )
    if len(per_mesh) > plots.MOST_PANELS:
        collected.notes.append(
            f"histograms.png shows the first {plots.MOST_PANELS} of {len(per_mesh)} models"
        )
    return pictures
