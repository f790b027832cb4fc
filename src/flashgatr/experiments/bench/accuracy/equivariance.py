"""Equivariance errors of trained models by dtype, as they are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ... import table as experiments
from ...equivariance import DTYPES, METRIC
from .recorded import MISSING, machines, read, table


def errors(folder: Path) -> str:
    """A row per experiment, model and recipe: the largest error of all its runs, each measured last
    in this dtype.
    """
    rows = []
    for experiment in experiments.BUILT_IN:
        groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for line in read(folder, f"{experiment}-{METRIC}"):
            group = groups.setdefault((line["model"], line["settings"]["recipe"]), {})
            group[_settings(line["settings"])] = line
        rows += [[experiment, *key, *_cells([*group.values()])] for key, group in groups.items()]
    if not rows:
        return f"No run is recorded: all models are {MISSING}."
    head = ["experiment", "model", "recipe", *DTYPES, "runs", "measured on"]
    return table(head, rows)


def _cells(lines: list[dict[str, Any]]) -> list[str]:
    cells = []
    for dtype in DTYPES:
        found = [line["value"] for line in lines if line["settings"]["dtype"] == dtype]
        cells.append(f"{max(found):.1e}" if found else MISSING)
    runs = {
        _settings({k: x for k, x in line["settings"].items() if k != "dtype"}) for line in lines
    }
    return [*cells, str(len(runs)), " and ".join(machines(lines))]


def _settings(told: dict[str, Any]) -> str:
    return str(sorted(told.items(), key=str))
