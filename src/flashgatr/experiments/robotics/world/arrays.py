"""One formula for numpy arrays and torch tensors.

Functions of this package ask `namespace` for the module that computes with their argument, numpy or
torch, and use only names and arguments that both have. torch is imported only if a tensor comes in,
so that worker processes that plan with numpy start quickly.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""
Floats: TypeAlias = npt.NDArray[np.float64]


def namespace(x: Array) -> ModuleType | Any:
    """The module whose functions take `x`: numpy or torch."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else np


def constant(values: Any, like: Array) -> Array:
    """Numbers as an array of the kind, type and device of `like`."""
    xp = namespace(like)
    if xp is np:
        return np.asarray(values, dtype=like.dtype)
    return xp.as_tensor(values, dtype=like.dtype, device=like.device)


def norm(x: Array) -> Array:
    """Length of vectors along the last axis, which stays as an axis of size 1."""
    return (x * x).sum(-1)[..., None] ** 0.5


def unit(x: Array, tiny: float = 1e-12) -> Array:
    """Vectors scaled to length 1; vectors shorter than `tiny` are divided by `tiny`."""
    return x / namespace(x).clip(norm(x), tiny, None)


def cross(a: Array, b: Array) -> Array:
    """Cross product along the last axis."""
    xp = namespace(a)
    return xp.stack(
        [
            a[..., 1] * b[..., 2] - a[..., 2] * b[..., 1],
            a[..., 2] * b[..., 0] - a[..., 0] * b[..., 2],
            a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0],
        ],
        axis=-1,
    )
