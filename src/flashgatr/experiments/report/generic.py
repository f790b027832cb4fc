"""The report on an experiment that has none of its own.

It has tables of the metrics that the experiment declares, learning curves, settings, commands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..experiment import Experiment
from . import commands, learning_curves, markup, plots
from .labels import labelled
from .numbers import all_numbers, groups_of
from .protocol import Collected, Contents, Report, Section

CAPTION = "Score on the validation set during training, one line per run."


def compose(collected: Collected) -> Contents:
    """The generic report."""
    collected = replace(collected, runs=labelled(collected.runs))
    experiment, runs = collected.experiment, collected.runs
    sets = list(dict.fromkeys(name for run in runs for name in run.results))
    groups = groups_of(runs, sets, experiment.metrics)
    script = "\n".join([*commands.train_each(runs), commands.report_again(experiment.name)])
    numbers = all_numbers(collected, groups, script, experiment=experiment.name)
    curves = [learning_curves.read(run) for run in runs]
    count = experiment.count
    pictures = plots.draw_all(
        {
            learning_curves.FILE: lambda: learning_curves.draw(
                curves, collected.labels, count, "validation score"
            )
        },
        collected.notes,
    )
    sections = [
        Section("Results", "".join(_results(collected, groups, name) for name in sets)),
        Section("Training", markup.figure(learning_curves.FILE, pictures, CAPTION)),
        Section(
            "Reproduce",
            markup.preformatted(script)
            + _runs(numbers["runs"], sets, experiment)
            + markup.settings(numbers["settings"]),
        ),
    ]
    introduction = f"{experiment.summary} ± is the standard error over seeds.".strip()
    return Contents(
        experiment.name, f"<p>{markup.escape(introduction)}</p>", sections, numbers, pictures
    )


REPORT = Report(compose)


def _results(collected: Collected, groups: list[dict[str, Any]], name: str) -> str:
    """The table of one evaluation set: a row per group, a column per metric that was measured."""
    experiment = collected.experiment
    counts = {run.results.get(name, {}).get(experiment.count) for run in collected.runs}
    size = " or ".join(f"{n:,.0f}" for n in sorted(n for n in counts if n is not None))
    about = f"<p>{size} {markup.escape(experiment.count)}.</p>" if size else ""
    measured = [group for group in groups if name in group["results"]]
    columns = [
        key
        for key in experiment.metrics
        if any(key in group["results"][name] for group in measured)
    ]
    rows = [
        [
            group["label"],
            markup.count_text(group["samples"]),
            markup.count_text(group["steps"]),
            len(group["seeds"]),
            *(_cell(group["results"][name].get(key), experiment, key) for key in columns),
        ]
        for group in measured
    ]
    head = ["model", f"training {experiment.count}", "steps", "seeds"]
    head += [_title(experiment, key) for key in columns]
    lacking = markup.absent([group["label"] for group in groups if group not in measured])
    return f"<h3>{markup.escape(name)}</h3>{about}" + markup.table(head, rows) + lacking


def _runs(runs: list[dict[str, Any]], sets: list[str], experiment: Experiment) -> str:
    columns = {
        f"{name}: {_title(experiment, key)}": (name, key)
        for name in sets
        for key in experiment.metrics
        if any(key in run["results"].get(name, {}) for run in runs)
    }

    def show(metric: str, value: float) -> str:
        return format(value, experiment.metrics[metric].format)

    return markup.all_runs(runs, experiment.count, columns, show)


def _cell(found: dict[str, Any] | None, experiment: Experiment, key: str) -> str:
    style = experiment.metrics[key].format
    if found is None:
        return ""
    return markup.estimate_text(found["mean"], found["standard_error"], lambda x: format(x, style))


def _title(experiment: Experiment, key: str) -> str:
    """The title of a metric with its unit, if it has one that the title does not name."""
    metric = experiment.metrics[key]
    is_named = metric.unit in ("", "1") or metric.unit in metric.title
    return metric.title if is_named else f"{metric.title}, {metric.unit}"
