"""Charged particles and gravity: published errors beside ours, and predictions without networks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ...charges.report import PUBLISHED
from ...nbody.report.titles import MODELS
from .recipes import Group, models
from .recorded import Runs, Which, number, runs_of, table

FILE = "charges-accuracy"
HORIZONS = (1000, 1500, 2000)
DATA: dict[str, dict[str, Any]] = {
    "charges": dict(force="charges", clip="coordinate"),
    "charges, `--clip norm`": dict(force="charges", clip="norm"),
    "gravity": dict(force="gravity"),
}
LINEAR = ("static", "straight line", "fitted time", "affine map")
REVERSE = "data.options.reverse_time"
INPUT_STEP = {"charges": 3100, "gravity": 0}


def standard(folder: Path) -> str:
    rows = [[f"published: {name}", value, *["–"] * 8] for name, value in PUBLISHED.items()]
    about = dict(horizon=1000, **DATA["charges"])
    for model, reverse in product(models("charges_standard"), (False, True)):
        group = Group("charges_standard", model, {REVERSE: reverse})
        runs = _runs(folder, group, {**about, REVERSE: reverse})
        rows.append(
            [
                MODELS[model] + (", with reversed systems" if reverse else ""),
                runs.mean("mse", ".4f", set="test"),
                runs.mean("median", set="test"),
                number(group.configs[0].data.train_samples)
                + (", each also reversed" if reverse else ""),
                number(group.steps),
                group.rate,
                str(len(runs.seeds)),
                runs.cost,
                group.parameters,
                group.command,
            ]
        )
    rows += [_linear(folder, model) for model in LINEAR]
    head = ["model", "mse", "median", "training systems", "steps", "lr", "seeds", "training"]
    return table([*head, "parameters", "repeat with"], rows)


def _runs(folder: Path, group: Group, about: Mapping[str, Any]) -> Runs:
    own = dict(recipe=group.recipe, steps=group.steps, **about)
    return runs_of(folder, Which(FILE, group.model, own))


def _linear(folder: Path, model: str) -> list[str]:
    about = dict(horizon=1000, input_step=INPUT_STEP["charges"], **DATA["charges"])
    runs = runs_of(folder, Which(FILE, model, about))
    cells = runs.mean("mse", ".4f", set="test"), runs.mean("median", set="test")
    return [f"no network: {model}", *cells, *["–"] * 6, "`flashgatr bench charges-limits`"]


def horizons(folder: Path) -> str:
    """All networks are trained on reversed systems as well."""
    rows = []
    for data, about in DATA.items():
        recipe = "charges_gravity" if data == "gravity" else "charges_horizons"
        given = {} if data == "gravity" else {"data.options.clip": about["clip"]}
        for model in models(recipe):
            group = Group(recipe, model, {REVERSE: True, **given})
            found = [_runs(folder, group, dict(horizon=n, **about)) for n in HORIZONS]
            every = Runs([line for runs in found for line in runs.lines])
            rows.append(
                [
                    data,
                    f"{MODELS[model]}, with reversed systems",
                    *(runs.mean("mse", ".4f", set="test") for runs in found),
                    number(group.steps),
                    group.rate,
                    str(len(every.seeds)),
                    every.cost,
                    group.parameters,
                    group.command,
                ]
            )
        step = dict(input_step=INPUT_STEP[str(about["force"])], **about)
        cells = [
            runs_of(folder, Which(FILE, "affine map", dict(horizon=n, **step))).mean(
                "mse", ".4f", set="test"
            )
            for n in HORIZONS
        ]
        command = "`flashgatr bench charges-limits`"
        rows.append([data, "no network: affine map", *cells, *["–"] * 5, command])
    head = ["data", "model", *(f"{n:,} steps ahead, mse" for n in HORIZONS), "steps", "lr", "seeds"]
    return table([*head, "training", "parameters", "repeat with"], rows)
