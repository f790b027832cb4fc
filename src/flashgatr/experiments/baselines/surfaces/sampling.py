"""Which nodes of a surface to keep, and which lie near which: numbers of nodes, from positions.

Everything is computed in float64, and the result depends on distances alone: moving, turning or
mirroring the nodes changes nothing, and renumbering them renumbers the result. Only among equal
distances does the lowest number win.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
_SPARE = 4
"""`nearest` looks at this many more nodes: on a regular grid, several are equally near."""


def farthest_points(position: Array, count: int) -> Array:
    """`count` nodes of (N, 3), in increasing order, by farthest-point sampling.

    The first node is the one farthest from the mean of all; each further one is the node farthest
    from those already chosen.

    >>> farthest_points(np.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [9, 0, 0]]), 2)
    array([0, 3], dtype=int32)
    """
    if not 1 <= count <= len(position):
        raise ValueError(f"cannot choose {count} of {len(position)} nodes")
    centred = np.asarray(position, np.float64)
    centred = centred - centred.mean(axis=0)
    axes = np.ascontiguousarray(centred.T)
    chosen = np.empty(count, np.int32)
    squared = np.full(len(position), np.inf)
    found, term = np.empty_like(squared), np.empty_like(squared)
    number = int(np.square(axes).sum(axis=0).argmax())
    for k in range(count):
        chosen[k] = number
        found.fill(0)
        for axis in axes:
            np.subtract(axis, axis[number], out=term)
            np.multiply(term, term, out=term)
            np.add(found, term, out=found)
        np.minimum(squared, found, out=squared)
        squared[number] = -1  # never again, also if nodes coincide
        number = int(squared.argmax())
    return np.sort(chosen)


def within(position: Array, centres: Array, radius: float, most: int) -> Array:
    """The at most `most` nearest nodes of (N, 3) within `radius` of each centre (M, 3).

    Returns (M, K), nearest first, -1 where a list ends. K is the length of the longest list.
    """
    from scipy.spatial import cKDTree

    position, centres = (np.asarray(x, np.float64) for x in (position, centres))
    pairs = cKDTree(centres).sparse_distance_matrix(
        cKDTree(position), radius, output_type="ndarray"
    )
    order = np.lexsort((pairs["j"], pairs["v"], pairs["i"]))
    centre, node = pairs["i"][order], pairs["j"][order]
    counts = np.bincount(centre, minlength=len(centres))
    place = np.arange(len(centre)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = min(int(counts.max(initial=0)), most)
    lists = np.full((len(centres), width), -1, np.int32)
    kept = place < width
    lists[centre[kept], place[kept]] = node[kept]
    return lists


def nearest(position: Array, targets: Array, count: int) -> Array:
    """The `count` targets (M, 3) nearest to each node of (N, 3), nearest first: (N, count), -1 if
    there are fewer targets.
    """
    from scipy.spatial import cKDTree

    position, targets = (np.asarray(x, np.float64) for x in (position, targets))
    looked = min(count + _SPARE, len(targets))
    distance, number = cKDTree(targets).query(position, k=range(1, looked + 1))
    order = np.lexsort((number, distance), axis=-1)[:, :count]
    found = np.full((len(position), count), -1, np.int32)
    found[:, : min(count, looked)] = np.take_along_axis(number, order, axis=1)
    return found


def members(parent: Array, count: int) -> Array:
    """The rows whose parent (N,) is 0, 1, ..., count - 1: (count, K), -1 where a list ends."""
    order = np.argsort(parent, kind="stable")
    counts = np.bincount(parent, minlength=count)
    place = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
    lists = np.full((count, int(counts.max(initial=0))), -1, np.int32)
    lists[parent[order], place] = order
    return lists
