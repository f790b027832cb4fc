"""Which implementation runs: the fused kernels, or the plain layers of `nn`.

The fused kernels run wherever possible. The plain layers run for what the kernels do not support
(dropout in training, transforms of torch.func), on devices without kernels, and
within `plain_kernels()`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import torch
from torch import Tensor

from ..constants import is_transformed, traced_as_constant
from .cpu.library import MOST_FEATURES, library

_plain = os.environ.get("FLASHGATR_KERNELS") == "plain"


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Within: networks run through the plain layers on every device.

    For the whole process, set the environment variable FLASHGATR_KERNELS=plain.
    """
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def obstacle(x: Tensor, parameter: Tensor, features: int) -> str | None:
    """Why the kernels cannot run a network with this parameter on this input; None if they can.

    features: the width of a query.
    """
    if _plain:
        return "plain kernels were asked for"
    if is_transformed():
        return "torch.func transforms support plain operations only"
    device = x.device.type
    dtype = compute_dtype(parameter)
    if device == "cuda":
        return _cuda_obstacle(dtype)
    if device == "cpu":
        return _cpu_obstacle(dtype, features)
    return f"there are no kernels for {device}"


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of dense products: autocast's, or the parameters'."""
    device = parameter.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return parameter.dtype


def _cuda_obstacle(dtype: torch.dtype) -> str | None:
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the CUDA kernels do not compute in {dtype}"
    return None if has_triton() else "Triton is not installed"


def _cpu_obstacle(dtype: torch.dtype, features: int) -> str | None:
    if dtype not in (torch.float32, torch.float64):
        return f"the CPU kernels do not compute in {dtype}"
    if features > MOST_FEATURES:
        return f"queries of {features} features are wider than the CPU kernels' {MOST_FEATURES}"
    return None if has_c_kernels() else "no C compiler was found"


@traced_as_constant
def has_c_kernels() -> bool:
    return library() is not None


@traced_as_constant
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
