"""The earlier location of `flashgatr.train.settings`; old imports keep working.

Here, as before, settings without an experiment belong to the first one in the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..train import settings
from ..train.settings import ConfigError as ConfigError
from ..train.settings import ModelConfig as ModelConfig
from ..train.settings import Section as Section
from ..train.settings import TrainConfig as TrainConfig
from ..train.settings import dumps as dumps
from ..train.settings import read_assignment as read_assignment
from ..train.settings import save as save
from ..train.settings import suggest as suggest
from ..train.settings import to_dict as to_dict
from ..train.settings import write_atomically as write_atomically
from . import table

_FIRST = table.defaults(None)


@dataclass(frozen=True)
class DataConfig(settings.DataConfig):
    """As `flashgatr.train.DataConfig`, with the default folder of the first experiment."""

    folder: str = _FIRST["data"]["folder"]


@dataclass(frozen=True)
class RunConfig(settings.RunConfig):
    """As `flashgatr.train.RunConfig`, with the defaults of the first experiment."""

    experiment: str = _FIRST["experiment"]
    folder: str = _FIRST["folder"]
    data: settings.DataConfig = field(default_factory=DataConfig)


def load(path: str | os.PathLike[str], experiment: str | None = None) -> RunConfig:
    """As `flashgatr.train.settings.load`, with the defaults of the file's experiment."""
    return _as_before(settings.load(path, experiment, defaults=table.defaults))


def loads(text: str, *, source: str = "configuration", experiment: str | None = None) -> RunConfig:
    """As `flashgatr.train.settings.loads`, with the defaults of the text's experiment."""
    found = settings.loads(text, source=source, experiment=experiment, defaults=table.defaults)
    return _as_before(found)


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """As `flashgatr.train.settings.from_dict`, with the defaults of the values' experiment."""
    name = values.get("experiment") if isinstance(values, Mapping) else None
    return _as_before(settings.from_dict(values, table.defaults(name)))


def override(config: settings.RunConfig, assignments: Sequence[str]) -> RunConfig:
    """As `flashgatr.train.settings.override`."""
    return _as_before(settings.override(config, assignments))


def _as_before(config: settings.RunConfig) -> RunConfig:
    values = {part.name: getattr(config, part.name) for part in fields(config)}
    return RunConfig(**values | {"data": DataConfig(**vars(config.data))})
