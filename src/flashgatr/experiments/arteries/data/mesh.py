"""A vessel wall as the models see it: nodes with normals, distance from the inlet, and where known the stress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


class ArteryError(ValueError):
    """A mesh or data set cannot be used; the message names it and says what to do."""


@dataclass(frozen=True)
class Mesh:
    """N nodes without flow extensions. `mask` says which of them count in loss and metrics."""

    name: str
    index: int
    position: Array  # (N, 3) float32, cm
    normal: Array  # (N, 3) float32, outward unit vectors
    geodesic: Array  # (N,) float32, cm along the wall from the inlet
    mask: Array  # (N,) bool
    inlet_diameter: float
    wss: Array | None = None  # (N, 3) float32, dyn/cm²
    face: Array | None = None  # (M, 3) int64

    @property
    def nodes(self) -> int:
        return int(np.shape(self.position)[0])


def between(geodesic: Array, margin: float) -> Array:
    """Which nodes lie farther than `margin` from both ends."""
    low, high = geodesic.min() + np.float32(margin), geodesic.max() - np.float32(margin)
    return np.asarray((geodesic > low) & (geodesic < high))
