"""Equivariance errors of trained models by dtype, as they are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ... import shipped
from ... import table as experiments
from ...equivariance import DTYPES, METRIC
from .recipes import named
from .recorded import machines, read
from .tables import NOTHING, Gap, Table, leading, listed

ROUNDING = 1e-9
"""Errors below are due to rounding in float64."""
Groups = dict[tuple[str, str], dict[str, dict[str, Any]]]
"""The last line of every run and dtype, by model and recipe."""


def errors(folder: Path) -> Table:
    """A row per experiment, model and recipe: the largest error of all its runs, each measured last
    in this dtype.
    """
    rows, missing = [], []
    for experiment in experiments.BUILT_IN:
        groups: Groups = {}
        for line in read(folder, f"{experiment}-{METRIC}"):
            group = groups.setdefault((line["model"], line["settings"]["recipe"]), {})
            group[_settings(line["settings"])] = line
        rows += [[experiment, *key, *_cells([*group.values()])] for key, group in groups.items()]
        missing += _missing(folder, experiment, groups)
    head = ["experiment", "model", "recipe", *DTYPES, "runs", "measured on"]
    return Table(head, rows, missing, _exact(rows))


def _missing(folder: Path, experiment: str, groups: Groups) -> list[Gap]:
    """Trained models whose symmetry is not measured; not those that compare learning rates."""
    if experiments.find(experiment).get("symmetry") is None:
        return []
    recipes = [name for name in shipped.known(shipped.RECIPE) if "rates" not in name.split("_")]
    trained = [
        (line["model"], line["settings"].get("recipe"))
        for line in read(folder, f"{experiment}-accuracy")
    ]
    return [
        Gap(f"`{model}`", named(recipe))
        for model, recipe in dict.fromkeys(trained)
        if recipe in recipes and (model, recipe) not in groups
    ]


def _exact(rows: list[list[str]]) -> str:
    """Which models have the symmetry, by their errors in float64."""
    errors = [(f"`{row[1]}` ({row[0]})", leading(row[3])) for row in rows]
    exact = [name for name, x in errors if x is not None and x < ROUNDING]
    broken = [name for name, x in errors if x is not None and x >= ROUNDING]
    parts = []
    if exact:
        parts.append(f"In float64 the errors of {listed(exact)} are rounding errors")
    if broken:
        parts.append(f"without the symmetry: {listed(broken)}")
    return f"{'; '.join(parts)}." if parts else ""


def _cells(lines: list[dict[str, Any]]) -> list[str]:
    cells = []
    for dtype in DTYPES:
        found = [line["value"] for line in lines if line["settings"]["dtype"] == dtype]
        cells.append(f"{max(found):.1e}" if found else NOTHING)
    runs = {
        _settings({k: x for k, x in line["settings"].items() if k != "dtype"}) for line in lines
    }
    return [*cells, str(len(runs)), " and ".join(machines(lines))]


def _settings(told: dict[str, Any]) -> str:
    return str(sorted(told.items(), key=str))
