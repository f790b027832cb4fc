"""A vessel wall as the models see it: nodes, normals, distances from the inlet and stress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ...baselines.surfaces.levels import Levels

Array: TypeAlias = npt.NDArray[Any]
EDGE = 0.032
"""Mean edge length of the published meshes, cm."""
THIN = 1e-12
"""A face with less area than this share of its longest edge squared has no normal."""


class ArteryError(ValueError):
    """A mesh or data set cannot be used; the message names it and says what to do."""


@dataclass(frozen=True)
class Mesh:
    """N nodes without flow extensions. `mask` marks the nodes that count in loss and metrics."""

    name: str
    index: int
    position: Array  # (N, 3) float32, cm
    normal: Array  # (N, 3) float32, outward unit vectors
    geodesic: Array  # (N,) float32, cm along the wall from the inlet
    mask: Array  # (N,) bool
    inlet_diameter: float
    wss: Array | None = None  # (N, 3) float32, dyn/cm²
    face: Array | None = None  # (M, 3) int64
    levels: Levels | None = None  # scales and neighbours, for the networks that use them

    @property
    def nodes(self) -> int:
        return int(np.shape(self.position)[0])


def between(geodesic: Array, margin: float) -> Array:
    """Which nodes are farther than `margin` from the smallest and from the largest distance."""
    low, high = geodesic.min() + np.float32(margin), geodesic.max() - np.float32(margin)
    return np.asarray((geodesic > low) & (geodesic < high))


def kept_faces(face: Array, keep: Array) -> Array:
    """The faces whose nodes are all kept, in the numbering of the kept nodes."""
    number = np.cumsum(keep) - 1
    return np.asarray(number[face[keep[face].all(axis=1)]], dtype=np.int64)


def is_thin(position: Array, face: Array, double_area: Array) -> Array:
    """Which faces have almost no area, compared with the square of their longest edge."""
    corners = position[face]
    longest = np.square(corners - np.roll(corners, 1, axis=1)).sum(axis=2).max(axis=1)
    return np.asarray(double_area <= THIN * longest)
