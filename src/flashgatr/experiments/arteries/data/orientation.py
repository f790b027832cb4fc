"""Random orientations as in the original code: one fixed O(3) matrix per sample number, reflections included, never drawn again.

The matrices are those of scipy.stats.ortho_group.rvs(3, size=2000, random_state=RandomState(123)): Gaussian matrices Z = QR,
the columns of Q with the signs of R's diagonal. Made here, because that function has changed before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from .mesh import Array, Mesh

COUNT, SEED = 2000, 123


@cache
def matrices(count: int = COUNT, seed: int = SEED) -> Array:
    """(count, 3, 3) float64, not writable, by sample number. More of them begin with the same."""
    normal = np.random.RandomState(seed).normal(size=(count, 3, 3))  # the original's stream
    q, r = np.linalg.qr(normal)
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    q = q * (diagonal / np.abs(diagonal))[:, None, :]
    q.flags.writeable = False
    return np.asarray(q)


def turned(mesh: Mesh, matrix: Array) -> Mesh:
    """v → R v for positions, normals and stress. A reflection turns the faces around, so that they look outward still."""
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
