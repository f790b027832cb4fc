"""Vessel walls made up for tests: bent tubes with a stress that turns with them."""

import numpy as np

from flashgatr.experiments.arteries.data.mesh import Mesh
from flashgatr.experiments.arteries.data.sets import DataFolder


def tube(index, nodes=60, faces=False):
    """A bent tube; its stress is along the flow and grows where the tube is narrow."""
    draw = np.random.default_rng(index)
    rings = nodes // 6
    along, around = np.meshgrid(np.linspace(0, 3, rings), np.arange(6) / 6 * 2 * np.pi)
    along, around = along.T.ravel(), around.T.ravel()
    radius = 0.15 + 0.04 * np.sin(2 * along + draw.uniform(0, 6))
    bend = draw.uniform(-0.3, 0.3)
    normal = np.stack([0 * along, np.cos(around), np.sin(around)], axis=-1)
    position = radius[:, None] * normal
    position += np.stack([along, bend * along**2, 0 * along], axis=-1)
    flow = np.stack([1 + 0 * along, 2 * bend * along, 0 * along], axis=-1)
    stress = 0.3 / radius[:, None] ** 3 * flow / np.linalg.norm(flow, axis=-1, keepdims=True)
    first = np.arange(6 * (rings - 1))
    beside = first // 6 * 6 + (first + 1) % 6
    face = np.concatenate(
        [np.stack([first, beside, first + 6], -1), np.stack([beside, beside + 6, first + 6], -1)]
    )
    return Mesh(
        name=f"sample_{index:04d}",
        index=index,
        position=position.astype(np.float32),
        normal=normal.astype(np.float32),
        geodesic=along.astype(np.float32),
        mask=(along > 0.3) & (along < 2.7),
        inlet_diameter=0.3,
        wss=stress.astype(np.float32),
        face=face if faces else None,
    )


def walls(folder, split, *, limit=None, division="original"):
    """Stands in for `data.load`: a few tubes of unequal size per split."""
    first, count = dict(train=(0, 6), val=(100, 3), test=(200, 4))[split]
    return [tube(k, 60 + 6 * (k % 4), faces=split == "test") for k in range(first, first + count)][
        :limit
    ]


def chosen(folder, split, **options):
    """Stands in for `data.choose`."""
    return DataFolder({}, None, {}), [mesh.index for mesh in walls(folder, split, **options)]
