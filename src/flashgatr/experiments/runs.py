"""A run: a folder with its settings, its log, its checkpoints, its trained model and its results.

config.toml   log.jsonl   checkpoints/   model/ (config.json, model.safetensors)   results.json
experiment.json, if a user's file defines the experiment: its name and the file's SHA-256
"""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .. import io
from ..train import ConfigError, RunConfig, Task, Trainer, World, distributed, set_precision, toml
from ..train import checkpoint as checkpoints
from ..train import settings as configuration
from ..train.lock import FolderLock
from . import shipped, table

RESULTS = "results.json"
CONFIG = "config.toml"
SOURCE = "experiment.json"


def make_task(config: RunConfig, world: World) -> Task:
    """Data and model of the configured experiment."""
    task: Task = task_of(config.experiment)(config, world.device)
    return task


def require(config: RunConfig) -> None:
    """An error if a run with these settings cannot be trained, as far as its experiment knows."""
    check = table.find(config.experiment).get("require")
    if check is not None:
        check(config)


def task_of(experiment: str) -> Any:
    """The task of an experiment: called with the settings and the device."""
    return table.find(experiment).get("task")


def defaults(experiment: str) -> RunConfig:
    """The default settings of an experiment."""
    return configuration.from_dict({}, table.find(experiment).settings())


def make_settings(values: Mapping[str, Any]) -> RunConfig:
    """Settings from nested tables; missing ones have the defaults of their experiment."""
    name = values.get("experiment") if isinstance(values, Mapping) else None
    return configuration.from_dict(values, table.defaults(name))


def load_settings(path: Path, experiment: str | None = None) -> RunConfig:
    """Settings from a TOML file, with the same defaults; `experiment` replaces the file's own."""
    return configuration.load(path, experiment, defaults=table.defaults)


def train(config: RunConfig, *, resume: bool = False) -> dict[str, Any]:
    """Train a model as configured; with `resume`, continue the run in the folder."""
    folder = Path(config.folder)
    table.find(config.experiment)  # an unknown one is an error before anything is written
    if not resume and any((folder / name).exists() for name in ("checkpoints", "model", RESULTS)):
        raise ConfigError(
            f"{folder} holds a run already; continue it with --resume, or choose another folder "
            "with --folder"
        )
    world = distributed.join(config.device)
    try:
        return _train(config, world)
    finally:
        distributed.leave()


def _train(config: RunConfig, world: World) -> dict[str, Any]:
    folder = Path(config.folder)
    with FolderLock(folder, world):
        if world.is_main and not (folder / CONFIG).exists():  # before anything takes time
            _save_config(config)
        require(config)
        task = make_task(config, world)
        if config.model.start and not checkpoints.exists(folder / "checkpoints"):
            _start(task.model, config)
        trainer = Trainer(task, config, world)
        trainer.require_same_data()
        if world.is_main:  # only now, because the folder may have held another run
            _save_config(config)
        summary = trainer.run()
        weights = trainer.weights()
        if world.is_main:  # the results come last: where they are, the run is complete
            io.save(folder / "model", _kind(config), dict(config.model.options), weights)
            _save_results(folder, summary)
        return summary


def _start(model: nn.Module, config: RunConfig) -> None:
    """Give a new model the weights of a trained run; all options of that run must be named."""
    folder = shipped.find(Path(config.model.start))
    try:
        options, state = io.load(
            folder / "model" if (folder / "model").is_dir() else folder, _kind(config)
        )
        unsaid = [
            f"model.options.{key}={toml.literal(value)}"
            for key, value in options.items()
            if key not in config.model.options
        ]
        if unsaid:
            raise ConfigError(
                f"the network of model.start = {config.model.start!r} has options that this run "
                f"does not name: add {' '.join(f'--set {shlex.quote(x)}' for x in unsaid)} "
                "(or other values, to change them)"
            )
        io.fill(model, state)
    except io.LoadError as error:
        raise ConfigError(
            f"cannot start with the weights of model.start = {config.model.start!r}: {error}; it "
            f"must be the folder of a finished run of {_kind(config)} with the same model.options"
        ) from error


