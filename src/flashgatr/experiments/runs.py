"""A run: a folder with its configuration, its log, its checkpoints, its trained model and its results.

config.toml   log.jsonl   checkpoints/   model/ (config.json, model.safetensors)   results.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from .. import io
from . import config as configuration
from . import registry
from .config import ConfigError, RunConfig
from .engine import Task, Trainer, distributed
from .engine.distributed import World

EXPERIMENTS = ("nbody",)
RESULTS = "results.json"


def make_task(config: RunConfig, world: World) -> Task:
    """Data and model of the configured experiment."""
    if config.experiment == "nbody":
        from .nbody.task import NBodyTask

        return NBodyTask(config, world.device)
    raise ConfigError(
        f"unknown experiment {config.experiment!r}; {configuration.suggest(config.experiment, EXPERIMENTS)}"
    )


def train(config: RunConfig, *, resume: bool = False) -> dict[str, Any]:
    """Train a model as configured; with `resume`, continue what the folder holds."""
    folder = Path(config.folder)
    if not resume and (folder / "checkpoints").exists():
        raise ConfigError(
            f"{folder} holds a run already; continue it with --resume, or choose another folder with "
            "--folder"
        )
    world = distributed.join(config.device)
    try:
        task = make_task(config, world)
        if world.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            configuration.save(config, folder / "config.toml")
        trainer = Trainer(task, config, world)
        summary = trainer.run()
        weights = trainer.weights()
        if world.is_main:
            io.save(folder / "model", _kind(config), dict(config.model.options), weights)
        return summary
    finally:
        distributed.leave()


def load_model(config: RunConfig) -> nn.Module:
    """The trained model of a run."""
    _, state = io.load(Path(config.folder) / "model", _kind(config))
    model = registry.build(config.experiment, config.model.name, dict(config.model.options))
    return io.fill(model, state)


def load_config(folder: Path) -> RunConfig:
    """The configuration of a run, wherever its folder is now."""
    config = configuration.load(folder / "config.toml")
    return configuration.override(config, [f"folder={json.dumps(str(folder))}"])


def evaluate(config: RunConfig) -> dict[str, Any]:
    """Evaluate a trained run again, on the data its configuration names, and store the results."""
    world = distributed.join(config.device)
    task = make_task(config, world)
    task.model.load_state_dict(load_model(config).state_dict())
    task.model.to(world.device).eval()
    results = task.evaluate(task.model)
    path = Path(config.folder) / RESULTS
    summary = {**(read_results(path.parent) or {}), "results": results}
    configuration.write_atomically(path, json.dumps(summary, indent=1) + "\n")
    return summary


def read_results(folder: Path) -> dict[str, Any] | None:
    """What a finished run found, or None."""
    try:
        found = json.loads((folder / RESULTS).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _kind(config: RunConfig) -> str:
    return f"{config.experiment}/{config.model.name}"
