"""The artery experiment's task with a small network."""

import torch

from flashgatr.experiments import runs
from flashgatr.experiments.arteries import task
from flashgatr.experiments.config import override

CPU = torch.device("cpu")
SMALL = ["num_blocks=1", "hidden_mv_channels=4", "hidden_s_channels=8", "num_heads=2"]


def config(*changes):
    small = [f"model.options.{option}" for option in SMALL]
    return override(runs.defaults("arteries"), [*small, "train.precision=float32", *changes])


def make(*changes):
    return task.ArteryTask(config(*changes), CPU)
