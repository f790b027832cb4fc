"""Hexahedra in a tube: an O-grid (a square core with rings around it), swept along the tube.

mesh = (core, ring, axial): a cross-section has core × core elements in the core and 4·core × ring
around it; the tube has `axial` layers of them. Elements have 27 nodes (quadratic velocity and
geometry) and 8 vertices (linear pressure). In a cross-section, the nodes on the wall come last;
2·axial + 1 planes of nodes follow one another.

Legend: n nodes and m vertices of a cross-section, w = 8·core nodes on the wall, e elements of a
layer, P planes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ..data.mesh import Array
from .tube import Tube

MeshSize: TypeAlias = tuple[int, int, int]
CORE = 0.55  # half width of the core
ROUNDING = 0.12  # how far the corners of the core are pulled in


@dataclass(frozen=True)
class CrossSection:
    """The O-grid of the unit disc."""

    node: Array  # (n, 2) positions
    vertex: Array  # (m,) the nodes that are vertices
    quad: Array  # (e, 3, 3) nodes of the elements
    quad_vertex: Array  # (e, 2, 2) numbers of their vertices
    wall: int  # w; nodes n-w … n-1 lie on the wall, sorted by angle

    @property
    def free(self) -> int:
        """The number of nodes that are not on the wall; they come first."""
        return len(self.node) - self.wall

    @property
    def outer(self) -> Array:
        """The elements on the wall, which is their last side of the first coordinate."""
        return np.flatnonzero((self.quad[:, 2] >= self.free).all(axis=1))


def section(core: int, ring: int) -> CrossSection:
    side = 2 * core + 1
    a = np.tan(np.linspace(-1, 1, side) * np.pi / 4)
    x, y = np.meshgrid(a, a, indexing="ij")
    inner = CORE * np.stack([x, y], axis=-1) * (1 - ROUNDING * x**2 * y**2)[..., None]
    number = np.arange(side * side).reshape(side, side)
    # Once around the core, counter-clockwise, from the corner at -45°.
    around = np.concatenate([number[-1, :-1], number[:0:-1, -1], number[0, :0:-1], number[:-1, 0]])
    angle = -np.pi / 4 + 2 * np.pi * np.arange(len(around)) / len(around)
    rim = np.column_stack([np.cos(angle), np.sin(angle)])
    inner = inner.reshape(-1, 2)
    t = np.arange(1, 2 * ring + 1)[:, None, None] / (2 * ring)
    outer = (1 - t) * inner[around] + t * rim
    rings = np.concatenate(
        [around[None], side * side + np.arange(outer[..., 0].size).reshape(2 * ring, -1)]
    )
    cores = [number[2 * i : 2 * i + 3, 2 * j : 2 * j + 3] for i in range(core) for j in range(core)]
    closed = np.concatenate([rings, rings[:, :1]], axis=1)
    layers = [
        closed[2 * i : 2 * i + 3, 2 * j : 2 * j + 3] for i in range(ring) for j in range(4 * core)
    ]
    quad = np.stack(cores + layers)
    vertex, inverse = np.unique(quad[:, ::2, ::2], return_inverse=True)
    return CrossSection(
        np.concatenate([inner, outer.reshape(-1, 2)]),
        vertex,
        quad,
        inverse.reshape(-1, 2, 2),
        len(around),
    )


@dataclass(frozen=True)
class Grid:
    """The hexahedra of a tube."""

    section: CrossSection
    s: Array  # (P,) arc lengths of the planes
    node: Array  # (P, n, 3)

    @property
    def layers(self) -> int:
        return len(self.s) // 2

    @property
    def distance(self) -> Array:
        """(P,) distances of the planes from the inlet along the centreline."""
        return np.asarray(self.s - self.s[0])

    @cached_property
    def hexahedra(self) -> Array:
        """(e, 27) nodes of the elements of a layer, relative to its first plane, plane by plane."""
        n = len(self.section.node)
        return np.concatenate([self.section.quad.reshape(-1, 9) + n * i for i in range(3)], axis=1)

    def element_nodes(self, layer: int) -> Array:
        """The positions (e, 27, 3) of the nodes of a layer's elements."""
        planes = self.node[2 * layer : 2 * layer + 3]
        return np.asarray(planes.reshape(-1, 3)[self.hexahedra])


def sweep(tube: Tube, mesh: MeshSize) -> Grid:
    core, ring, axial = mesh
    if min(mesh) < 1:
        raise ValueError(f"mesh must be three positive numbers (core, ring, axial), got {mesh}")
    cross = section(core, ring)
    s = tube.stations(axial)
    return Grid(cross, s, tube.position(s, cross.node))


def surface(grid: Grid) -> tuple[Array, Array, Array]:
    """The closed surface: its nodes (N,), outward triangles (M, 3), and the inlet nodes with the
    rim.
    """
    return section_surface(grid.section, len(grid.s))


def section_surface(cross: CrossSection, planes: int) -> tuple[Array, Array, Array]:
    """The same for a cross-section that is swept through this number of planes."""
    n = len(cross.node)
    ring = np.append(np.arange(cross.free, n), cross.free)
    wall = np.arange(planes)[:, None] * n + ring
    inlet, outlet = cross.quad.transpose(0, 2, 1), cross.quad + n * (planes - 1)
    face = np.concatenate([_triangles(x) for x in (wall.T[None], inlet, outlet)])
    used, inverse = np.unique(face, return_inverse=True)
    return used, inverse.reshape(-1, 3), np.flatnonzero(used < n)


def _triangles(patch: Array) -> Array:
    """Split patches (k, a, b) of nodes into triangles that turn from the first axis to the second.

    All diagonals run in the same direction. With alternating diagonals, nodes have four or eight
    triangles, and the distances of the two heat methods differ more.
    """
    a, b, c, d = (
        x.ravel()
        for x in (patch[:, :-1, :-1], patch[:, 1:, :-1], patch[:, 1:, 1:], patch[:, :-1, 1:])
    )
    return np.concatenate([np.stack((a, b, c), axis=1), np.stack((a, c, d), axis=1)])


def interpolate(coarse: Grid, fine: Grid, values: Array) -> Array:
    """Interpolate values (P, n, …) linearly from the nodes of one grid to another of the same
    tube.
    """
    from scipy.interpolate import LinearNDInterpolator, interp1d

    across = LinearNDInterpolator(coarse.section.node, values.swapaxes(0, 1), fill_value=0)
    found = np.asarray(across(fine.section.node))  # (n', P, …)
    return np.asarray(interp1d(coarse.s, found, axis=1)(fine.s)).swapaxes(0, 1)
