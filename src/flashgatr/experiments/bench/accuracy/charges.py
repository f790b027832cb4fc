"""Charged particles and gravity: published errors beside ours, and predictions without networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...charges.report import PUBLISHED
from ...nbody.report.titles import MODELS
from .recipes import Group, models
from .recorded import Runs, Which, number, runs_of
from .tables import NOTHING, Gap, Table, emphasise, listed, rank

FILE = "charges-accuracy"
SYSTEMS = "3,000"
"""Training systems of published results."""
HORIZONS = (1000, 1500, 2000)
DATA: dict[str, dict[str, Any]] = {
    "charges": dict(force="charges", clip="coordinate"),
    "charges with `--clip norm`": dict(force="charges", clip="norm"),
    "gravity": dict(force="gravity"),
}
REVERSE = "data.options.reverse_time"
INPUT_STEP = {"charges": 3100, "gravity": 0}


def standard(folder: Path) -> Table:
    """Published and our results, by their errors; the best prediction without a network last."""
    rows, missing = [], []
    about = dict(horizon=1000, **DATA["charges"])
    for model in models("charges_standard"):
        absent = []
        for reverse in (False, True):
            group = Group("charges_standard", model, {REVERSE: reverse})
            runs = _runs(folder, group, {**about, REVERSE: reverse})
            if not runs.lines:
                absent.append("with" if reverse else "without")
                continue
            cells = runs.mean("mse", ".4f", set="test"), runs.mean("median", set="test")
            systems = number(group.configs[0].data.train_samples) + ", each also reversed" * reverse
            rows.append([MODELS[model], *cells, systems, *_costs(group, runs)])
        if absent:
            missing.append(Gap(MODELS[model], group.named, f"{listed(absent)} reversed systems"))
    head = ["model", "mse", "median", "training systems", "steps", "lr", "seeds", "training"]
    head += ["parameters", "recipe or source"]
    if not rows:
        return Table(head, [], missing)
    theirs = [[f"{x.method}, published", x.mse, NOTHING, SYSTEMS] for x in PUBLISHED]
    sources = [x.source for x in PUBLISHED]
    rows += [[*x, *[NOTHING] * 5, source] for x, source in zip(theirs, sources, strict=True)]
    rows.sort(key=lambda row: rank(row[1]))
    shown = emphasise(rows, (1, 2), lambda row: row[3])
    shown += _linear(folder, "charges", (1000,), "mse", "median")
    return Table(head, shown, missing, _beside(rows))


def _costs(group: Group, runs: Runs) -> list[str]:
    seeds = str(len(runs.seeds))
    return [number(group.steps), group.rate, seeds, runs.cost, group.parameters, group.command]


def _beside(rows: list[list[str]]) -> str:
    """Our least error beside the lowest published one; the rows are ranked."""
    least = next(row for row in rows if "published" not in row[0])
    lowest = min(PUBLISHED, key=lambda x: float(x.mse))
    return (
        f"Our least error is {least[1]} ({least[0]}; training systems: {least[3]}), the lowest "
        f"published one that we know {lowest.mse} ({lowest.method}; training systems: {SYSTEMS})."
    )


def _runs(folder: Path, group: Group, about: Mapping[str, Any]) -> Runs:
    own = dict(recipe=group.recipe, steps=group.steps, **about)
    return runs_of(folder, Which(FILE, group.model, own))


def _linear(folder: Path, data: str, steps: Sequence[int], *metrics: str) -> list[list[str]]:
    """A row of the affine map; none if it is not measured."""
    about = dict(input_step=INPUT_STEP[str(DATA[data]["force"])], **DATA[data])
    found = [runs_of(folder, Which(FILE, "affine map", dict(horizon=n, **about))) for n in steps]
    forms = {"mse": ".4f", "median": ".2e"}
    cells = [runs.mean(x, forms[x], set="test") for runs in found for x in metrics]
    if not any(runs.lines for runs in found):
        return []
    return [["no network: affine map", *cells, *[NOTHING] * 6, "`flashgatr bench charges-limits`"]]


def horizons(data: str, folder: Path) -> Table:
    """All networks are trained on reversed systems as well."""
    rows, missing = [], []
    recipe = "charges_gravity" if data == "gravity" else "charges_horizons"
    given = {} if data == "gravity" else {"data.options.clip": DATA[data]["clip"]}
    for model in models(recipe):
        group = Group(recipe, model, {REVERSE: True, **given})
        found = [_runs(folder, group, dict(horizon=n, **DATA[data])) for n in HORIZONS]
        every = Runs([line for runs in found for line in runs.lines])
        if not every.lines:
            missing.append(Gap(MODELS[model], group.named, f"on {data}"))
            continue
        cells = [runs.mean("mse", ".4f", set="test") for runs in found]
        rows.append([MODELS[model], *cells, *_costs(group, every)])
    shown = emphasise(rows, range(1, 1 + len(HORIZONS)))
    if shown:
        shown += [[*row[:4], *row[5:]] for row in _linear(folder, data, HORIZONS, "mse")]
    head = [data, *(f"{n:,} steps ahead, mse" for n in HORIZONS), "steps", "lr", "seeds"]
    return Table([*head, "training", "parameters", "recipe"], shown, missing)
