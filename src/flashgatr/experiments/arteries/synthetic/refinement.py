"""Surfaces of any resolution, up to millions of nodes: for tests and benchmarks.

A synthetic vessel is refined on its tube: the new nodes lie on the round wall, and the nodes of the
coarse mesh remain (up to rounding, if the centreline lies in a plane). Any other mesh is
subdivided: every triangle becomes four, and the new nodes lie in the middle of its edges.
N nodes, M triangles, K inlet nodes.
"""

from __future__ import annotations

import numpy as np

from ..data.mesh import Array
from .grid import MeshSize, section, section_surface
from .tube import Tube


def tube_surface(
    tube: Tube, mesh: MeshSize, *, refined: int = 1, even: bool = False
) -> tuple[Array, Array, Array]:
    """The surface of a tube: positions (N, 3) float64, triangles (M, 3) and inlet nodes (K,).

    It is that of `sweep(tube, mesh)` with every edge divided into `refined` edges, computed without
    the nodes in the interior. `even` spaces the stations evenly along the tube; otherwise they are
    denser in and behind stenoses.
    """
    core, ring, axial = (refined * size for size in mesh)
    if min(core, ring, axial) < 1:
        raise ValueError(
            "mesh must be three positive numbers (core, ring, axial) and refined at least 1, got "
            f"{mesh} and {refined}"
        )
    cross = section(core, ring)
    s = np.linspace(*tube.span, 2 * axial + 1) if even else tube.stations(axial)
    used, face, inlet = section_surface(cross, len(s))
    wall = tube.position(s, cross.node[cross.free :])
    first, last = tube.position(s, cross.node, slice(None, None, len(s) - 1))
    position = np.concatenate([first, wall[1:-1].reshape(-1, 3), last])
    assert len(position) == len(used)
    return position, face, inlet


def subdivided(position: Array, face: Array, times: int = 1) -> tuple[Array, Array]:
    """A mesh with 4**times as many triangles. The nodes of the mesh keep their numbers."""
    for _ in range(times):
        count = len(position)
        low, high = (f(face, np.roll(face, -1, axis=1)) for f in (np.minimum, np.maximum))
        edge, number = np.unique(low * count + high, return_inverse=True)
        middle = count + number.reshape(-1, 3)  # of the edge that begins at each corner
        a, b, c = face.T
        ab, bc, ca = middle.T
        corners = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        face = np.concatenate([np.stack(x, axis=1) for x in corners])
        halves = (position[edge // count] + position[edge % count]) / 2
        position = np.concatenate([position, halves.astype(position.dtype)])
    return position, face
