"""How float32 matrix products are computed on a GPU: with all digits, or rounded to TF32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def set_precision(precision: str) -> None:
    """Set how this process computes float32 matrix products on a GPU."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """A context with the precision of float32 matrix products that training sets for `name`."""
    before = torch.get_float32_matmul_precision()
    set_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
