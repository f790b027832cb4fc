"""GATr for flows: from points of the lumen and of the wall to velocity and stress there.

    forward(position (B, L, 3), normal (B, L, 3), distance (B, L), kind (B, L), anchors, weights)
        -> (B, L, 3)

Multivector channels: the point, the plane of the wall (zero in the lumen), the distance from the
inlet. Scalar channel: 1 on the wall, 0 in the lumen. The stress is the normal of the first output
channel, the velocity that of the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import AnchoredGATr, embed_plane, embed_point, embed_scalar
from ...algebra import NORMAL
from ...anchored import TILE, Progress
from ...config import preset
from ..arteries.anchoring import CPU_TILE
from .vessels import points_of


class FlowGATr(nn.Module):
    def __init__(self, net: AnchoredGATr) -> None:
        super().__init__()
        self.net = net

    def forward(
        self,
        position: Tensor,
        normal: Tensor,
        distance: Tensor,
        kind: Tensor,
        anchors: Tensor,
        weights: Tensor,
    ) -> Tensor:
        """anchors, weights: (B, M), the rows that all rows attend to, and their weights."""
        center = position.take_along_dim(anchors[..., None], -2).mean(-2, keepdim=True)
        mv, s = embedded(position - center, normal, distance, kind)
        return vectors(self.net(mv, s, anchors=anchors, weights=weights)[0], kind)

    @torch.no_grad()
    def predict(
        self, anchors: Tensor, weights: Tensor, rows: Tensor, progress: Progress | None = None
    ) -> Tensor:
        """The prediction (N, 3) at all rows (N, 12) of a vessel with these anchors (M, 12)."""
        center = anchors[:, :3].mean(0)

        def embed(rows: Tensor) -> tuple[Tensor, Tensor]:
            position, normal, distance, kind, *_ = points_of(rows)
            return embedded(position - center, normal, distance, kind)

        state = self.net.encode(*embed(anchors), weights=weights)
        tile = min(TILE if rows.is_cuda else CPU_TILE, max(len(rows), 1))

        def both(mv: Tensor, s: Tensor) -> Tensor:
            return mv[..., NORMAL].flatten(-2)  # (N, 6)

        field = self.net.field(state, embed, extract=both, tile=tile, progress=progress)
        found = field(rows).float()
        is_wall = points_of(rows).kind[:, None] > 0
        return torch.where(is_wall, found[:, :3], found[:, 3:])


def embedded(
    position: Tensor, normal: Tensor, distance: Tensor, kind: Tensor
) -> tuple[Tensor, Tensor]:
    """The input of the network at these points."""
    point, plane = embed_point(position), embed_plane(normal, position)
    return torch.stack([point, plane, embed_scalar(distance[..., None])], dim=-2), kind[..., None]


def vectors(mv: Tensor, kind: Tensor) -> Tensor:
    """Stress on the wall and velocity in the lumen, (..., 3)."""
    return torch.where(kind[..., None] > 0, mv[..., 0, NORMAL], mv[..., 1, NORMAL])


def gatr(**options: Any) -> nn.Module:
    given: dict[str, Any] = {"out_mv_channels": 2, "length_scale": 0.1}
    return FlowGATr(AnchoredGATr(preset("arteries", **given | options)))


MODELS = {"gatr": gatr}
