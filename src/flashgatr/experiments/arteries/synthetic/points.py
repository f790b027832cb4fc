"""Random points of a flow's lumen, uniform in volume, and of its wall, uniform in area.

An element is drawn with a probability proportional to a bound of its density, the determinant of
the Jacobian (on the wall: the length of the cross product of two tangents). A uniform point of the
reference cube is then accepted with the probability density / bound. The determinant and the cross
product are polynomials of the reference coordinates, and no polynomial exceeds the largest of its
Bernstein coefficients. This is the bound.

Legend: T points, m elements, q points per element, d degree in each coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import TypeAlias

import numpy as np

from ..data.mesh import Array
from .elements import FACE_WEIGHTS, GAUSS_LINE, GAUSS_WEIGHTS, cube, square
from .field import Field, Places

CANDIDATES = 65_536  # drawn at a time

Vector: TypeAlias = Callable[[Places], Array]
"""The polynomial (T, c) whose length is the density of points."""


class RandomPoints:
    """Points whose distance from the inlet along the centreline lies in `span` (cm; default: all).

    `volume` (cm³) and `area` (cm²) are those of this part of the lumen and of its wall.
    """

    def __init__(self, field: Field, span: tuple[float, float] | None = None) -> None:
        distance = field.grid.distance
        low, high = span or (distance[0], distance[-1])
        if not distance[0] <= low < high <= distance[-1]:
            raise ValueError(
                f"span must increase within 0 and {distance[-1]:.6g} cm, got {low:.6g} and "
                f"{high:.6g}"
            )
        ends = np.stack([_cut(distance, x) for x in (low, high)], axis=1)
        layer, number = np.divmod(np.arange(field.elements), field.per_layer)
        within = ends[layer, 0] < ends[layer, 1]
        inner, outer = within.nonzero()[0], (within & field.is_outer[number]).nonzero()[0]
        self._lumen = _Region(inner, ends[layer[inner]], _volume(field), 5, cube)
        self._wall = _Region(outer, ends[layer[outer]], _area(field), 3, _side)
        self.volume, self.area = self._lumen.measure(), self._wall.measure()

    def lumen(self, count: int, random: np.random.Generator) -> Places:
        """`count` points, uniform in volume. With the same seed, fewer points are the first of
        them.
        """
        return self._lumen.draw(count, random)

    def wall(self, count: int, random: np.random.Generator) -> Places:
        """`count` points, uniform in area. With the same seed, fewer points are the first of
        them.
        """
        return self._wall.draw(count, random)


class _Region:
    """Elements, or their sides on the wall, between `ends` (m, 2) of the third coordinate."""

    def __init__(
        self,
        element: Array,
        ends: Array,
        vector: Vector,
        degree: int,
        grid: Callable[[Array], Array],
    ) -> None:
        self.element, self.vector, self.grid = element, vector, grid
        self.start, self.length = ends[:, 0], ends[:, 1] - ends[:, 0]
        points = grid(np.linspace(-1, 1, degree + 1))
        self.bound = _bound(self._at(points, -np.ones(len(element)), 2.0), degree)
        self.on_wall = bool((points[:, 0] == 1).all())

    def _at(self, points: Array, start: Array, length: Array | float) -> Array:
        """The polynomial (m, q, c) at the same points (q, 3) of each element, with the third
        coordinate mapped to the interval from `start`.
        """
        reference = np.tile(points, (len(self.element), 1, 1))
        along = (reference[..., 2] + 1) / 2 * np.broadcast_to(length, len(start))[:, None]
        reference[..., 2] = start[:, None] + along
        places = Places(np.repeat(self.element, len(points)), reference.reshape(-1, 3))
        return self.vector(places).reshape(*reference.shape[:2], -1)

    def measure(self) -> float:
        """The volume or the area, by Gauss integration."""
        density = np.linalg.norm(self._at(self.grid(GAUSS_LINE), self.start, self.length), axis=2)
        weights = FACE_WEIGHTS if self.on_wall else GAUSS_WEIGHTS
        return float(np.einsum("mq,q,m->", density, weights, self.length / 2))

    def draw(self, count: int, random: np.random.Generator) -> Places:
        if count < 0:
            raise ValueError(f"expected a number of points, got {count}")
        share = np.cumsum(self.bound * self.length)
        parts, missing = [Places(self.element[:0], np.empty((0, 3)))], count
        while missing > 0:
            pick = np.searchsorted(share, share[-1] * random.random(CANDIDATES), side="right")
            reference = random.uniform(-1, 1, (CANDIDATES, 3))
            reference[:, 2] = self.start[pick] + self.length[pick] * (reference[:, 2] + 1) / 2
            if self.on_wall:
                reference[:, 0] = 1
            density = np.linalg.norm(self.vector(Places(self.element[pick], reference)), axis=1)
            taken = np.flatnonzero(random.random(CANDIDATES) * self.bound[pick] < density)
            taken = taken[:missing]
            parts.append(Places(self.element[pick[taken]], reference[taken]))
            missing -= len(taken)
        return Places(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def _volume(field: Field) -> Vector:
    return lambda places: np.linalg.det(field.map(places)[1])[:, None]


def _area(field: Field) -> Vector:
    def vector(places: Places) -> Array:
        _, tangent = field.map(places)
        return np.cross(tangent[:, :, 1], tangent[:, :, 2])

    return vector


def _side(line: Array) -> Array:
    """The points (d², 3) of a grid on the side of an element that lies on the wall."""
    return np.insert(square(line), 0, 1.0, axis=1)


def _cut(distance: Array, at: float) -> Array:
    """The third reference coordinate of each layer (layers,) at a distance; -1 before the layer,
    1 behind it.
    """
    first, middle, last = distance[:-2:2], distance[1::2], distance[2::2]
    # distance = middle + b z + a z², increasing
    a, b = (first + last) / 2 - middle, (last - first) / 2
    beyond = at - middle
    inside = (first < at) & (at < last)
    root = np.sqrt(np.where(inside, b * b + 4 * a * beyond, 1))
    return np.where(inside, 2 * beyond / (b + root), np.where(at <= first, -1.0, 1.0))


def _bound(values: Array, degree: int) -> Array:
    """The largest length (m,) of the Bernstein coefficients of polynomials, given on a regular grid
    (m, q, c).
    """
    t = np.linspace(0, 1, degree + 1)[:, None]
    k = np.arange(degree + 1)
    choose = np.array([comb(degree, x) for x in k])
    inverse = np.linalg.inv(choose * t**k * (1 - t) ** (degree - k))
    axes = round(np.log(values.shape[1]) / np.log(degree + 1))
    found = values.reshape(len(values), *[degree + 1] * axes, -1)
    for axis in range(1, axes + 1):
        found = np.moveaxis(np.tensordot(inverse, found, (1, axis)), 0, axis)
    return np.asarray(np.linalg.norm(found, axis=-1).reshape(len(values), -1).max(axis=1))
