"""An experiment is one value, from which commands, training, sweeps and reports take all facts.

    EXPERIMENT = Experiment(
        "springs", task="springs.task:Springs", metrics={"mse": Metric("mse", "length²", ".2e")}
    )

`flashgatr --help` imports every declaration, so a declaration imports neither torch nor numpy.
Objects that need them are given as text, "package.module:name", and imported on first use.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

Build = Callable[..., "nn.Module"]
"""Builds a model from its options."""
Results = Mapping[str, Any]
"""Metrics of a run on one evaluation set."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_REFUSED = re.compile(r"got (an unexpected|multiple values for) keyword argument '(\w+)'")
"""How Python says that a function has no such option, or that its caller sets the option too."""


@dataclass(frozen=True)
class Metric:
    """A column of the tables. `sweep --record` keeps the metrics that are `recorded`."""

    title: str
    unit: str
    format: str = ".3g"
    recorded: bool = True
    benchmark: str = "accuracy"
    """Recorded results go into benchmarks/results/EXPERIMENT-BENCHMARK.jsonl."""
    name: str = ""
    """The metric's name there; by default its key."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Facts that recorded results mention, such as which of two metrics of one name this is."""


def _nothing(settings: Any, results: Results) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Experiment:
    """Everything that the generic code knows about an experiment.

    Fields marked "lazy" take the object itself or text, "package.module:name".
    """

    name: str
    task: Any
    """Lazy. A `flashgatr.train.Task`: called with the run's settings and the device."""
    require: Any = None
    """Lazy. Called with the settings of a run before it is trained, and by a sweep for all of its
    runs before the first: raises an error if they cannot be trained, such as for missing data."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """The columns of result tables, by their key in the task's results."""
    summary: str = ""
    """One line for `flashgatr data --help`."""
    models: Any = field(default_factory=dict)
    """Lazy. A mapping from names to functions that build a model from `model.options`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default settings that replace those of the sections, as nested tables."""
    count: str = "samples"
    """Name of the samples, and the key of the results that gives their number in a set."""
    place: str = "set"
    """The key under which a recorded result names its evaluation set."""
    about: Callable[[Any, Results], dict[str, Any]] = _nothing
    """Facts about the run for recorded results: from the run's settings and one set's results."""
    told: tuple[str, ...] = ()
    """Dotted settings that `about` covers; recorded results do not repeat them."""
    data: Any = None
    """Lazy. The function behind `flashgatr data NAME`; its annotated arguments are the options."""
    predict: Any = None
    """Lazy. The function behind `flashgatr predict NAME`; its arguments are the options."""
    symmetry: Any = None
    """Lazy. A `symmetry.Symmetry`, which measures the equivariance error of trained models."""
    report: Any = None
    """Lazy. A `report.protocol.Report`. Without one, a report has tables and learning curves."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"the name of an experiment must be of letters, digits, - and _, got {self.name!r}"
            )
        for key, metric in self.metrics.items():
            if not isinstance(metric, Metric):
                raise TypeError(f"the metric {key!r} of {self.name} must be a Metric: {metric!r}")

    def get(self, name: str) -> Any:
        """The value of a field; a value that is given as text is imported."""
        value = getattr(self, name)
        if not isinstance(value, str) or ":" not in value:
            return value
        module, _, attribute = value.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def settings(self) -> dict[str, Any]:
        """The default settings of a run, as nested tables, with folders named after `name`."""
        data = {"folder": f"data/{self.name}"} | self.defaults.get("data", {})
        own = {"experiment": self.name, "folder": f"runs/{self.name}"}
        return own | dict(self.defaults) | {"data": data}

    def build(self, name: str, options: Mapping[str, Any]) -> nn.Module:
        """The model of this name. Unknown names and options are errors, as are options that the
        function which builds the model sets itself.
        """
        known: Mapping[str, Build] = self.get("models")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            there = f"there are {', '.join(sorted(known))}" if known else "it lists no models"
            hint = f"did you mean {close[0]!r}?" if close else there
            raise ValueError(f"{self.name} has no model {name!r}; {hint}")
        try:
            return known[name](**options)
        except TypeError as error:
            found = _REFUSED.search(str(error))
            if found is None or found[2] not in options:
                raise
            option = found[2]
            if found[1] == "an unexpected":
                raise TypeError(f"the model {name!r} has no option {option!r}") from error
            raise TypeError(
                f"the model {name!r} sets {option} itself, got {options[option]!r}; "
                "leave it out of model.options"
            ) from error

    @property
    def titles(self) -> list[str]:
        """The head of a table of results."""
        return [metric.title for metric in self.metrics.values()] + [self.count]

    def row(self, results: Results) -> list[str]:
        """The cells of a table of results; a cell is empty where a set lacks the metric."""
        cells = [
            format(results[key], metric.format) if key in results else ""
            for key, metric in self.metrics.items()
        ]
        return [*cells, str(int(results[self.count])) if self.count in results else ""]

    def records(self, results: Results) -> Iterator[tuple[Metric, str, float]]:
        """Every recorded metric of a set, the name under which it is recorded, and its value."""
        for key, metric in self.metrics.items():
            if metric.recorded and key in results:
                yield metric, metric.name or key, results[key]
