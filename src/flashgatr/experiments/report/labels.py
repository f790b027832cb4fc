"""Labels of runs: the model, and the few settings that distinguish its runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...train import toml
from ...train.settings import RunConfig
from ...train.trainer import identity
from . import lookup
from .protocol import Run

_RESERVED = {"default", "true", "false", "inf", "nan"}


def labelled(runs: Sequence[Run], models: Mapping[str, str] | None = None) -> list[Run]:
    """The runs with labels and numbers of training samples, in the order of tables.

    models: titles of models by name, in order; other models follow under their own names.
    """
    titles = dict(models or {})
    titles |= {name: name for name in sorted({run.config.model.name for run in runs} - {*titles})}
    found = []
    for run in runs:
        own = model_settings(run.config)
        alike = [model_settings(r.config) for r in runs if _model(r) == _model(run)]
        keys = _distinguishing_keys(alike)
        parts = [f"{key.rpartition('.')[2]} {_shown(own, key)}" for key in keys]
        label = ", ".join([titles[_model(run)], *parts])
        samples = run.samples or run.config.data.train_samples or None
        found.append(replace(run, label=label, samples=samples))
    found = _with_folders(found)
    order = list(titles)

    def place(run: Run) -> tuple[Any, ...]:
        return order.index(_model(run)), run.label, run.samples or math.inf, run.config.seed

    return sorted(found, key=place)


def _with_folders(runs: Sequence[Run]) -> list[Run]:
    """The runs, with the data folder in labels that alone would not tell two of them apart."""
    folders: dict[tuple[Any, ...], set[str]] = {}
    for run in runs:
        who = run.label, run.samples, run.config.seed
        folders.setdefault(who, set()).add(run.config.data.folder)
    shared = {who[0] for who, some in folders.items() if len(some) > 1}
    return [
        replace(run, label=f"{run.label}, data {run.config.data.folder}")
        if run.label in shared
        else run
        for run in runs
    ]


def unnamed(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs of one model differ and which their labels leave out."""
    found: dict[str, None] = {}
    for model in dict.fromkeys(map(_model, runs)):
        alike = [model_settings(run.config) for run in runs if _model(run) == model]
        named = _distinguishing_keys(alike)
        keys = dict.fromkeys(key for some in alike for key in some)
        differ = [key for key in keys if len({_shown(some, key) for some in alike}) > 1]
        found |= dict.fromkeys(key for key in differ if key not in named)
    return list(found)


def model_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that determine a run, without seed and number of samples, by dotted key."""
    own = {"seed", "data.train_samples"}
    task = lookup.known_experiments()[config.experiment].get("task")
    found = identity(config)
    found["data.options"] = getattr(task, "option_defaults", {}) | found["data.options"]
    return dict(x for k, v in found.items() if k not in own for x in _flat(k, v))


def identity_of(config: RunConfig) -> object:
    """A key that is equal for runs with the same settings, seed and data."""
    settings = model_settings(config)
    own = config.seed, config.data.train_samples, config.data.folder
    return own, frozenset((key, _shown(settings, key)) for key in settings)


def _model(run: Run) -> str:
    return run.config.model.name


def _distinguishing_keys(settings: Sequence[dict[str, Any]]) -> list[str]:
    """A few keys that distinguish different settings.

    Of keys that distinguish equally many, the first is taken; the number of steps comes first.
    """
    keys = list(dict.fromkeys(["train.steps", *(key for some in settings for key in some)]))
    few: list[str] = []

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(_shown(some, key) for key in chosen) for some in settings})

    while kinds(few) < kinds(keys):
        few.append(max(keys, key=lambda key: kinds([*few, key])))
    return [key for key in keys if key in few]


def _shown(settings: dict[str, Any], key: str) -> str:
    """A setting as text for a label: different values give different texts; words are unquoted."""
    if key not in settings:
        return "default"
    value = settings[key]
    is_word = isinstance(value, str) and re.fullmatch(r"[a-z]\w*", value)
    return value if is_word and value not in _RESERVED else toml.literal(_whole(value))


def _whole(value: Any) -> Any:
    """Floats without a fraction as integers, so that 1.0 and 1 look the same."""
    if isinstance(value, list | tuple):
        return [_whole(x) for x in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flat(f"{key}.{toml.join((name,))}", inner)
