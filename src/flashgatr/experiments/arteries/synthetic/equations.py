"""The discrete flow equations of a grid and their direct solution, layer by layer.

The unknowns of a layer of elements are those of its first plane (velocity and pressure), of its mid
plane (velocity) and of its last plane, which is the first plane of the next layer. A dense LU
factorisation with pivoting eliminates the first and the mid plane together. A dense system on the
next plane remains:

    [A B] [x]   [f]      x = A⁻¹f − A⁻¹B y
    [C D] [y] = [g]      (D − C A⁻¹B) y = g − C A⁻¹f,   passed to the next layer
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from ..data.mesh import Array, ArteryError
from .elements import NODES, Layer
from .grid import Grid

PRECISION = np.float32
"""The dtype of the elimination. Residuals are float64, so the flow is still accurate to about 1e-8.

Measured on one Xeon core, one step with assembly on a (3, 2, 80) mesh: 4.5 s in float64 and 2.8 s
in float32, in a process of 0.5 GB; the largest wall stress differed by 2e-7. On a (3, 2, 40) mesh
with 30,680 unknowns: 1.2 s in float32. There scipy.sparse.linalg.splu in float64 takes 5.8 s
(natural order) or 7.1 s (COLAMD) for the factorisation alone, and 1.5 GB.
"""


class FlowError(ArteryError):
    """The flow could not be computed."""


class Equations:
    """Velocities are (P, n, 3), pressures (layers + 1, m). Velocities at wall and inlet are
    given.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        cross = grid.section
        self.free, vertices = cross.free, len(cross.vertex)
        try:
            self.layers = [Layer.of(grid.element_nodes(k)) for k in range(grid.layers)]
        except ValueError as error:
            raise FlowError(f"the grid folds: {error}; the vessel is too sharply bent") from error
        self.plane = 3 * self.free + vertices
        self.eliminated = self.plane + 3 * self.free
        self.size = self.eliminated + self.plane  # this index stands for all given values
        of_node = np.full((3, len(cross.node), 3), self.size)
        for i, start in enumerate((0, self.plane, self.eliminated)):
            of_node[i, : self.free] = start + np.arange(3 * self.free).reshape(-1, 3)
        velocity = of_node.reshape(-1, 3)[grid.hexahedra].reshape(-1, 3 * NODES)
        corner = cross.quad_vertex.reshape(-1, 4) + 3 * self.free
        self.index = np.concatenate([velocity, corner, corner + self.eliminated], axis=1)  # (e, 89)
        pairs = self.index[:, :, None] * (self.size + 1) + self.index[:, None, :]
        self._pairs = pairs.ravel()

    def _local(self, u: Array, p: Array, k: int) -> tuple[Array, Array]:
        """Velocities (e, 27, 3) and pressures (e, 8) of a layer's elements."""
        corner = self.grid.section.quad_vertex.reshape(-1, 4)
        velocity = u[2 * k : 2 * k + 3].reshape(-1, 3)[self.grid.hexahedra]
        return velocity, np.concatenate([p[k][corner], p[k + 1][corner]], axis=1)

    def residual(self, u: Array, p: Array, mu: float, rho: float) -> tuple[Array, float]:
        """The residual of each layer (layers, size), and its norm relative to the wall and inlet
        forces.
        """
        parts, given = np.empty((len(self.layers), self.size + 1)), 0.0
        for k, layer in enumerate(self.layers):
            found = layer.residual(*self._local(u, p, k), mu, rho)
            parts[k] = np.bincount(self.index.ravel(), found.ravel(), self.size + 1)
            given += float(np.square(found[self.index == self.size]).sum())
        parts = parts[:, :-1]
        inlet = parts[0, : 3 * self.free]
        given += float(inlet @ inlet)
        inlet[:] = 0
        total = parts[:, : self.eliminated].copy()
        total[1:, : self.plane] += parts[:-1, self.eliminated :]
        last = parts[-1, self.eliminated :]
        return parts, float(np.sqrt((np.square(total).sum() + last @ last) / given))

    def step(self, u: Array, p: Array, mu: float, rho: float, newton: bool) -> tuple[Array, Array]:
        """The changes of velocity and pressure by one step of Newton's or Picard's method."""
        parts, _ = self.residual(u, p, mu, rho)
        plane, eliminated = self.plane, self.eliminated
        carried, behind = np.zeros((plane, plane + 1), PRECISION), []
        for k, layer in enumerate(self.layers):
            front = self._front(layer.matrix(self._local(u, p, k)[0], mu, rho, newton), parts[k])
            if k == 0:  # the velocity at the inlet is given
                front[: 3 * self.free] = 0
                front[:, : 3 * self.free] = 0
                np.fill_diagonal(front[: 3 * self.free], 1)
            front[:plane, :plane] += carried[:, :-1]
            front[:plane, -1] += carried[:, -1]
            factors = lu_factor(front[:eliminated, :eliminated], check_finite=False)
            behind.append(lu_solve(factors, front[:eliminated, eliminated:], check_finite=False))
            carried = front[eliminated:, eliminated:] - front[eliminated:, :eliminated] @ behind[-1]
        planes, mids = [np.linalg.solve(carried[:, :-1], carried[:, -1])], []
        for found in reversed(behind):
            x = found[:, -1] - found[:, :-1] @ planes[-1]
            planes.append(x[:plane])
            mids.append(x[plane:])
        every, velocity = np.stack(planes[::-1]), np.zeros_like(u)
        velocity[::2, : self.free] = every[:, : 3 * self.free].reshape(len(every), -1, 3)
        velocity[1::2, : self.free] = np.stack(mids[::-1]).reshape(len(mids), -1, 3)
        return velocity, every[:, 3 * self.free :].astype(np.float64)

    def _front(self, entries: Array, residual: Array) -> Array:
        """The dense system of a layer (size, size + 1); the last column is the right-hand side."""
        full = np.bincount(self._pairs, entries.ravel(), (self.size + 1) ** 2)
        front = np.empty((self.size, self.size + 1), PRECISION)
        front[:, :-1] = full.reshape(self.size + 1, self.size + 1)[:-1, :-1]
        front[:, -1] = -residual
        return front
