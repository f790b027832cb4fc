"""Training: one loop for every task. A run that is stopped or killed resumes exactly.

world = distributed.join(config.device)
summary = Trainer(MyTask(config, world.device), config, world).run()

task          what the trainer needs to know: data, model, loss, metrics
sections      the settings of a run, checked on construction
settings      reading, saving and changing them; toml knows the format
trainer       the loop: learning rate, validation, best weights, signals, resuming
batch         a batch as a tree of tensors
precision     how float32 matrix products are computed on a GPU
order         which samples form the batch of step k
compiled      blocks of a network, compiled
stepper       one optimiser step: eager, compiled, or captured as a CUDA graph
shape_graphs  captured steps on samples of unequal size, one graph per shape
flat_adam     Adam over one flat tensor, for captured steps
checkpoint    checkpoints that are complete or absent
answers       checks of what a task returns, and the hash of its data
lock          one process at a time in a folder
distributed   one process or many: DDP, FSDP
log           JSON lines, progress bar, TensorBoard
"""

from . import distributed as distributed
from . import settings as settings
from .checkpoint import CheckpointError as CheckpointError
from .distributed import World as World
from .precision import set_precision as set_precision
from .settings import DataConfig as DataConfig
from .settings import ModelConfig as ModelConfig
from .settings import RunConfig as RunConfig
from .settings import TrainConfig as TrainConfig
from .task import Divisible as Divisible
from .task import Task as Task
from .toml import ConfigError as ConfigError
from .trainer import Trainer as Trainer
from .trainer import TrainingError as TrainingError
from .trainer import fingerprint as fingerprint
from .trainer import identity as identity
