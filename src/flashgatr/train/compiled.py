"""Compiled blocks: those of every list of modules of a network, each by torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def blocks(model: nn.Module) -> list[nn.Module]:
    """What is compiled of a network: the members of its lists of modules."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for found in lists for block in found]


@contextmanager
def compiled_blocks(model: nn.Module) -> Iterator[None]:
    """A context in which blocks are compiled for the shapes that they see; then all is as before.

    It also holds within a period in which the trainer lets compiled blocks run eagerly.
    """
    before = [(block, block._compiled_call_impl) for block in blocks(model)]
    try:
        for block, _ in before:
            block.compile(dynamic=False)
        with torch.compiler.set_stance("default"):
            yield
    finally:
        for block, call in before:
            block._compiled_call_impl = call
