"""Random orientations as in the original code: one fixed matrix of O(3) per sample number.

The matrices are those of scipy.stats.ortho_group.rvs(3, size=2000, random_state=RandomState(123)):
Gaussian matrices Z = QR, and the columns of Q with the signs of R's diagonal. They are computed
here because that function of SciPy has changed before. Half of them are reflections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from .mesh import Array, Mesh

COUNT, SEED = 2000, 123


@cache
def matrices(count: int = COUNT, seed: int = SEED) -> Array:
    """(count, 3, 3) float64, read-only, by sample number. Larger counts extend smaller ones."""
    normal = np.random.RandomState(seed).normal(size=(count, 3, 3))  # the original's stream
    q, r = np.linalg.qr(normal)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    q = q * (diagonal / np.abs(diagonal))[:, None, :]
    q.flags.writeable = False
    return np.asarray(q)


def orientations(meshes: Sequence[Mesh], kind: str) -> list[Array]:
    """The matrix of O(3) for each mesh: `kind` is "random" or "canonical" (unchanged)."""
    if kind == "canonical":
        return [np.eye(3) for _ in meshes]
    found = matrices(max([COUNT, *(mesh.index + 1 for mesh in meshes)]))
    return [found[mesh.index] for mesh in meshes]


def turned(mesh: Mesh, matrix: Array) -> Mesh:
    """v → R v for positions, normals and stress. Reflections reverse faces, which stay outward."""
    if np.shape(matrix) != (3, 3) or not np.allclose(
        matrix @ np.transpose(matrix), np.eye(3), atol=1e-5
    ):
        raise ValueError("expected an orthogonal 3x3 matrix")

    def turn(x: Array) -> Array:
        return np.asarray(np.asarray(x, np.float64) @ np.transpose(matrix), dtype=np.float32)

    mirrored = np.linalg.det(matrix) < 0
    return replace(
        mesh,
        position=turn(mesh.position),
        normal=turn(mesh.normal),
        wss=None if mesh.wss is None else turn(mesh.wss),
        face=mesh.face[:, ::-1].copy() if mesh.face is not None and mirrored else mesh.face,
    )
