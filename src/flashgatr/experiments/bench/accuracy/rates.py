"""Learning rates chosen on validation: which were tried, their errors on val, and the best one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ... import recording, shipped
from ... import table as experiments
from ...sweep import Planned
from .recipes import Group, assigned, named, planned
from .recorded import Runs, Which, least, runs_of
from .tables import NOTHING, Gap, Table, listed

RATE = "train.lr"


class Score(NamedTuple):
    """What validation minimises, as it is recorded and shown."""

    metric: str
    format: str


SCORES = {
    "nbody": Score("mse", ".5f"),
    "charges": Score("mse", ".4f"),
    "arteries": Score("epsilon_mean", ".2f"),
}
"""By experiment."""


def recipes() -> list[str]:
    """The recipes of these experiments that compare rates."""
    names = [name for name in shipped.known(shipped.RECIPE) if "rates" in name.split("_")]
    return [name for experiment in SCORES for name in names if name.startswith(experiment)]


def chosen(folder: Path) -> Table:
    """A row per model and other settings of a recipe."""
    rows, missing = [], []
    for recipe in recipes():
        for runs in _groups(recipe).values():
            found = {run.config.train.lr: _recorded(folder, recipe, run) for run in runs}
            absent = [f"{rate:g}" for rate, own in found.items() if not own.lines]
            if len(absent) < len(found):
                rows.append(_row(recipe, runs, found))
            if absent:
                some = f"at {listed(absent)}" if len(absent) < len(found) else ""
                missing.append(Gap(f"`{runs[0].config.model.name}`", named(recipe), some))
    head = ["experiment", "model", "other settings", "learning rates and errors on val", "chosen"]
    return Table([*head, "recipe"], rows, missing)


def _groups(recipe: str) -> dict[str, list[Planned]]:
    """The runs that differ in their rate (and seed) only."""
    found: dict[str, list[Planned]] = {}
    for run in planned(recipe):
        found.setdefault(f"{run.config.model.name} {_others(run)}", []).append(run)
    return found


def _others(run: Planned) -> dict[str, Any]:
    own = (RATE, "seed", "model.name")
    return {key: value for key, value in run.values.items() if key not in own}


def _row(recipe: str, runs: list[Planned], found: dict[float, Runs]) -> list[str]:
    """found: the recorded runs by rate."""
    config, others = runs[0].config, _others(runs[0])
    score = SCORES[config.experiment]
    place = experiments.find(config.experiment).place
    best = least(found, score.metric, **{place: "val"})
    shown = [
        f"{rate:g}: {own.mean(score.metric, score.format, **{place: 'val'})}"
        for rate, own in found.items()
    ]
    return [
        config.experiment,
        f"`{config.model.name}`",
        ", ".join(f"`{assigned(key, value)}`" for key, value in others.items()) or NOTHING,
        "; ".join(shown),
        NOTHING if best is None else f"{best:g}",
        Group(recipe, config.model.name, others).command,
    ]


def _recorded(folder: Path, recipe: str, run: Planned) -> Runs:
    """The recorded runs with these settings and any seed."""
    about = recording.facts(run.config, {}, recipe, run.values)
    del about["seed"]
    which = Which(f"{run.config.experiment}-accuracy", run.config.model.name, about)
    return runs_of(folder, which)
