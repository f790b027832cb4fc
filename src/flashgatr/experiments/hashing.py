"""A hash that identifies arrays by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt


def hash_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 of arrays, with their shapes and types, in order."""
    digest = hashlib.sha256()
    for x in arrays:  # one at a time: together they may not fit into memory twice
        digest.update(f"{x.dtype.str}{x.shape}".encode())
        digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()
