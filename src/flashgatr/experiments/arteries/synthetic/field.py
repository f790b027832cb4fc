"""A flow as a function: velocity, pressure and wall stress at any points of its elements.

A point is an element and a position in the element's reference cube [-1, 1]³. Velocity, position
and distance from the inlet are blended with the 27 quadratic shape functions, the pressure with the
8 linear ones. These are the functions that the solver computed: nothing is fitted.

The gradient of the velocity jumps between elements, so labels average it, and the normal, at the
nodes of the wall (`wall_gradient`). On the wall, both are blended between these nodes with the
shape functions, and the stress is the labels' formula of them: continuous, tangential to the
normal, and equal to the label at every node.

Legend: T points, P planes of nodes, n nodes and w wall nodes of a plane, e elements of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..data.mesh import Array
from .elements import ON_WALL, linear_shape, shape
from .flow import Flow, shear_stress, wall_gradient

TILE = 16_384  # points at a time: arrays of 30 MB


class Places(NamedTuple):
    """Points in elements. Element k·e + j is number j of layer k; on the wall, the first reference
    coordinate is 1.
    """

    element: Array  # (T,)
    reference: Array  # (T, 3)

    def tiles(self) -> Iterator[tuple[slice, Places]]:
        """Parts of at most TILE points, and the rows they are."""
        for start in range(0, len(self.element), TILE):
            rows = slice(start, start + TILE)
            yield rows, Places(self.element[rows], self.reference[rows])


class LumenValues(NamedTuple):
    position: Array  # (T, 3) cm
    distance: Array  # (T,) cm from the inlet along the centreline
    velocity: Array  # (T, 3) cm/s
    pressure: Array  # (T,) dyn/cm², relative to the outlet


class WallValues(NamedTuple):
    position: Array  # (T, 3) cm
    distance: Array  # (T,) cm from the inlet along the centreline
    normal: Array  # (T, 3) outward
    stress: Array  # (T, 3) dyn/cm²
    pressure: Array  # (T,) dyn/cm², relative to the outlet


class Field:
    """The functions of a flow."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.grid = flow, flow.grid
        grid, cross = flow.grid, flow.grid.section
        self.per_layer = len(cross.quad)
        self.elements = self.per_layer * grid.layers
        self.is_outer = np.zeros(self.per_layer, bool)
        self.is_outer[cross.outer] = True
        distance = np.broadcast_to(grid.distance[:, None, None], (*grid.node.shape[:2], 1))
        inner = np.concatenate([grid.node, distance, flow.velocity], axis=2)
        self._inner = inner.reshape(-1, 7)
        slope, outward = wall_gradient(flow)
        wall = [inner[:, cross.free :, :4], outward, slope.reshape(*slope.shape[:2], 9)]
        self._wall = np.concatenate(wall, axis=2).reshape(-1, 16)

    def nodes(self, element: Array) -> Array:
        """The numbers (T, 27) of the elements' nodes, plane by plane."""
        layer, number = np.divmod(element, self.per_layer)
        first = 2 * layer * len(self.grid.section.node)
        return np.asarray(self.grid.hexahedra[number] + first[:, None])

    def lumen(self, places: Places) -> LumenValues:
        """Position, distance, velocity and pressure at points of the lumen or the wall."""
        found = np.empty((len(places.element), 7))
        for rows, x in places.tiles():
            found[rows] = _blend(shape(x.reference)[0], self._inner[self.nodes(x.element)])
        return LumenValues(found[:, :3], found[:, 3], found[:, 4:], self.pressure(places))

    def wall(self, places: Places) -> WallValues:
        """Position, distance, normal, stress and pressure at points of the wall."""
        cross = self.grid.section
        off = ~self.is_outer[places.element % self.per_layer] | (places.reference[:, 0] != 1)
        if off.any():
            raise ValueError(
                f"{int(off.sum())} points are not on the wall; expected elements of the outer ring "
                "and 1 as the first reference coordinate"
            )
        found = np.empty((len(places.element), 16))
        for rows, x in places.tiles():
            plane, number = np.divmod(self.nodes(x.element)[:, ON_WALL], len(cross.node))
            node = plane * cross.wall + number - cross.free
            found[rows] = _blend(shape(x.reference)[0][:, ON_WALL], self._wall[node])
        normal = found[:, 4:7] / np.linalg.norm(found[:, 4:7], axis=1, keepdims=True)
        slope = found[:, 7:].reshape(-1, 3, 3)
        stress = shear_stress(slope, normal, self.flow.fluid.viscosity)
        return WallValues(found[:, :3], found[:, 3], normal, stress, self.pressure(places))

    def pressure(self, places: Places) -> Array:
        """The pressure (T,) relative to the outlet."""
        corner = self.grid.section.quad_vertex.reshape(-1, 4)
        values, found = self.flow.pressure, np.empty(len(places.element))
        for rows, x in places.tiles():
            layer, number = (y[:, None] for y in np.divmod(x.element, self.per_layer))
            vertex = corner[number[:, 0]]
            at = np.concatenate([values[layer, vertex], values[layer + 1, vertex]], axis=1)
            found[rows] = np.einsum("ti,ti->t", linear_shape(x.reference), at)
        return found

    def map(self, places: Places) -> tuple[Array, Array]:
        """Positions (T, 3), and their derivatives ∂x_a/∂ξ_b (T, 3, 3) by the reference
        coordinates.
        """
        position = np.empty((len(places.element), 3))
        jacobian = np.empty((len(places.element), 3, 3))
        for rows, x in places.tiles():
            value, slope = shape(x.reference)
            node = self._inner[self.nodes(x.element), :3]
            position[rows] = _blend(value, node)
            jacobian[rows] = node.swapaxes(1, 2) @ slope
        return position, jacobian


def _blend(weight: Array, values: Array) -> Array:
    """(T, c) from shape functions (T, i) and nodal values (T, i, c)."""
    return np.asarray((weight[:, None] @ values)[:, 0])
