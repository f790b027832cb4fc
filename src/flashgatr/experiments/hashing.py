"""A name for data: the same for the same numbers, wherever they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt


def hash_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 of arrays, with their shapes and types, in order."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
