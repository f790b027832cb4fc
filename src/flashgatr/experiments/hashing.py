"""A hash that identifies arrays by their content."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..io.files import sha256


def hash_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """SHA-256 of arrays, with their shapes and types, in order."""
    return sha256(
        *(
            chunk
            for x in arrays
            for chunk in (f"{x.dtype.str}{x.shape}".encode(), np.ascontiguousarray(x).data)
        )
    )
