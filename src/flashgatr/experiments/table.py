"""The table of experiments: those of the package, and those that a user's files define.

A user's file is executed, as by `python FILE`. Only a command line or a program can name one; a run
folder stores the experiment's name and the file's hash, and no path that could be executed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .experiment import Experiment

if TYPE_CHECKING:
    from ..train import ConfigError

BUILT_IN = {
    "nbody": "flashgatr.experiments.nbody",
    "arteries": "flashgatr.experiments.arteries",
    "kuka": "flashgatr.experiments.robotics",
    "charges": "flashgatr.experiments.charges",
    "flows": "flashgatr.experiments.flows",
}
"""The modules that define `EXPERIMENT`. Settings without an experiment belong to the first one."""


MODULE_PREFIX = "flashgatr_experiment_"
"""A user's file is a module of this name, followed by the name of the file."""


@dataclass(frozen=True)
class Source:
    """An experiment that a user's file defines."""

    experiment: Experiment
    path: Path
    sha256: str


_files: dict[str, Source] = {}


def names() -> tuple[str, ...]:
    """The names of all experiments: built-in ones, and those of the files loaded so far."""
    return (*BUILT_IN, *_files)


def find(name: str) -> Experiment:
    """The experiment of this name."""
    if name in BUILT_IN:
        return _defined_by(importlib.import_module(BUILT_IN[name]), BUILT_IN[name])
    if name in _files:
        return _files[name].experiment
    from ..train.settings import suggest

    raise _error(
        f"unknown experiment {name!r}; {suggest(name, names())} (for one of your own, give the "
        "file that defines it: path/to/file.py)"
    )


def source(name: str) -> Source | None:
    """The user's file that defines an experiment; None for a built-in one."""
    return _files.get(name)


def load_file(path: Path) -> Experiment:
    """Execute a user's file and add the experiment that it defines to the table."""
    path = Path(path).absolute()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _error(f"cannot read the experiment {path}: {error.strerror or error}") from error
    module = f"{MODULE_PREFIX}{path.stem}"
    spec = importlib.util.spec_from_file_location(module, path)
    if spec is None or spec.loader is None:
        raise _error(f"{path} is not a Python file; expected one that defines EXPERIMENT")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as for a script: it may import files beside it
    exec(compile(content, str(path), "exec"), loaded.__dict__)  # exactly the bytes that are hashed
    experiment = _defined_by(loaded, str(path))
    if experiment.name in BUILT_IN:
        raise _error(
            f"{path} defines an experiment {experiment.name!r}, which is the name of one that "
            "comes with flashgatr; choose another name"
        )
    _files[experiment.name] = Source(experiment, path, hashlib.sha256(content).hexdigest())
    return experiment


def resolve(text: str) -> Experiment:
    """The experiment that a command line names: a name, or the path of a file that ends in .py."""
    return load_file(Path(text)) if text.endswith(".py") else find(text)


def defaults(name: object) -> Mapping[str, Any]:
    """Default settings of an experiment, for the argument `defaults` of `train.settings.load`."""
    if name is None:
        return find(next(iter(BUILT_IN))).settings()
    return find(name).settings() if isinstance(name, str) and name in names() else {}


def _defined_by(module: Any, place: str) -> Experiment:
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        raise _error(
            f"{place} must define EXPERIMENT, an Experiment of flashgatr.experiments.experiment; "
            f"got {type(found).__name__ if found is not None else 'nothing of that name'}"
        )
    return found


def _error(message: str) -> ConfigError:
    from ..train import ConfigError  # not above: training imports torch

    return ConfigError(message)
