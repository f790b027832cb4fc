"""The earlier location of `flashgatr.train`; old imports keep working."""

from __future__ import annotations

import importlib
import sys

from ..train import CheckpointError as CheckpointError
from ..train import Task as Task
from ..train import Trainer as Trainer
from ..train import TrainingError as TrainingError
from ..train import distributed as distributed

_MOVED = {
    "checkpoint": "checkpoint",
    "distributed": "distributed",
    "flat": "flat_adam",
    "log": "log",
    "order": "order",
    "parts": "shape_graphs",
    "stepper": "stepper",
    "task": "task",
    "trainer": "trainer",
}
for _old, _new in _MOVED.items():  # `from flashgatr.experiments.engine.trainer import …`
    _module = importlib.import_module(f"flashgatr.train.{_new}")
    globals()[_old] = sys.modules[f"{__name__}.{_old}"] = _module
