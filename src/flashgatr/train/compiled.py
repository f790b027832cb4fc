"""Compiled blocks: those of every list of modules of a network, each by torch.compile."""

from __future__ import annotations

import copy

from torch import nn


def blocks(model: nn.Module) -> list[nn.Module]:
    """What is compiled of a network: the members of its lists of modules."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [block for found in lists for block in found]


def compiled_copy(model: nn.Module) -> nn.Module:
    """A copy whose blocks are compiled for the shapes that they see.

    It shares parameters and buffers with the model and so follows its weights. The model itself
    stays as it is, whether its blocks are compiled or not: a module that was compiled has no public
    way back.
    """
    shared = {id(x): x for x in (*model.parameters(), *model.buffers())}
    found = copy.deepcopy(model, shared)
    for block in blocks(found):
        block.compile(dynamic=False)
    return found
