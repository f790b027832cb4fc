"""The elements that hold given positions, and the places in them: the inverse of the map.

A search starts in an element of the nearest node. Newton's method inverts the element's map. If
the result lies outside of the reference cube, the search goes on in the next layer or, within the
layer, in the neighbour behind the side that it is farthest beyond. A search that would leave
through the surface, or does not converge, starts again from another element there or from the next
nearest node; a position that none of them finds is outside of the lumen.
"""

from __future__ import annotations

import numpy as np

from ..data.mesh import Array
from .field import Field, Places
from .grid import Grid

STARTS = 4  # nearest nodes
HOPS = 24  # elements visited in one search
STEPS = 8  # of Newton's method in one element
FAR = 2.0  # the map of an element is not followed farther than this
CONVERGED = 1e-12  # largest change of a reference coordinate in the last step
SLACK = 1e-9  # how far outside of the cube a position may lie, for rounding


def locate(field: Field, position: Array) -> tuple[Places, Array]:
    """The places of positions (T, 3), and which positions lie in the lumen (T,) bool.

    Places of positions outside of the lumen have no meaning.
    """
    from scipy.spatial import cKDTree

    position = np.asarray(position, dtype=np.float64).reshape(-1, 3)
    nodes, neighbours = field.grid.node.reshape(-1, 3), _neighbours(field.grid)
    start = np.zeros((2, len(nodes)), np.int64)  # two elements of each node, the last and the first
    every = np.arange(field.elements)
    start[0, field.nodes(every)] = every[:, None]
    start[1, field.nodes(every[::-1])] = every[::-1, None]
    near = np.concatenate(start[:, cKDTree(nodes).query(position, STARTS)[1]], axis=1)
    found = Places(near[:, 0].copy(), np.zeros((len(position), 3)))
    inside = np.zeros(len(position), bool)
    for column in near.T:
        todo = np.flatnonzero(~inside)
        places, fits = _search(field, neighbours, column[todo], position[todo])
        for all_of, part in zip(found, places, strict=True):
            all_of[todo[fits]] = part[fits]
        inside[todo] = fits
    return found, inside


def _search(
    field: Field, neighbours: Array, element: Array, position: Array
) -> tuple[Places, Array]:
    """Places from these elements (T,) on, and which of the searches ended in one."""
    places = Places(element.copy(), np.zeros((len(element), 3)))
    fits, active = np.zeros(len(element), bool), np.arange(len(element))
    for _ in range(HOPS):
        reference, converged = _inverse(field, places.element[active], position[active])
        places.reference[active] = np.clip(reference, -1, 1)
        excess = np.stack([-1 - reference, reference - 1], axis=2).reshape(-1, 6)  # of the sides
        within = excess.max(axis=1) <= SLACK
        fits[active[within & converged]] = True
        behind = neighbours[places.element[active]]
        # Layers first: beyond its own layer, the map of an element is far from its neighbours'.
        excess[:, 4:] += np.where(excess[:, 4:] > SLACK, FAR, 0)
        side = np.where(behind >= 0, excess, -1).argmax(axis=1)[:, None]
        go_on = ~within & (np.take_along_axis(excess, side, 1)[:, 0] > 0)
        active, following = active[go_on], np.take_along_axis(behind, side, 1)[go_on, 0]
        if not len(active):
            break
        places.element[active] = following
    return places, fits


def _inverse(field: Field, element: Array, position: Array) -> tuple[Array, Array]:
    """Reference coordinates (T, 3) of positions in these elements, at most FAR, and whether
    Newton's method converged (T,) bool.
    """
    reference, size = np.zeros((len(element), 3)), np.zeros(len(element))
    for _ in range(STEPS):
        place, jacobian = field.map(Places(element, reference))
        change = np.linalg.solve(jacobian, (position - place)[..., None])[..., 0]
        reference = np.clip(reference + change, -FAR, FAR)
        size = np.abs(change).max(axis=1)
        if not (size > CONVERGED).any():
            break
    return reference, size <= CONVERGED


def _neighbours(grid: Grid) -> Array:
    """(elements, 6) the element behind each side, or -1: sides -1 and 1 of each coordinate."""
    quad = grid.section.quad
    # Two elements of a cross-section share the node in the middle of a side.
    middle = np.stack([quad[:, 0, 1], quad[:, 2, 1], quad[:, 1, 0], quad[:, 1, 2]], axis=1)
    beside = np.full(middle.shape, -1)
    order = np.argsort(middle, axis=None, kind="stable")
    sorted_ = middle.ravel()[order]
    pair = np.flatnonzero(sorted_[1:] == sorted_[:-1])
    first, second = order[pair], order[pair + 1]
    beside.ravel()[first], beside.ravel()[second] = second // 4, first // 4
    layer = np.arange(grid.layers)[:, None, None] * len(quad)
    across = np.where(beside >= 0, beside + layer, -1).reshape(-1, 4)
    every = np.arange(len(quad) * grid.layers)
    before, after = every - len(quad), every + len(quad)
    after[after >= len(every)] = -1
    return np.column_stack([across, np.maximum(before, -1), after])
