"""What the recipes say about the runs of a table, so that no table repeats it.

group = Group("charges_standard", "gatr", {"data.options.reverse_time": True})
group.configs      the settings of these runs
group.rate         "0.003"
group.command      "`recipe:charges_standard --only model.name=gatr --only ...`"
group.named        "`recipe:charges_standard`"
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ....train import RunConfig, toml
from ... import shipped, sweep, table
from ...sweep import Planned
from .parameters import count
from .recorded import number


@cache
def planned(recipe: str, *changes: str) -> tuple[Planned, ...]:
    """All runs of a recipe that comes with the package, changed by KEY=VALUE."""
    file = shipped.find(Path(f"{shipped.RECIPE}:{recipe}"))
    return tuple(sweep.plan(file, Path("runs"), list(changes)))


@dataclass(frozen=True)
class Group:
    """The runs of a recipe with this model that have these settings, by dotted key."""

    recipe: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the recipe, by dotted key."""

    @property
    def planned(self) -> tuple[Planned, ...]:
        return planned(self.recipe, *(f"{k}={toml.literal(x)}" for k, x in self.changes.items()))

    @property
    def chosen(self) -> dict[str, Any]:
        return {"model.name": self.model, **self.settings}

    @property
    def configs(self) -> list[RunConfig]:
        """The settings of the runs; an error if there are none."""
        found = [
            run.config
            for run in self.planned
            if all(_with_default(run.config, key) == x for key, x in self.chosen.items())
        ]
        if not found:
            raise ValueError(f"the recipe {self.recipe} has no run with {self.chosen}")
        return found

    @property
    def rate(self) -> str:
        """The learning rate, or several."""
        return ", ".join(f"{x:g}" for x in self._values("train.lr"))

    @property
    def steps(self) -> int:
        """The number of training steps, which is the same for all."""
        (found,) = self._values("train.steps")
        return int(found)

    @property
    def options(self) -> dict[str, Any]:
        """The model.options, which all runs share."""
        first, *others = (config.model.options for config in self.configs)
        if any(other != first for other in others):
            raise ValueError(f"runs of {self.recipe} with {self.chosen} differ in model.options")
        return dict(first)

    @property
    def parameters(self) -> str:
        """The number of trained parameters."""
        return number(count(table.find(self.configs[0].experiment), self.model, self.options))

    @property
    def named(self) -> str:
        """The recipe, as the command line names it."""
        return named(self.recipe)

    @property
    def command(self) -> str:
        """What follows `flashgatr sweep` to train the runs."""
        grid = self.planned[0].values
        only = [f" --only {assigned(key, x)}" for key, x in self.chosen.items() if key in grid]
        other = [f" --set {assigned(key, x)}" for key, x in self.changes.items()]
        return f"`{shipped.RECIPE}:{self.recipe}{''.join(only + other)}`"

    def _values(self, key: str) -> list[Any]:
        return [*dict.fromkeys(setting(config, key) for config in self.configs)]


def named(recipe: str) -> str:
    """
    >>> named("charges_standard")
    '`recipe:charges_standard`'
    """
    return f"`{shipped.RECIPE}:{recipe}`"


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


def assigned(key: str, value: Any) -> str:
    """KEY=VALUE for a command line."""
    return shlex.quote(f"{key}={value if isinstance(value, str) else toml.literal(value)}")
