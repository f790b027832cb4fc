"""The `flashgatr` command in a process that may be killed at any file operation.

A fork server, which imports everything once, starts such a process in milliseconds.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import rich.table  # noqa: F401  all that the command imports on its way
import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.tensor

from flashgatr.experiments import cli, runs  # noqa: F401
from flashgatr.experiments.cli import commands  # noqa: F401
from flashgatr.experiments.nbody import task  # noqa: F401
from flashgatr.train import checkpoint

from .faults import Points, kill

TINY = {
    "device": "cpu",
    "model.options.num_blocks": 1,
    "model.options.hidden_mv_channels": 2,
    "model.options.hidden_s_channels": 4,
    "model.options.num_heads": 2,
    "train.batch_size": 4,
    "train.steps": 6,
    "train.validate_every": 3,
    "train.checkpoint_every": 3,
    "train.log_every": 1,
}


def assignments(**more):
    """Settings of a run of half a second, with some changed; a . in a key is written as __."""
    settings = TINY | {key.replace("__", "."): value for key, value in more.items()}
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def changes(**more):
    """The same as options of the command."""
    return [x for assignment in assignments(**more) for x in ("--set", assignment)]


def start(arguments, output, *, kill_at=0, in_saves=False):
    """A process that runs the command and kills itself at file operation `kill_at`.

    in_saves: count only the file operations of saves.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(arguments, str(output), kill_at, in_saves))
    process.start()
    return process


def _run(arguments, output, kill_at, in_saves):
    torch.set_num_threads(1)
    with Path(output).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["flashgatr", *arguments]
    points = Points(kill_at, kill)
    if in_saves:
        save = checkpoint.save
        checkpoint.save = lambda *args, **kwargs: _watched(points, save, *args, **kwargs)
        return cli.main()
    try:
        return _watched(points, cli.main)
    finally:
        Path(output).with_suffix(".points").write_text(str(points.passed))


def _watched(points, function, *args, **kwargs):
    with points.counted():
        return function(*args, **kwargs)
