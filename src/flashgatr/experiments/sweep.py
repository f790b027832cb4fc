"""Recipes: many runs from one file, with one command that can be stopped and started again.

    [run]                          # a run configuration; every key of config.toml
    experiment = "springs"
    [grid]                         # one run per combination
    "model.name" = ["gatr", "mlp"]
    seed = [0, 1, 2]
    [when."model.name=mlp"]        # settings of some of the runs
    "train.lr" = 1e-3

Each run has its own folder, named after its values. Finished runs are kept; unfinished ones resume.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ..train import ConfigError, RunConfig, TrainingError, fingerprint, log, toml
from ..train import settings as configuration
from . import equivariance, recording, results, shipped, table
from .runs import make_settings, read_results, require, train


@dataclass(frozen=True)
class Planned:
    """One run of a recipe."""

    name: str
    values: dict[str, Any]
    config: RunConfig
    changes: dict[str, Any] = field(default_factory=dict)
    """The settings that determine the run and that --set changed, by dotted key."""

    @property
    def is_finished(self) -> bool:
        found = read_results(Path(self.config.folder))
        return found is not None and found.get("run") == fingerprint(self.config)


def plan(
    recipe: Path, folder: Path, changes: list[str] | None = None, experiment: str | None = None
) -> list[Planned]:
    """The runs of a recipe, in `folder`. `experiment` is for recipes that do not name one."""
    if not recipe.is_file():
        names = ", ".join(f"{shipped.RECIPE}:{name}" for name in shipped.known(shipped.RECIPE))
        raise ConfigError(f"there is no recipe {recipe}; flashgatr comes with {names}")
    try:
        content = tomllib.loads(recipe.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the recipe {recipe}: {error}") from error
    unknown = set(content) - {"run", "grid", "when"}
    grid, cases = content.get("grid", {}), content.get("when", {})
    if unknown or not isinstance(grid, dict) or not isinstance(cases, dict):
        raise ConfigError(
            f"{recipe} may have the tables [run], [grid] and [when], got {sorted(content)}"
        )
    for key, choices in grid.items():
        if not isinstance(choices, list) or not choices:
            raise ConfigError(f"grid.{key} must list values, got {choices!r}")
    base = _base(recipe, content.get("run", {}), experiment)
    runs = list(_runs(base, grid, _cases(cases, grid), folder, changes or []))
    folders = [run.config.folder for run in runs]
    if twice := [run.name for run in runs if folders.count(run.config.folder) > 1]:
        raise ConfigError(f"{recipe} has several runs of the name {twice[0]}; list values once")
    return runs


def _base(recipe: Path, values: Any, experiment: str | None) -> RunConfig:
    """The settings that all runs share."""
    if experiment is None or not isinstance(values, dict):
        return make_settings(values)
    if values.setdefault("experiment", experiment) != experiment:
        raise ConfigError(
            f"{recipe} is for the experiment {values['experiment']!r}, but --experiment defines "
            f"{experiment!r}"
        )
    return make_settings(values)


Case = tuple[str, Any, list[str]]
"""A key of the grid, a value, and the assignments for runs in which the key has this value."""


def _cases(given: dict[str, Any], grid: dict[str, Any]) -> list[Case]:
    """The table [when]."""
    cases: list[Case] = []
    for text, settings in given.items():
        path, value = configuration.read_assignment(text)
        key = ".".join(path)
        if value not in grid.get(key, []):
            raise ConfigError(f"[when.{text!r}]: no run of the grid has that")
        if not isinstance(settings, dict):
            raise ConfigError(f"[when.{text!r}] must be a table of settings, got {settings!r}")
        for name, setting in settings.items():
            if isinstance(setting, dict) or name in grid:
                why = (
                    "is in the grid" if name in grid else "is a table: write dotted keys in quotes"
                )
                raise ConfigError(f"[when.{text!r}]: {name} {why}")
        cases.append((key, value, [f"{k}={toml.literal(v)}" for k, v in settings.items()]))
    return cases


def select(runs: list[Planned], only: list[str]) -> list[Planned]:
    """The runs whose grid values are among those in `only`, KEY=VALUE each; keys may repeat."""
    wanted: dict[str, list[Any]] = {}
    for text in only:
        path, value = configuration.read_assignment(text)
        key, known = ".".join(path), runs[0].values if runs else {}
        if key not in known:
            raise ConfigError(
                "--only takes KEY=VALUE of the recipe's grid "
                f"({', '.join(known) or 'it has none'}), got {text!r}"
            )
        if value not in [run.values[key] for run in runs]:
            raise ConfigError(f"no run of the recipe has {text}; list them with --list")
        wanted.setdefault(key, []).append(value)
    return [run for run in runs if all(run.values[key] in some for key, some in wanted.items())]


def _runs(
    base: RunConfig, grid: dict[str, Any], cases: list[Case], folder: Path, changes: list[str]
) -> Iterator[Planned]:
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        name = (
            "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items()) or "run"
        )
        own = [x for key, value, settings in cases if chosen[key] == value for x in settings]
        assigned = [f"{key}={toml.literal(value)}" for key, value in chosen.items()]
        recipes_own = configuration.override(base, [*own, *assigned])
        config = configuration.override(base, [*own, *changes, *assigned])
        changed = recording.changed(recipes_own, config)
        yield Planned(name, chosen, replace(config, folder=str(folder / name)), changed)


def execute(runs: list[Planned], say: Callable[[str], None], *, jobs: int = 1) -> None:
    """Train the unfinished runs, `jobs` at a time (if several, in processes of their own)."""
    open_runs = [run for run in runs if not run.is_finished]
    say(f"{len(runs) - len(open_runs)} of {len(runs)} runs are finished")
    for run in open_runs:  # missing data are an error now rather than after hours of training
        require(run.config)
    if jobs == 1:
        for run in open_runs:
            say(run.name)
            train(run.config, resume=True)
        return
    with ThreadPoolExecutor(jobs) as pool, _children_stop_with_us() as children:

        def code_of(run: Planned) -> int:
            code = _train_in_process(run, children)
            say(f"{run.name}: " + (f"stopped with exit code {code}" if code else "finished"))
            return code

        codes = list(pool.map(code_of, open_runs))
    failed = [run.name for run, code in zip(open_runs, codes, strict=True) if code]
    if failed:
        raise TrainingError(f"these runs failed, see log.txt in their folders: {', '.join(failed)}")


def _train_in_process(run: Planned, children: set[subprocess.Popen[bytes]]) -> int:
    """Train one run in its own process; its output goes to log.txt in its folder."""
    folder = Path(run.config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as aside, (folder / "log.txt").open("a") as log:
        # The folder's own config.toml may belong to another run, which the child then refuses.
        planned = Path(aside) / "config.toml"
        configuration.save(run.config, planned)
        given = ["--config", str(planned), "--folder", str(folder)]
        source = table.source(run.config.experiment)
        if source is not None:
            given += ["--experiment", str(source.path)]
        command = [sys.executable, "-m", "flashgatr", "train", "--resume", *given]
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        children.add(child)
        return child.wait()


@contextmanager
def _children_stop_with_us() -> Iterator[set[subprocess.Popen[bytes]]]:
    """On exit or SIGTERM, stop the processes that are still training, each after a checkpoint."""
    children: set[subprocess.Popen[bytes]] = set()

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield children
    finally:
        signal.signal(signal.SIGTERM, before)
        for child in children:
            if child.poll() is None:
                child.terminate()


def record_results(runs: list[Planned], recipe: str) -> int:
    """Append the results of finished runs to benchmarks/results/, and their equivariance errors;
    returns the number of runs.
    """
    number = 0
    for run in runs:
        found = read_results(Path(run.config.folder))
        if found is None or not run.is_finished:
            continue
        number += 1
        config = run.config
        about = recording.record_run(config, found["results"], recipe, run.values | run.changes)
        if not about:
            continue
        seconds = log.seconds(Path(config.folder))
        if seconds:
            name = f"{config.experiment}-accuracy"
            results.record(name, config.model.name, "training time", seconds, "s", about)
        for line in equivariance.lines(config, about):
            results.record(*line)
    return number
