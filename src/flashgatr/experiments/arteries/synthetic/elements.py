"""Taylor-Hood hexahedra: quadratic velocity and geometry (27 nodes), linear pressure (8 vertices).

With the shape functions φ of the velocity and ψ of the pressure, the residual of steady flow in
Laplacian form, with a traction-free outlet, is

    F_ia = ∫ ρ φ_i (u·∇)u_a + μ ∇φ_i·∇u_a − p ∂_a φ_i,        G_k = −∫ ψ_k ∇·u

Its derivative has the term ρ φ_i φ_j ∂_b u_a in Newton's method; Picard's omits it. Integrals use
3 × 3 × 3 Gauss points.
Legend: e elements, q points of integration, i and j nodes, k vertices, a and b components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.mesh import Array

NODES, VERTICES = 27, 8
UNKNOWNS = 3 * NODES + VERTICES
GAUSS_LINE = np.sqrt(0.6) * np.array([-1.0, 0.0, 1.0])
_WEIGHTS = np.array([5.0, 8.0, 5.0]) / 9


def _quadratic(x: Array) -> Array:
    """The three quadratic shape functions on [-1, 1] and their derivatives: (2, points, 3)."""
    value = np.stack([x * (x - 1) / 2, 1 - x * x, x * (x + 1) / 2], axis=-1)
    return np.stack([value, np.stack([x - 0.5, -2 * x, x + 0.5], axis=-1)])


def _product(*factors: Array) -> Array:
    """Tensor product of factors (points, functions): (points, all functions), the last one
    fastest.
    """
    out = factors[0]
    for factor in factors[1:]:
        out = (out[:, :, None] * factor[:, None, :]).reshape(len(out), -1)
    return out


def shape(points: Array) -> tuple[Array, Array]:
    """Quadratic shape functions (q, 27) and their derivatives (q, 27, 3) at points (q, 3) of [-1,
    1]³.

    Coordinates 0 and 1 lie in the cross-section, 2 along the tube; nodes are counted plane by
    plane.
    """
    x, y, z = (_quadratic(points[:, i]) for i in range(3))
    slopes = [_product(z[int(k == 2)], x[int(k == 0)], y[int(k == 1)]) for k in range(3)]
    return _product(z[0], x[0], y[0]), np.stack(slopes, axis=-1)


def linear_shape(points: Array) -> Array:
    """Linear shape functions (q, 8) at points (q, 3) of [-1, 1]³; vertices in the order of
    nodes.
    """
    return _product(*(np.stack([1 - x, 1 + x], axis=-1) / 2 for x in points[:, [2, 0, 1]].T))


def cube(line: Array) -> Array:
    """The points (d³, 3) of a grid with these d coordinates on each axis, in the order of the
    nodes.
    """
    z, x, y = np.meshgrid(line, line, line, indexing="ij")
    return np.stack([x, y, z], axis=-1).reshape(-1, 3)


def square(line: Array) -> Array:
    """The points (d², 2) of a grid with these d coordinates on both axes, the last one fastest."""
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)


NODE_POINTS = cube(np.array([-1.0, 0.0, 1.0]))
ON_WALL = NODE_POINTS[:, 0] == 1  # which nodes of an outer element lie on the wall
GAUSS_WEIGHTS = np.einsum("a,b,c->abc", _WEIGHTS, _WEIGHTS, _WEIGHTS).ravel()
FACE_WEIGHTS = np.outer(_WEIGHTS, _WEIGHTS).ravel()
_SHAPE, _SLOPE = shape(cube(GAUSS_LINE))
_PAIRS = np.einsum("qi,qj->ijq", _SHAPE, _SHAPE).reshape(NODES * NODES, -1)
_PRESSURE = linear_shape(cube(GAUSS_LINE))


def face_shape() -> tuple[Array, Array, Array]:
    """Shape functions (q, 9), derivatives (q, 9, 2) and weights (q,) on a face, at 3 × 3 points."""
    x, y = (_quadratic(a) for a in square(GAUSS_LINE).T)
    slope = np.stack([_product(x[1], y[0]), _product(x[0], y[1])], axis=-1)
    return _product(x[0], y[0]), slope, FACE_WEIGHTS


def gradients(nodes: Array, slope: Array) -> tuple[Array, Array]:
    """Spatial derivatives of the shape functions (e, q, 27, 3) and Jacobians (e, q) of elements
    (e, 27, 3).
    """
    jacobian = np.einsum("eia,qib->eqab", nodes, slope)
    inverse = np.linalg.inv(jacobian)
    return np.einsum("qib,eqba->eqia", slope, inverse), np.linalg.det(jacobian)


@dataclass(frozen=True)
class Layer:
    """The elements of one layer: the parts of their integrals that depend on the geometry only."""

    gradient: Array  # (e, q, 27, 3)
    weight: Array  # (e, q)
    stiffness: Array  # (e, 27, 27)
    divergence: Array  # (e, 27, 3, 8)

    @classmethod
    def of(cls, nodes: Array) -> Layer:
        gradient, volume = gradients(nodes, _SLOPE)
        if not volume.min() > 0:
            raise ValueError(
                f"the Jacobian of an element is {volume.min():.3g}, expected more than 0"
            )
        weight = volume * GAUSS_WEIGHTS
        scaled = gradient * weight[..., None, None]
        flat = gradient.swapaxes(2, 3).reshape(len(nodes), -1, NODES)
        stiffness = flat.swapaxes(1, 2) @ scaled.swapaxes(2, 3).reshape(len(nodes), -1, NODES)
        divergence = -np.einsum("eqia,qk->eiak", scaled, _PRESSURE, optimize=True)
        return cls(gradient, weight, stiffness, divergence)

    def residual(self, u: Array, p: Array, mu: float, rho: float) -> Array:
        """(e, 89) for velocities (e, 27, 3) and pressures (e, 8): momentum first, component
        fastest.
        """
        slope = np.einsum("eqib,eia->eqab", self.gradient, u, optimize=True)
        inertia = np.einsum("eqab,eqb,eq->eqa", slope, _SHAPE @ u, rho * self.weight, optimize=True)
        momentum = np.einsum("qi,eqa->eia", _SHAPE, inertia, optimize=True)
        momentum += mu * (self.stiffness @ u) + np.einsum("eiak,ek->eia", self.divergence, p)
        mass = np.einsum("eiak,eia->ek", self.divergence, u)
        return np.concatenate([momentum.reshape(len(u), -1), mass], axis=1)

    def matrix(self, u: Array, mu: float, rho: float, newton: bool) -> Array:
        """The derivative of `residual`, (e, 89, 89); without `newton`, the convecting velocity
        is fixed.
        """
        elements = len(u)
        out = np.zeros((elements, UNKNOWNS, UNKNOWNS))
        velocity = out[:, : 3 * NODES, : 3 * NODES].reshape(elements, NODES, 3, NODES, 3)
        weight = rho * self.weight
        along = np.einsum("eqja,eqa,eq->eqj", self.gradient, _SHAPE @ u, weight, optimize=True)
        transport = mu * self.stiffness + _SHAPE.T @ along
        if newton:
            slope = np.einsum("eqib,eia,eq->qeab", self.gradient, u, weight, optimize=True)
            full = (_PAIRS @ slope.reshape(NODES, -1)).reshape(NODES, NODES, elements, 3, 3)
            velocity[:] = full.transpose(2, 0, 3, 1, 4)
        for a in range(3):
            velocity[:, :, a, :, a] += transport
        divergence = self.divergence.reshape(elements, 3 * NODES, VERTICES)
        out[:, : 3 * NODES, 3 * NODES :] = divergence
        out[:, 3 * NODES :, : 3 * NODES] = divergence.swapaxes(1, 2)
        return out
