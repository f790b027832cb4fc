"""The numbers of a report: of every run, and of groups of runs that differ only in their seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from ... import __version__
from ...train import settings as configuration
from .labels import model_settings, unnamed
from .protocol import Collected, Run


def all_numbers(
    collected: Collected, groups: list[dict[str, Any]], commands: str, **own: Any
) -> dict[str, Any]:
    """The content of report.json; `own` are numbers that only this experiment has."""
    if others := unnamed(collected.runs):
        collected.notes.append(
            "labels name the fewest settings that tell runs apart; runs of one model differ in "
            f"these as well: {', '.join(others)}"
        )
    return {
        "flashgatr": __version__,
        "groups": groups,
        **own,
        "runs": [_run_numbers(run) for run in collected.runs],
        "settings": {run.label: model_settings(run.config) for run in collected.runs},
        "commands": commands,
        "unreadable": collected.unreadable,
        "notes": collected.notes,
    }


def groups_of(
    runs: Iterable[Run], sets: Iterable[str], metrics: Iterable[str]
) -> list[dict[str, Any]]:
    """Means and standard errors over seeds, of runs with one label and number of samples."""
    members: dict[tuple[str, int | None], list[Run]] = {}
    for run in runs:
        members.setdefault((run.label, run.samples), []).append(run)
    groups = []
    for (label, samples), group in members.items():
        results = {
            name: {
                metric: estimate([r.results[name][metric] for r in group if name in r.results])
                for metric in metrics
                if all(metric in r.results[name] for r in group if name in r.results)
            }
            for name in sets
            if any(name in run.results for run in group)
        }
        seeds = [run.config.seed for run in group]
        steps = group[0].config.train.steps
        groups.append(dict(label=label, samples=samples, steps=steps, seeds=seeds, results=results))
    return groups


def estimate(values: list[float]) -> dict[str, Any]:
    """Mean and standard error; NaN if a value is not finite. A single value has no error.

    >>> estimate([1.0, 3.0])
    {'mean': 2.0, 'standard_error': 1.0}
    """
    if not all(map(math.isfinite, values)):
        return {"mean": math.nan, "standard_error": None}
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}


def finite(value: Any) -> Any:
    """The value with None instead of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _run_numbers(run: Run) -> dict[str, Any]:
    kept = {
        key: value if isinstance(value := run.summary.get(key), int | float) else None
        for key in ("step", "best_step", "best_score", "skipped")
    }
    who = dict(folder=str(run.folder), label=run.label, samples=run.samples, seed=run.config.seed)
    return {**who, **kept, "results": run.results, "settings": configuration.to_dict(run.config)}
