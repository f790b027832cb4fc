"""An experiment is one value: what the command line, the training engine, sweeps and reports need to know about it.

    EXPERIMENT = Experiment("springs", task=Springs, metrics={"mse": Metric("mse", "length²", ".2e")})

Declaring one must be cheap, because `flashgatr --help` does it: name what needs torch or numpy as text,
"package.module:name", and it is imported when it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Build = Callable[..., "nn.Module"]
"""Makes a model from its options."""
Results = dict[str, Any]
"""Metrics of a run on one evaluation set."""


@dataclass(frozen=True)
class Metric:
    """A column of the tables. Recorded metrics are also appended to benchmarks/results by `sweep --record`."""

    title: str
    unit: str
    format: str = ".3g"
    recorded: bool = True


@dataclass(frozen=True)
class Experiment:
    """Everything that the generic code knows about an experiment.

    Fields marked "lazy" take the object itself or text, "package.module:name".
    """

    name: str
    task: Any
    """Lazy. A `flashgatr.train.Task`: called with the run's settings and the device."""
    metrics: Mapping[str, Metric]
    """The columns of result tables, by their key in the task's results."""
    summary: str = ""
    """One line for `flashgatr --help`."""
    models: Any = field(default_factory=dict)
    """Lazy. A mapping from names to functions that make a model from `model.options`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings that differ from the sections' own defaults, as nested tables."""
    count: str = "samples"
    """The key of the results that tells how many samples a set has."""
    place: str = "set"
    """What a recorded result calls the set that it was measured on."""
    about: Callable[[Any, Results], dict[str, Any]] = lambda settings, results: {}
    """What a recorded result says about its run besides the recipe: from the run's settings and one set's results."""
    data: Any = None
    """Lazy. The function behind `flashgatr data NAME`; its annotated arguments are the command's options."""
    predict: Any = None
    """Lazy. The function behind `flashgatr predict NAME`, likewise."""
    report: Any = None
    """Lazy. The experiment's own part of a report; without one, reports have tables and learning curves."""

    def get(self, name: str) -> Any:
        """The value of a field; one that is given as text is imported."""
        value = getattr(self, name)
        if not isinstance(value, str) or ":" not in value:
            return value
        module, _, attribute = value.partition(":")
        return getattr(importlib.import_module(module), attribute)
