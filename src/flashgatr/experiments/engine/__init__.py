"""The training engine: one loop for all experiments, whatever happens to the process that runs it."""

from . import distributed as distributed
from .checkpoint import CheckpointError as CheckpointError
from .task import Task as Task
from .trainer import Trainer as Trainer
from .trainer import TrainingError as TrainingError
