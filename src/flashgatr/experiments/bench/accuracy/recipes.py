"""What the recipes say about the runs of a table, so that no table repeats it.

chosen = {"model.name": "gatr", "data.options.reverse_time": True}
configs("charges_standard", chosen)      the settings of these runs
rate("charges_standard", chosen)         "0.003"
command("charges_standard", chosen)      "`flashgatr sweep recipe:charges_standard --only ...`"
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ....train import RunConfig, toml
from ... import shipped, sweep, table
from ...sweep import Planned


@cache
def planned(recipe: str) -> tuple[Planned, ...]:
    """All runs of a recipe that comes with the package."""
    return tuple(sweep.plan(shipped.find(Path(f"{shipped.RECIPE}:{recipe}")), Path("runs")))


def configs(recipe: str, chosen: Mapping[str, Any]) -> list[RunConfig]:
    """The settings of the recipe's runs that have these values, by dotted key; an error if there
    are none.
    """
    found = [
        run.config
        for run in planned(recipe)
        if all(_with_default(run.config, key) == value for key, value in chosen.items())
    ]
    if not found:
        raise ValueError(f"the recipe {recipe} has no run with {dict(chosen)}")
    return found


def models(recipe: str) -> list[str]:
    """The models of a recipe."""
    return [*dict.fromkeys(run.config.model.name for run in planned(recipe))]


def setting(config: RunConfig, key: str) -> Any:
    """The value of a dotted key; None for an option that is not given."""
    value: Any = asdict(config)
    for part in key.split("."):
        value = value.get(part)
    return value


def _with_default(config: RunConfig, key: str) -> Any:
    value, option = setting(config, key), key.removeprefix("data.options.")
    if value is None and option != key:
        task = table.find(config.experiment).get("task")
        return task.option_defaults.get(option)
    return value


def options(recipe: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The model.options of these runs, which all have the same."""
    first, *others = (config.model.options for config in configs(recipe, chosen))
    if any(other != first for other in others):
        raise ValueError(f"runs of {recipe} with {dict(chosen)} differ in model.options")
    return dict(first)


def rate(recipe: str, chosen: Mapping[str, Any]) -> str:
    """The learning rate of these runs, or their rates."""
    return ", ".join(f"{x:g}" for x in _values(recipe, chosen, "train.lr"))


def steps(recipe: str, chosen: Mapping[str, Any]) -> int:
    """The number of training steps, which is the same for these runs."""
    (found,) = _values(recipe, chosen, "train.steps")
    return int(found)


def _values(recipe: str, chosen: Mapping[str, Any], key: str) -> list[Any]:
    return [*dict.fromkeys(setting(config, key) for config in configs(recipe, chosen))]


def command(recipe: str, chosen: Mapping[str, Any]) -> str:
    """The command that trains these runs. Only keys of the recipe's grid are mentioned."""
    grid = planned(recipe)[0].values
    only = [f" --only {assigned(key, x)}" for key, x in chosen.items() if key in grid]
    return f"`flashgatr sweep recipe:{recipe}{''.join(only)}`"


def assigned(key: str, value: Any) -> str:
    """KEY=VALUE for a command line."""
    return shlex.quote(f"{key}={value if isinstance(value, str) else toml.literal(value)}")
