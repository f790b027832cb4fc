"""The Triton kernels by name, each with its launcher.

`triton_kernels` is imported at the first use, because Triton may be missing without a GPU.
"""

from __future__ import annotations

from typing import Any

from .launch import Kernel


class Kernels:
    """`kernels.NAME` is the launcher of the kernel `triton_kernels.NAME`."""

    def __getattr__(self, name: str) -> Kernel:
        try:
            from . import triton_kernels
        except ImportError as error:
            raise AttributeError(f"there is no kernel {name}: Triton is not installed") from error
        functions: Any = triton_kernels
        found = Kernel(getattr(functions, name))
        setattr(self, name, found)
        return found


kernels = Kernels()
