"""Point sets, most of them so regular that many distances are equal; motions of them."""

import math

import numpy as np
import torch

from flashgatr.experiments.arteries.synthetic import tube


def cloud():
    return torch.randn(400, 3, generator=torch.Generator().manual_seed(0)).double()


def regular_tube(around=16, rings=30):
    angle = 2 * math.pi * torch.arange(around).double() / around
    circle = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=-1)
    along = torch.arange(rings).double()[:, None, None] * torch.tensor([0.0, 0, 0.3]).double()
    return (circle + along).reshape(-1, 3)


def grid(*sizes):
    axes = [torch.arange(n).double() for n in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3)


def icosphere(times=3):
    """The vertices of an icosahedron whose faces are divided into four, `times` times."""
    golden = (1 + math.sqrt(5)) / 2
    signs = [(a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    start = [p for a, b in signs for p in ((0, a, b), (a, b, 0), (b, 0, a))]
    points = np.array(start) / math.hypot(1, golden)
    edge = 2 / math.hypot(1, golden)
    for _ in range(times):
        away = np.linalg.norm(points[:, None] - points, axis=-1)
        i, j = np.nonzero(np.triu((away > 0) & (away < 1.3 * edge)))
        middle = points[i] + points[j]
        points = np.concatenate([points, middle / np.linalg.norm(middle, axis=1, keepdims=True)])
        edge /= 2
    return torch.from_numpy(points)


def coincident():
    return torch.ones(50, 3).double()


def collinear():
    return torch.arange(60).double()[:, None] * torch.tensor([1.0, 2.0, -1.0]).double()


def vessel(seed=0, around=12, layers=20):
    drawn = tube.draw(np.random.default_rng(seed), planar=False)
    angle = 2 * np.pi * np.arange(around) / around
    disc = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    wall = drawn.position(drawn.stations(layers), disc).reshape(-1, 3)
    return torch.from_numpy(np.ascontiguousarray(wall))


SHAPES = {
    "cloud": cloud(),
    "regular tube": regular_tube(),
    "cube grid": grid(7, 7, 7),
    "planar grid": grid(18, 18, 1),
    "icosphere": icosphere(),
    "coincident": coincident(),
    "collinear": collinear(),
    "vessel 0": vessel(0),
    "vessel 1": vessel(1),
}


def moved(points, seeds, dtype):
    """Copies (seeds, N, 3) under random rotations or mirrors, and translations."""
    copies = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        orthogonal, _ = torch.linalg.qr(numbers[:3])
        copies.append(points.to(dtype).double() @ orthogonal + points.std() * numbers[3])
    return torch.stack(copies).to(dtype)
