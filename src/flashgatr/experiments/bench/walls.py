"""The artery networks that use neighbours, on random walls with the density of the published ones.

A wall is a tube. Its nodes lie on a spiral that turns by the golden angle from node to node, which
spaces them almost evenly, and are moved a little at random, so that no two distances are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..arteries import EXPERIMENT, LABEL_SCALE
from ..arteries.batches import PackedBatch, pack
from ..arteries.data.levels import with_levels
from ..arteries.data.mesh import Mesh
from ..arteries.inference import predicted
from ..arteries.models import ON_SURFACES
from . import workload
from .workload import Make, Work

MODELS = ("segnn", *ON_SURFACES)
RADIUS, EDGE, JITTER = 0.16, 0.032, 0.1
"""Of the tube and between nodes, in cm, about as in the published walls; and how far nodes are
moved, as a share of an edge."""


class OnWalls(nn.Module):
    """An artery model that takes a batch of whole meshes as one argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedBatch) -> Tensor:
        return predicted(self.model, batch)


def works(device: torch.device) -> dict[str, Make]:
    """Functions that build the networks, by model."""
    return {model: partial(work, model, {}, device) for model in MODELS}


def work(model: str, options: dict[str, Any], device: torch.device) -> Work:
    """A model of the artery experiment on walls of equally many nodes.

    The scales and neighbours of networks on surfaces are computed before the step, as in training.
    SEGNN finds its neighbours in every step, and takes walls of one size without packing them.
    """
    net = EXPERIMENT.build(model, options).to(device)
    hierarchy = getattr(net, "hierarchy", None)

    def draw(items: tuple[int, ...]) -> tuple[tuple[Any, ...], Tensor]:
        meshes = random_walls(items)
        if hierarchy is not None:
            batch = pack(with_levels(meshes, hierarchy), device).batch(range(len(meshes)))
            return (batch,), batch.target
        batch = pack(meshes, device).batch(range(len(meshes)))
        position, normal, geodesic, target = (x.unflatten(0, items) for x in batch[:4])
        return (position, normal, geodesic), target

    return Work(
        net if hierarchy is None else OnWalls(net), draw, device, workload.usual_precision(device)
    )


def random_walls(items: Sequence[int]) -> list[Mesh]:
    """As many meshes, each with as many nodes, as `items` = (meshes, nodes) says."""
    meshes, nodes = items
    random = np.random.default_rng(0)
    return [_wall(random, number, nodes) for number in range(meshes)]


def _wall(random: np.random.Generator, number: int, nodes: int) -> Mesh:
    length = nodes * math.sqrt(0.75) * EDGE**2 / (2 * math.pi * RADIUS)
    place = np.arange(nodes)
    along = length * (place + 0.5) / nodes
    angle = random.uniform(0, 2 * math.pi) + place * math.pi * (3 - math.sqrt(5))
    normal = np.stack([0 * along, np.cos(angle), np.sin(angle)], axis=-1)
    position = RADIUS * normal
    position[:, 0] += along
    position += JITTER * EDGE * random.normal(size=position.shape)
    stress = LABEL_SCALE * random.normal(size=position.shape)
    return Mesh(
        "random",
        number,
        position.astype(np.float32),
        normal.astype(np.float32),
        along.astype(np.float32),
        np.ones(nodes, dtype=bool),
        2 * RADIUS,
        stress.astype(np.float32),
    )