def load_task(config: RunConfig, world: World) -> Task:
    """The task of a finished run, with its trained model on the device, in evaluation mode."""
    task = make_task(config, world)
    io.fill(task.model, _trained(config))
    task.model.to(world.device).eval()
    return task


def load_model(config: RunConfig) -> nn.Module:
    """The trained model of a run."""
    state = _trained(config)
    experiment = table.find(config.experiment)
    return io.fill(experiment.build(config.model.name, config.model.options), state)


def _trained(config: RunConfig) -> dict[str, Tensor]:
    """The trained weights of a run."""
    if not (Path(config.folder) / "model").is_dir():
        raise io.LoadError(
            f"{config.folder} is not finished yet: it has no model; continue it with "
            f"`flashgatr train --resume --folder {config.folder}`"
        )
    return io.load(Path(config.folder) / "model", _kind(config))[1]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, begun or finished."""
    return (folder / CONFIG).is_file()


def require_run(folder: Path) -> Path:
    """The folder, or an error if it holds no run."""
    if not is_run(folder):
        what = "it has no config.toml" if folder.is_dir() else "there is no such folder"
        raise io.LoadError(f"{folder} is not a run: {what}; make one with flashgatr train")
    return folder


def load_config(folder: Path) -> RunConfig:
    """The configuration of a run, wherever its folder is now."""
    config = replace(load_settings(folder / CONFIG), folder=str(folder))
    if _stored_source(config) is not None and table.source(config.experiment) is None:
        raise ConfigError(
            f"{folder} is a run of {config.experiment!r}, an experiment of your own; name the file "
            "that defines it: --experiment path/to/file.py"
        )
    _compare_source(config)
    return config


def _save_config(config: RunConfig) -> None:
    """Store the settings of a run, and which user's file defines its experiment.

    A resumed run keeps the hash of the file that it was begun with.
    """
    folder, source = Path(config.folder), table.source(config.experiment)
    configuration.save(config, folder / CONFIG)
    if source is None:
        (folder / SOURCE).unlink(missing_ok=True)  # of another run that was never trained
    elif _stored_source(config) is None:
        stored = {"name": config.experiment, "sha256": source.sha256}
        configuration.write_atomically(folder / SOURCE, json.dumps(stored, indent=1) + "\n")
    else:
        _compare_source(config)


def _stored_source(config: RunConfig) -> dict[str, Any] | None:
    """Name and hash of the user's experiment that the run's folder stores, if it is this run's."""
    stored = _read_table(Path(config.folder) / SOURCE)
    return stored if stored is not None and stored.get("name") == config.experiment else None


def _compare_source(config: RunConfig) -> None:
    """Warn if the user's file has changed since the run was begun."""
    stored, source = _stored_source(config), table.source(config.experiment)
    if stored is not None and source is not None and stored.get("sha256") != source.sha256:
        warnings.warn(
            f"{source.path} has changed since {config.folder} was begun (SHA-256 "
            f"{str(stored.get('sha256'))[:12]}…, now {source.sha256[:12]}…): "
            "task and model may differ",
            stacklevel=3,
        )


def evaluate(config: RunConfig, *, keep: bool = True) -> dict[str, Any]:
    """Evaluate a trained run on the data of its settings; with `keep`, store the results.

    Stored results of sets that were not measured this time, such as for lack of data, are kept.
    """
    folder = Path(config.folder)
    world = distributed.join(config.device)
    try:
        set_precision(config.train.precision)
        task = load_task(config, world)
        results = task.evaluate(task.model)
        stored = read_results(folder) or {}
        if world.is_main and keep:
            every = {**(stored.get("results") or {}), **results}
            _save_results(folder, {**stored, "results": every})
        return {**stored, "results": results}
    finally:
        distributed.leave()


def _save_results(folder: Path, summary: dict[str, Any]) -> None:
    configuration.write_atomically(folder / RESULTS, json.dumps(summary, indent=1) + "\n")


def read_results(folder: Path) -> dict[str, Any] | None:
    """The results of a finished run, or None."""
    return _read_table(folder / RESULTS)


def _read_table(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if it is missing or cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _kind(config: RunConfig) -> str:
    return f"{config.experiment}/{config.model.name}"
