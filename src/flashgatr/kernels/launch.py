"""Triton kernels, launched with less ado.

Triton finds the compiled kernel for a call by looking at every argument, which takes longer than many a small kernel runs. What
decides is little: constants, dtypes, alignment of pointers, and whether an integer is one or a multiple of sixteen.
Calls that agree in these go straight to the kernel that Triton found for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 16
_LARGE = 1 << 31


class Kernels:
    """The functions of `triton_kernels`, which is imported when the first is needed: without a GPU, Triton may be missing."""

    def __getattr__(self, name: str) -> Any:
        try:
            from . import triton_kernels
        except ImportError as error:
            raise AttributeError(f"there is no kernel {name}: Triton is not installed") from error
        found = getattr(triton_kernels, name)
        setattr(self, name, found)
        return found


kernels = Kernels()


class Kernel:
    """`kernel[grid](*arguments, **constants)`, as of a function under triton.jit."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        device: int = arguments[0].get_device()
        key = (device, *constants, *constants.values(), *_kinds(arguments))
        known = self._known.get(key)
        if known is not None:
            compiled, rest = known
            grid = (*grid, *(1,) * (3 - len(grid)))
            compiled[grid](*arguments, *rest, stream=_stream(device))
            return
        compiled = self.function[grid](*arguments, **constants)
        if hasattr(compiled, "run"):  # an interpreted kernel has no such thing
            names = self.function.arg_names[len(arguments) :]
            self._known[key] = compiled, tuple(constants[name] for name in names)


def _stream(device: int) -> int:
    """The current stream, as a number; Triton would look for the current device first."""
    return torch._C._cuda_getCurrentRawStream(device)


def _kinds(arguments: tuple[Any, ...]) -> list[Any]:
    """What of the arguments decides which kernel serves."""
    kinds: list[Any] = []
    for x in arguments:
        if isinstance(x, Tensor):
            kinds += x.dtype, not x.data_ptr() % _ALIGNED
        elif isinstance(x, int):
            kinds += type(x), x == 1, not x % _ALIGNED, -_LARGE <= x < _LARGE
        else:
            kinds.append(type(x))
    return kinds
