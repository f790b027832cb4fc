"""Recomputation: the backward pass computes a part of the network again instead of saving it.

Also called activation checkpointing. Random numbers (dropout) are drawn again as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

X = TypeVar("X")


def recomputed(wanted: bool, part: Callable[..., X], *given: Tensor) -> X:
    """part(*given); if wanted, only `given` is kept, and the backward pass runs the part again."""
    if wanted and torch.is_grad_enabled():
        return checkpoint(part, *given, use_reentrant=False)  # type: ignore[no-any-return]
    return part(*given)
