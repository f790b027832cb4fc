"""The experiments that runs can belong to."""

from __future__ import annotations

from functools import cache

from .. import runs
from ..experiment import Experiment, Metric
from ..measures import MEASURES


@cache
def known_experiments() -> dict[str, Experiment]:
    """All experiments, by name; of two with as many runs, a report is about the first."""
    return {
        name: Experiment(
            name,
            task=runs.task_of(name),
            metrics={
                key: Metric(*column, recorded=key in measures.recorded)
                for key, column in measures.columns.items()
            },
            count=measures.count,
            place=measures.place,
            report=f"flashgatr.experiments.{name}.report.contents:REPORT",
        )
        for name, measures in MEASURES.items()
    }


def argument_of(experiment: str) -> str:
    """How a command line names an experiment: by name, or by the user's file that defines it."""
    return experiment
