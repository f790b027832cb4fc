"""Robotics: rewards of planning, the paper's and every group of runs that was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....train import identity
from ... import shipped, sweep
from ...robotics import EXPERIMENT
from .parameters import count
from .recorded import MISSING, Runs, number, read, table

FILE = "kuka-reward"
PUBLISHED = {
    "gatr": ("GATr", "74.8 ± 1.7"),
    "transformer": ("Transformer", "69.8 ± 1.9"),
    "edgi": ("EDGI", "62.0 ± 2.1"),
    "unet": ("Diffuser (U-Net)", "57.7 ± 1.8"),
    "cql": ("CQL", "24.4"),
    "bcq": ("BCQ", "0.0"),
}
"""Paper, table of section 4.3: rewards on the published demonstrations and in their environment."""
WITHOUT_NETWORK = ("expert", "do nothing", "noise")
_OF_A_RUN = ("seed", "reward")


def rewards(folder: Path) -> str:
    lines = [x for x in read(folder, FILE) if x["settings"].get("scene_set", "test") == "test"]
    rows = []
    for model, (label, published) in PUBLISHED.items():
        groups = _groups([line for line in lines if line["model"] == model])
        parameters = "–" if model == "edgi" else number(count(EXPERIMENT, model))
        if not groups:
            command = "–" if model == "edgi" else f"`flashgatr sweep recipe:{_recipe(model)}`"
            rows.append([label, published, MISSING, MISSING, *["–"] * 7, parameters, command])
        for about, runs in groups:
            rows.append(
                [label, published, *_cells(about, runs), parameters, _command(about, model)]
            )
    for model in WITHOUT_NETWORK:
        for about, runs in _groups([line for line in lines if line["model"] == model]):
            command = "`flashgatr bench kuka-harness`"
            rows.append([model, "–", *_cells(about, runs), "–", command])
    head = ["planner", "paper", "reward", "strict", "engine", "scenes", "sampler"]
    return table(
        [*head, "demonstrations", "steps", "number", "seeds", "parameters", "repeat with"], rows
    )


def _groups(lines: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Runs]]:
    """The lines that differ in seeds and kinds of reward only, with the settings they share."""
    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for line in lines:
        about = {key: x for key, x in line["settings"].items() if key not in _OF_A_RUN}
        found.setdefault(str(sorted(about.items(), key=str)), (about, []))[1].append(line)
    return [(about, Runs(some)) for about, some in found.values()]


def _cells(about: dict[str, Any], runs: Runs) -> list[str]:
    """Rewards, with the standard error over seeds, or over scenes if there is one seed."""
    cells = []
    for kind in ("original", "strict"):
        text = runs.mean("reward", ".1f", reward=kind)
        errors = runs.values("standard error", reward=kind)
        if "±" not in text and len(errors) == 1:
            text = f"{text} ± {next(iter(errors.values())):.1f}"
        cells.append(text)
    places = [name for name in ("turned", "mirrored") if about.get(name)]
    scenes = " and ".join(places) or "as drawn"
    sampler = f"{about['sampler']}, {about['sampling_steps']}" if about.get("sampler") else "–"
    told = [number(about.get(key, "–")) for key in ("demonstrations", "steps", "scenes")]
    engine = str(about.get("engine", about.get("set", "–")))
    seeds = str(len(runs.seeds)) if "steps" in about else "–"
    return [*cells, engine, scenes, sampler, *told, seeds]


def _recipe(model: str) -> str:
    offline = f"kuka_offline_rl --only model.name={model}"
    return offline if model in ("cql", "bcq") else f"kuka_figure --only model.name={model}"


def _command(about: dict[str, Any], model: str) -> str:
    """The command that repeats these runs: --only selects from the recipe's grid, --set changes
    what is not part of it. What the recipe says anyway is left out.
    """
    recipe = f"{shipped.RECIPE}:{about['recipe']}"
    runs = sweep.plan(shipped.find(Path(recipe)), Path("runs"))
    told = {"model.name": model, "data.train_samples": about.get("demonstrations")}
    told |= {key: value for key, value in about.items() if "." in key}
    grid = {key: value for key, value in told.items() if key in runs[0].values}
    chosen = sweep.select(runs, [f"{key}={value}" for key, value in grid.items()])
    own = chosen[0].config
    known = identity(own) | {f"model.options.{key}": x for key, x in own.model.options.items()}
    others = (
        f"--set {key}={value}"
        for key, value in sorted(told.items())
        if key not in grid and known.get(key) != value
    )
    parts = [*(f"--only {key}={value}" for key, value in grid.items()), *others]
    return f"`flashgatr sweep {recipe} {' '.join(parts)}`"
