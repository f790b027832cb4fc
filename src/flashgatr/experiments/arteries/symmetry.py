"""The symmetry of the artery experiment: if a vessel is rotated and moved, so is the stress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..symmetry import equivariance_error, motions, moved, turned
from .anchoring import GivenAnchors, predict_wall
from .batches import pack
from .data.mesh import Mesh
from .inference import predicted
from .task import ArteryTask

MESHES, NODES = 2, 1000
"""The first of the last meshes, and how many nodes of each. Networks on surfaces take all nodes."""


def symmetry(task: ArteryTask, model: nn.Module, dtype: torch.dtype) -> float:
    """The largest error of the predicted stress, over the meshes. A run with anchors predicts with
    anchors. These, and the scales and neighbours for networks on surfaces, are those of the mesh
    that is not moved.
    """
    meshes = task.last_meshes(MESHES)
    return max(_error(task, model, _thinned(mesh), dtype) for mesh in meshes)


def _error(task: ArteryTask, model: nn.Module, mesh: Mesh, dtype: torch.dtype) -> float:
    batch = pack([mesh], task.device).batch([0])
    position, normal, geodesic = (x.to(dtype) for x in batch[:3])
    choice = task.options.choice
    anchors = None if choice is None else GivenAnchors(*choice.on(position))

    def stress(motion: Tensor) -> Tensor:
        place, plane = moved(motion, position), turned(motion, normal)
        if anchors is not None:
            return predict_wall(model, place, plane, geodesic, anchors)
        given = batch._replace(position=place, normal=plane, geodesic=geodesic)
        return predicted(model, given)

    return equivariance_error(stress, motions())


def _thinned(mesh: Mesh) -> Mesh:
    """At most `NODES` nodes, evenly spaced by number; meshes with levels as they are."""
    if mesh.levels is not None or mesh.nodes <= NODES:
        return mesh
    kept = np.arange(NODES) * mesh.nodes // NODES
    names = "position", "normal", "geodesic", "mask"
    rows: dict[str, Any] = {name: getattr(mesh, name)[kept] for name in names}
    return replace(mesh, **rows, wss=None, face=None)
