"""The results of a run as lines in benchmarks/results/.

A line's settings are facts about the run: what its experiment says, steps, recipe and seed, and the
settings by which it differs from other runs of the recipe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..train import RunConfig, identity
from . import results, table

_TOLD = ("seed", "model.name", "data.train_samples", "train.steps")
"""Settings that are recorded under names of their own."""


def changed(before: RunConfig, after: RunConfig) -> dict[str, Any]:
    """The settings that determine a run and that differ, by dotted key, as they are afterwards;
    None for an option that is no longer set.
    """
    given, now = _flat(before), _flat(after)
    keys = [*now, *(key for key in given if key not in now)]
    return {key: now.get(key) for key in keys if given.get(key, ...) != now.get(key, ...)}


def _flat(config: RunConfig) -> dict[str, Any]:
    """The settings that determine a run; options, too, by dotted key."""
    found = identity(config)
    for section in ("model.options", "data.options"):
        found |= {f"{section}.{key}": value for key, value in found.pop(section, {}).items()}
    return found


def name_of(run: Path) -> str:
    """The name of a run, recorded in place of a recipe's: `pretrained:NAME` as it is; of a folder
    below the working directory its path, of any other folder its name.
    """
    if not run.is_dir():
        return str(run)
    folder, here = run.resolve(), Path.cwd().resolve()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else folder.name


def facts(
    config: RunConfig, metrics: dict[str, Any], recipe: str, differing: dict[str, Any]
) -> dict[str, Any]:
    """What lines say about a run. metrics: the results of one set, if there are any; differing:
    settings by dotted key that tell the run from others of the recipe.
    """
    experiment = table.find(config.experiment)
    told = (*_TOLD, *experiment.told)
    base = dict(steps=config.train.steps, recipe=recipe, seed=config.seed)
    own = {key: value for key, value in differing.items() if key not in told}
    return (experiment.about(config, metrics) if metrics else {}) | base | own


def record_run(
    config: RunConfig, found: dict[str, Any], recipe: str, differing: dict[str, Any]
) -> dict[str, Any]:
    """Append the results found on all sets, and return the facts of the last one."""
    experiment = table.find(config.experiment)
    about: dict[str, Any] = {}
    for where, metrics in found.items():
        about = facts(config, metrics, recipe, differing)
        settings = about | {experiment.place: where}
        for metric, key, value in experiment.records(metrics):
            file = f"{config.experiment}-{metric.benchmark}"
            given = settings | dict(metric.about)
            results.record(file, config.model.name, key, value, metric.unit, given)
    return about
