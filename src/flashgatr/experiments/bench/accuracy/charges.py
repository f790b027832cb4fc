"""Charged particles and gravity: published errors beside ours, and predictions without networks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from ...charges import EXPERIMENT
from ...charges.report import PUBLISHED
from .parameters import count
from .recorded import Runs, Which, number, runs_of, table

FILE = "charges-accuracy"
NAMES = {
    "gatr": "GATr",
    "segnn": "SEGNN",
    "se3_transformer": "SE(3)-Transformer",
    "transformer": "Transformer",
    "mlp": "MLP",
}
HORIZONS = (1000, 1500, 2000)
DATA: dict[str, dict[str, Any]] = {
    "charges": dict(force="charges", clip="coordinate"),
    "charges, `--clip norm`": dict(force="charges", clip="norm"),
    "gravity": dict(force="gravity"),
}
LINEAR = ("static", "straight line", "fitted time", "affine map")
REVERSE = "data.options.reverse_time"
RECIPE_OPTIONS = {"gatr": dict(num_blocks=6, hidden_mv_channels=32, hidden_s_channels=64)}
"""Sizes in recipes/charges_standard.toml that are not the defaults."""
INPUT_STEP = {"charges": 3100, "gravity": 0}


def standard(folder: Path) -> str:
    rows = [[f"published: {name}", value, *["–"] * 6] for name, value in PUBLISHED.items()]
    about = dict(recipe="charges_standard", horizon=1000, force="charges", clip="coordinate")
    for model, reverse in product(("gatr", "segnn", "transformer", "mlp"), (False, True)):
        runs = runs_of(folder, Which(FILE, model, {**about, REVERSE: reverse}))
        rows.append(
            [
                NAMES[model] + (", with reversed systems" if reverse else ""),
                runs.mean("mse", ".4f", set="test"),
                runs.mean("median", set="test"),
                runs.setting("steps"),
                str(len(runs.seeds)),
                runs.cost,
                number(count(EXPERIMENT, model, RECIPE_OPTIONS.get(model))),
                f"`flashgatr sweep recipe:charges_standard --only model.name={model} "
                f"--only {REVERSE}={str(reverse).lower()}`",
            ]
        )
    rows += [_linear(folder, model) for model in LINEAR]
    head = ["model", "mse", "median", "steps", "seeds", "training", "parameters", "repeat with"]
    return table(head, rows)


def _linear(folder: Path, model: str) -> list[str]:
    about = dict(horizon=1000, input_step=INPUT_STEP["charges"], **DATA["charges"])
    runs = runs_of(folder, Which(FILE, model, about))
    cells = runs.mean("mse", ".4f", set="test"), runs.mean("median", set="test")
    return [f"no network: {model}", *cells, *["–"] * 4, "`flashgatr bench charges-limits`"]


def horizons(folder: Path) -> str:
    rows = []
    for data, about in DATA.items():
        recipe = "charges_gravity" if data == "gravity" else "charges_horizons"
        models = ("gatr", "segnn", "transformer", "mlp") if data == "gravity" else ("gatr", "segnn")
        for model in models:
            found = [
                runs_of(folder, Which(FILE, model, dict(recipe=recipe, horizon=n, **about)))
                for n in HORIZONS
            ]
            cells = [runs.mean("mse", ".4f", set="test") for runs in found]
            every = Runs([line for runs in found for line in runs.lines])
            command = f"`flashgatr sweep recipe:{recipe} --only model.name={model}`"
            rows.append([data, NAMES[model], *cells, str(len(every.seeds)), every.cost, command])
        step = dict(input_step=INPUT_STEP[str(about["force"])], **about)
        cells = [
            runs_of(folder, Which(FILE, "affine map", dict(horizon=n, **step))).mean(
                "mse", ".4f", set="test"
            )
            for n in HORIZONS
        ]
        command = "`flashgatr bench charges-limits`"
        rows.append([data, "no network: affine map", *cells, "–", "–", command])
    head = ["data", "model", *(f"{n:,} steps ahead, mse" for n in HORIZONS), "seeds", "training"]
    return table([*head, "repeat with"], rows)
