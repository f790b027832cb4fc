"""Networks with types of channels beside those without: what exactness under mirrors costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from . import arteries as vessels
from . import nbody as systems
from .recipes import Group, models
from .recorded import Runs, Which, read, runs_of
from .tables import Gap, Table, emphasise, listed

NBODY, ARTERIES = "nbody_types", "arteries_mirrors"
RATE = "train.lr"


def nbody(folder: Path) -> Table:
    """A row per model and learning rate: the median error against the number of systems."""
    rows, missing = [], []
    medians: dict[str, dict[int, Runs]] = {}
    for model in models(NBODY):
        label, own = f"`{model}`", {"steps": Group(NBODY, model).steps}
        tried = _by_rate(folder, systems.FILE, Group(NBODY, model), own)
        for group, every in tried:
            sizes = {n: _with(every, train_samples=n) for n in systems.SAMPLES}
            seeds = " / ".join(str(len(runs.seeds)) for runs in sizes.values())
            cells = [runs.mean("median", set="eval") for runs in sizes.values()]
            about = [group.rate, seeds, every.cost, group.parameters, group.command]
            rows.append([label, *cells, *about])
            if len(tried) == 1:  # of several rates, the test data do not choose one
                medians[model] = sizes
        used = {line["settings"]["train_samples"] for _, runs in tried for line in runs.lines}
        absent = [f"{n:,}" for n in systems.SAMPLES if n not in used]
        if absent:
            where = f"on {listed(absent)} systems" if used else ""
            missing.append(Gap(label, Group(NBODY, model).named, where))
    head = ["n-body, median", *(f"{n:,} systems" for n in systems.SAMPLES)]
    head += ["lr", "seeds", "training", "parameters", "recipe"]
    columns = range(1, 1 + len(systems.SAMPLES))
    return Table(head, emphasise(rows, columns), missing, _ratios(medians))


def _ratios(medians: Mapping[str, Mapping[int, Runs]]) -> str:
    """How many times larger the errors are with types; geometric means over seeds."""
    told = []
    for model, sizes in medians.items():
        for n, runs in sizes.items() if model != "gatr" else ():
            ours = runs.values("median", set="eval")
            theirs = medians.get("gatr", sizes)[n].values("median", set="eval")
            if ours and theirs and "gatr" in medians:
                ratio = math.exp(_log_mean(ours) - _log_mean(theirs))
                told.append(f"{ratio:.2f} (`{model}`, {n:,} systems)")
    if not told:
        return ""
    return f"Medians as multiples of those of `gatr`, geometric means over seeds: {listed(told)}."


def _log_mean(values: Mapping[int, float]) -> float:
    return sum(map(math.log, values.values())) / len(values)


def arteries(folder: Path) -> Table:
    """A row per orientation in training, model and learning rate."""
    rows: list[list[str]] = []
    absent: dict[str, list[str]] = {}
    for orientation, model in product(vessels.ORIENTATIONS, models(ARTERIES)):
        group = Group(ARTERIES, model, {vessels.ORIENTATION: orientation})
        own = {"steps": group.steps, "orientation": orientation}
        tried = _by_rate(folder, vessels.FILE, group, own)
        for chosen, runs in tried:
            cells = [runs.mean("epsilon_mean", ".2f", split=x) for x in ("test", "test_mirrored")]
            cells += [runs.mean("change_max", ".1e", split=f"test_{x}") for x in _MOVED]
            cells.append(runs.mean("epsilon_mean", ".2f", split="val"))
            about = [chosen.rate, str(len(runs.seeds)), runs.cost, chosen.parameters]
            meshes = runs.setting("train_meshes")
            rows.append([f"`{model}`", orientation, meshes, *cells, *about, chosen.command])
        if not tried:
            absent.setdefault(model, []).append(orientation)
    missing = [
        Gap(f"`{model}`", Group(ARTERIES, model).named, _absent(some))
        for model, some in absent.items()
    ]
    head = ["arteries", "trained on", "meshes", "ε", "ε, mirrored"]
    head += ["change, moved", "change, mirrored", "ε on val"]
    head += ["lr", "seeds", "training", "parameters", "recipe"]
    return Table(head, emphasise(rows, (3, 4, 7), lambda row: tuple(row[1:3])), missing)


def _absent(orientations: list[str]) -> str:
    """Where results are missing, unless there are none at all."""
    if len(orientations) == len(vessels.ORIENTATIONS):
        return ""
    return f"on meshes of {orientations[0]} orientation"


_MOVED = ("moved", "mirrored")


def _by_rate(
    folder: Path, file: str, group: Group, settings: Mapping[str, Any]
) -> list[tuple[Group, Runs]]:
    """The recorded runs of a group, by learning rate: the recipe's, and others that were set."""
    own = dict(recipe=group.recipe, **settings)
    rates = dict.fromkeys(
        line["settings"].get(RATE)
        for line in read(folder, file)
        if line["model"] == group.model and line["settings"].get("recipe") == group.recipe
    )
    found = []
    for rate in rates:
        change = {} if rate is None else {RATE: rate}
        runs = runs_of(folder, Which(file, group.model, own | change))
        if runs.lines:
            found.append((Group(group.recipe, group.model, group.settings, change), runs))
    return found


def _with(runs: Runs, **settings: Any) -> Runs:
    return Runs([x for x in runs.lines if settings.items() <= x["settings"].items()])
