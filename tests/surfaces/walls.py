"""A bent tube with unevenly spread nodes, as a surface for tests."""

import numpy as np

from flashgatr.experiments.baselines.surfaces.levels import Hierarchy

POOLING = Hierarchy((0.3, 0.3), (0.3, 0.6), most=16, convolves=False)
CONVOLVING = Hierarchy((1.0, 0.4, 0.2), (0.25, 0.4, 0.9), most=64, convolves=True)


def wall(seed, nodes=150):
    """Positions and outward unit normals (N, 3) and distances (N,) along the tube, float64."""
    draw = np.random.default_rng(seed)
    along, around = draw.uniform(0, 2, nodes), draw.uniform(0, 2 * np.pi, nodes)
    across = np.stack([0 * along, np.cos(around), np.sin(around)], axis=-1)
    radius = 0.3 + 0.05 * np.sin(3 * along)
    slope = 0.15 * np.cos(3 * along)
    normal = across - slope[:, None] * np.array([1.0, 0, 0])
    position = radius[:, None] * across
    position += np.stack([along, 0.1 * along**2, 0 * along], axis=-1)
    return position, normal / np.linalg.norm(normal, axis=1, keepdims=True), along


def motion(seed, mirror=False):
    """A matrix of O(3), with determinant -1 if `mirror`, and a shift."""
    draw = np.random.default_rng(seed)
    q, _ = np.linalg.qr(draw.normal(size=(3, 3)))
    return q * np.linalg.det(q) * (-1 if mirror else 1), draw.normal(size=3)
