"""Predictions of a model on meshes, for evaluation, reports and `flashgatr predict arteries`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ...anchored import Progress
from . import LABEL_SCALE
from .anchoring import AnchorChoice, GivenAnchors, predict_wall
from .batches import PackedBatch, pack
from .data.mesh import Mesh

TOGETHER = 8
"""Meshes per batch, without anchors."""


@torch.no_grad()
def predict_meshes(
    model: nn.Module,
    meshes: Sequence[Mesh],
    device: torch.device,
    precision: str = "float32",
    *,
    anchors: AnchorChoice | Sequence[GivenAnchors] | None = None,
    progress: Progress | None = None,
) -> Iterator[Tensor]:
    """The stress on each mesh, (N, 3) in dyn/cm², on the CPU. `precision` as in train.precision.

    anchors: which nodes all nodes of a mesh attend to, chosen on each mesh or given for each of
        them; None for full attention.
    progress: with anchors, called after every tile with the numbers of finished nodes and of all.
    """
    together = TOGETHER if anchors is None else 1
    for start in range(0, len(meshes), together):
        part = meshes[start : start + together]
        batch = pack(part, device).batch(range(len(part)))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            if anchors is None:
                found = predicted(model, batch)
            else:
                own = anchors if isinstance(anchors, AnchorChoice) else anchors[start]
                found = predict_wall(model, *batch[:3], own, progress=progress)
        yield from (LABEL_SCALE * found.float()).cpu().split([mesh.nodes for mesh in part])


def predicted(model: nn.Module, batch: PackedBatch) -> Tensor:
    """A model's output on packed meshes. Only networks on surfaces take levels."""
    levels = {} if batch.levels is None else {"levels": batch.levels}
    found: Tensor = model(*batch[:3], batch.offsets, int(batch.max_items), **levels)
    return found
