"""A cached launcher that skips Triton's per-call argument inspection.

Triton finds the compiled kernel for a call by inspecting every argument, which takes longer than
many small kernels run. The kernel depends only on constants, dtypes, the alignment of pointers,
and whether an integer is one or a multiple of sixteen. Calls that agree in these are launched
directly, with the kernel that Triton found for the first of them. This needs Triton's private
launch function. If that fails, `shortcuts.TRITON_LAUNCH` is turned off, and Triton launches its
kernels itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from ...shortcuts import TRITON_LAUNCH

_ALIGNED = 16
"""Triton specialises kernels for pointers and integers that are multiples of this."""
_LARGE = 1 << 31
"""Integers below this are passed as 32-bit numbers."""


class Kernel:
    """Called as `kernel[grid](*arguments, **constants)`, like a function under triton.jit."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._known: dict[tuple[Any, ...], dict[tuple[Any, ...], Any]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **constants: self.bound(grid, **constants)(*arguments)

    def bound(self, grid: tuple[int, ...], **constants: Any) -> Bound:
        """The kernel with its grid and constants, which a caller may keep."""
        known = self._known.setdefault((*constants, *constants.values()), {})
        return Bound(self.function, grid, constants, known)


class Bound:
    """A kernel with its grid and constants, called as `bound(*arguments)`."""

    def __init__(
        self,
        function: Any,
        grid: tuple[int, ...],
        constants: dict[str, Any],
        known: dict[tuple[Any, ...], Any],
    ) -> None:
        self.function, self.constants, self.known = function, constants, known
        self.grid = (*grid, *_ONES[len(grid) :])
        self.rest: tuple[Any, ...] | None = None
        """The constants in the order of the function's arguments."""

    def __call__(self, *arguments: Any) -> None:
        device: int = arguments[0].get_device()
        kinds, values = _kinds(arguments)
        key = (device, *kinds)
        compiled = self.known.get(key)
        if compiled is None or not TRITON_LAUNCH.is_on:
            compiled = self.function[self.grid](*arguments, **self.constants)
            if hasattr(compiled, "run") and _takes_constants():  # interpreted kernels have no `run`
                self.known[key] = compiled
            return
        try:
            self._launch(compiled, device, values)
        except (AttributeError, TypeError, ValueError, KeyError) as error:  # nothing was launched
            TRITON_LAUNCH.fail(error)
            self.function[self.grid](*arguments, **self.constants)

    def _launch(self, compiled: Any, device: int, values: list[Any]) -> None:
        """Launch a compiled kernel directly."""
        if self.rest is None:
            names = self.function.arg_names[len(values) :]
            self.rest = tuple(self.constants[name] for name in names)
        stream = _stream(device)
        if _is_watched():
            compiled[self.grid](*values, *self.rest, stream=stream)
        else:
            compiled.run(
                *self.grid, stream, compiled.function, compiled.packed_metadata, None, None, None,
                *values, *self.rest,
            )  # fmt: skip


_ONES = (1, 1, 1)


def _stream(device: int) -> int:
    """The handle of a device's current stream."""
    try:
        return torch._C._cuda_getCurrentRawStream(device)
    except AttributeError:  # a private name that another torch may lack
        return torch.cuda.current_stream(device).cuda_stream


@lru_cache(maxsize=1)
def _runtime() -> Any:
    """The object that holds Triton's launch hooks, or None."""
    try:
        from triton import knobs
    except ImportError:
        return None
    return knobs.runtime


def _is_watched() -> bool:
    """Whether a profiler or another tool has launch hooks; True if Triton cannot tell."""
    runtime = _runtime()
    try:
        return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)
    except AttributeError:  # another Triton
        return True


@lru_cache(maxsize=1)
def _takes_constants() -> bool:
    """Whether compiled kernels take constants as arguments, too, as they do since Triton 3.3."""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:  # installed under another name
        return False
    return tuple(map(int, version.split(".")[:2])) >= (3, 3)


def _kinds(arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The properties that select the kernel, and the arguments with addresses for tensors."""
    kinds: list[Any] = []
    values: list[Any] = []
    for x in arguments:
        if isinstance(x, Tensor):
            kinds.append(x.dtype)
            x = x.data_ptr()
            if x % _ALIGNED:
                kinds.append(_ALIGNED)
        elif isinstance(x, int):
            kinds += type(x), x == 1, not x % _ALIGNED, -_LARGE <= x < _LARGE
        else:
            kinds.append(type(x))
        values.append(x)
    return kinds, values
