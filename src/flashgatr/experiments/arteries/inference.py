"""Predictions of a model on meshes, for evaluation, reports and `flashgatr predict arteries`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from . import LABEL_SCALE
from .batches import pack
from .data.mesh import Mesh

TOGETHER = 8
"""Meshes per batch."""


@torch.no_grad()
def predict_meshes(
    model: nn.Module, meshes: Sequence[Mesh], device: torch.device, precision: str = "float32"
) -> Iterator[Tensor]:
    """The stress on each mesh, (N, 3) in dyn/cm², on the CPU. `precision` as in train.precision."""
    for start in range(0, len(meshes), TOGETHER):
        part = meshes[start : start + TOGETHER]
        batch = pack(part, device).batch(range(len(part)))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            found = model(
                batch.position, batch.normal, batch.geodesic, batch.offsets, int(batch.max_items)
            )
        yield from (LABEL_SCALE * found.float()).cpu().split([mesh.nodes for mesh in part])
