"""The `flashgatr` command in a process that may be killed at any file operation.

A fork server that has imported everything once starts such a process in milliseconds instead of seconds.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import rich.table  # noqa: F401  all that the command imports on its way
import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.tensor  # noqa: F401

from flashgatr.experiments import cli, commands, runs  # noqa: F401
from flashgatr.experiments.nbody import task  # noqa: F401

from .faults import accident, kill


def start(arguments, output, *, kill_at=0):
    """A process that runs the command; it kills itself at file operation `kill_at`, if there is one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(arguments, str(output), kill_at))
    process.start()
    return process


def _run(arguments, output, kill_at):
    torch.set_num_threads(1)
    with Path(output).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["flashgatr", *arguments]
    with accident(kill_at, kill) as points:
        try:
            cli.main()
        finally:
            print(f"\nfile operations: {points.passed}", flush=True)
