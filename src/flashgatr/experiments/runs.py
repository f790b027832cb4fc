"""A run: a folder with its configuration, its log, its checkpoints, its trained model and its results.

config.toml   log.jsonl   checkpoints/   model/ (config.json, model.safetensors)   results.json
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from .. import io
from . import config as configuration
from . import registry, toml
from .config import ConfigError, RunConfig
from .engine import Task, Trainer, distributed
from .engine import checkpoint as checkpoints
from .engine.distributed import World
from .engine.trainer import set_precision

if TYPE_CHECKING:
    from .arteries.task import ArteryTask
    from .nbody.task import NBodyTask

EXPERIMENTS = ("nbody", "arteries")
RESULTS = "results.json"
CONFIG = "config.toml"


def make_task(config: RunConfig, world: World) -> Task:
    """Data and model of the configured experiment."""
    return task_of(config.experiment)(config, world.device)


def task_of(experiment: str) -> type[NBodyTask] | type[ArteryTask]:
    """What an experiment is to the engine."""
    if experiment == "nbody":
        from .nbody.task import NBodyTask

        return NBodyTask
    if experiment == "arteries":
        from .arteries.task import ArteryTask

        return ArteryTask
    raise _unknown(experiment)


def _unknown(experiment: str) -> ConfigError:
    return ConfigError(
        f"unknown experiment {experiment!r}; {configuration.suggest(experiment, EXPERIMENTS)}"
    )


def defaults(experiment: str) -> RunConfig:
    """The settings of the paper's GATr in an experiment."""
    if experiment not in EXPERIMENTS:
        raise _unknown(experiment)
    return configuration.from_dict({"experiment": experiment})


def train(config: RunConfig, *, resume: bool = False) -> dict[str, Any]:
    """Train a model as configured; with `resume`, continue what the folder holds."""
    folder = Path(config.folder)
    if not resume and any((folder / name).exists() for name in ("checkpoints", "model", RESULTS)):
        raise ConfigError(
            f"{folder} holds a run already; continue it with --resume, or choose another folder with "
            "--folder"
        )
    world = distributed.join(config.device)
    try:
        with _alone(folder, world):
            if world.is_main and not (folder / CONFIG).exists():  # before anything takes time
                configuration.save(config, folder / CONFIG)
            task = make_task(config, world)
            if config.model.start and not checkpoints.exists(folder / "checkpoints"):
                _start(task.model, config)
            trainer = Trainer(task, config, world)
            if world.is_main:  # only now, because the folder may have held another run
                configuration.save(config, folder / CONFIG)
            summary = trainer.run()
            weights = trainer.weights()
            if world.is_main:  # the results come last: where they are, the run is complete
                io.save(folder / "model", _kind(config), dict(config.model.options), weights)
                _save_results(folder, summary)
            return summary
    finally:
        distributed.leave()


def _start(model: nn.Module, config: RunConfig) -> None:
    """Give a new model the weights of a trained run, whose options must be this run's, or be changed by name."""
    folder = Path(config.model.start)
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
                f"the network of model.start = {config.model.start!r} has options that this run does "
                f"not name: add {' '.join(f'--set {shlex.quote(x)}' for x in unsaid)} (or other values, to "
                "change them)"
            )
        io.fill(model, state)
    except io.LoadError as error:
        raise ConfigError(
            f"cannot start with the weights of model.start = {config.model.start!r}: {error}; it must "
            f"be the folder of a finished run of {_kind(config)} with the same model.options"
        ) from error


@contextmanager
def _alone(folder: Path, world: World) -> Iterator[None]:
    """Keep a second run out of the folder; the lock goes when its process does, however it ends."""
    if not world.is_main:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another process is training in {folder}; wait for it to end, or choose another "
                "folder"
            ) from error
        except (ImportError, OSError):
            pass  # a system or a file system without such locks
        yield


def load_model(config: RunConfig) -> nn.Module:
    """The trained model of a run."""
    if not (Path(config.folder) / "model").is_dir():
        raise io.LoadError(
            f"{config.folder} is not finished yet: it has no model; continue it with "
            f"`flashgatr train --resume --folder {config.folder}`"
        )
    _, state = io.load(Path(config.folder) / "model", _kind(config))
    model = registry.build(config.experiment, config.model.name, dict(config.model.options))
    return io.fill(model, state)


def load_config(folder: Path) -> RunConfig:
    """The configuration of a run, wherever its folder is now."""
    return replace(configuration.load(folder / CONFIG), folder=str(folder))


def evaluate(config: RunConfig, *, keep: bool = True) -> dict[str, Any]:
    """Evaluate a trained run again, on the data its configuration names, and (if `keep`) store the results."""
    folder = Path(config.folder)
    world = distributed.join(config.device)
    try:
        set_precision(config.train.precision)
        task = make_task(config, world)
        task.model.load_state_dict(load_model(config).state_dict())
        task.model.to(world.device).eval()
        results = task.evaluate(task.model)
        summary = {**(read_results(folder) or {}), "results": results}
        if world.is_main and keep:
            _save_results(folder, summary)
        return summary
    finally:
        distributed.leave()


def _save_results(folder: Path, summary: dict[str, Any]) -> None:
    configuration.write_atomically(folder / RESULTS, json.dumps(summary, indent=1) + "\n")


def read_results(folder: Path) -> dict[str, Any] | None:
    """What a finished run found, or None."""
    try:
        found = json.loads((folder / RESULTS).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _kind(config: RunConfig) -> str:
    return f"{config.experiment}/{config.model.name}"
