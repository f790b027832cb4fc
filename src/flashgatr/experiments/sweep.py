"""Recipes: many runs from one file, in one command that can be stopped and started again.

    [run]                          # a run configuration; every key of config.toml
    experiment = "nbody"
    [grid]                         # one run per combination
    "model.name" = ["gatr", "mlp"]
    seed = [0, 1, 2]

Each run has its own folder, named after its values; finished ones are kept, started ones continued.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import config as configuration
from .config import ConfigError, RunConfig
from .engine.trainer import fingerprint
from .runs import read_results, train


@dataclass(frozen=True)
class Planned:
    """One run of a recipe."""

    name: str
    values: dict[str, Any]
    config: RunConfig

    @property
    def is_finished(self) -> bool:
        found = read_results(Path(self.config.folder))
        return found is not None and found.get("run") == fingerprint(self.config)


def plan(recipe: Path, folder: Path, changes: list[str] | None = None) -> list[Planned]:
    """The runs of a recipe, below `folder`."""
    try:
        content = tomllib.loads(recipe.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the recipe {recipe}: {error}") from error
    unknown = set(content) - {"run", "grid"}
    if unknown or not isinstance(content.get("grid", {}), dict):
        raise ConfigError(f"{recipe} may have the tables [run] and [grid], got {sorted(content)}")
    base = configuration.override(configuration.from_dict(content.get("run", {})), changes or [])
    return list(_runs(base, content.get("grid", {}), folder))


def _runs(base: RunConfig, grid: dict[str, Any], folder: Path) -> Iterator[Planned]:
    for key, choices in grid.items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"grid.{key} must list values, got {choices!r}")
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = (
            "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items()) or "run"
        )
        settings = {**chosen, "folder": str(folder / name)}
        assignments = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        yield Planned(name, chosen, configuration.override(base, assignments))


def execute(runs: list[Planned], say: Callable[[str], None]) -> None:
    """Train what is not finished yet."""
    for number, run in enumerate(runs, 1):
        if run.is_finished:
            say(f"[{number}/{len(runs)}] {run.name}: finished before")
            continue
        say(f"[{number}/{len(runs)}] {run.name}")
        train(run.config, resume=True)
