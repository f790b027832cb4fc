"""Command lines that reproduce runs."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from ...train import toml
from ...train.settings import RunConfig
from .. import runs as run_folders
from . import lookup
from .labels import model_settings
from .protocol import Run


def report_again(experiment: str) -> str:
    """The command that makes a report on the runs of the other commands."""
    argument = lookup.argument_of(experiment)
    own = "" if argument == experiment else f" --experiment {shlex.quote(argument)}"
    return f"flashgatr report runs --out report{own}"


def train_each(runs: Sequence[Run]) -> list[str]:
    """One command per run; it names the data folder if that is not the experiment's default."""
    lines = []
    times: Counter[str] = Counter()
    for run in runs:
        config = run.config
        name = f"{folder_name(run.label)}-{run.samples or 'all'}-{config.seed}"
        times[name] += 1  # runs may differ in their data only
        name += f"-{times[name]}" if times[name] > 1 else ""
        options = [f"seed={config.seed}", f"data.train_samples={config.data.train_samples}"]
        if config.data.folder != run_folders.defaults(config.experiment).data.folder:
            options.append(shlex.quote(f"data.folder={config.data.folder}"))
        options += [shlex.quote(x) for x in assignments(config)]
        lines.append(train(config.experiment, name, options))
    return lines


def train(experiment: str, name: str, options: Iterable[str]) -> str:
    """The command that trains one run in runs/NAME; options are quoted already."""
    argument = shlex.quote(lookup.argument_of(experiment))
    return f"flashgatr train {argument} --folder runs/{name}" + "".join(
        f" \\\n    --set {option}" for option in options
    )


def assignments(config: RunConfig) -> list[str]:
    """KEY=VALUE for each setting of the model and its training that differs from the default."""
    default = model_settings(run_folders.defaults(config.experiment))
    return [
        f"{key}={value if key == 'model.name' else toml.literal(value)}"
        for key, value in model_settings(config).items()
        if value != default.get(key)
    ]


def folder_name(label: str) -> str:
    """A label as part of a path.

    >>> folder_name("GATr, lr 0.001")
    'gatr-lr-0-001'
    """
    return re.sub("[^a-z0-9]+", "-", label.lower()).strip("-")
