"""Models of the artery experiment: nodes of a vessel wall to the stress there, in units of LABEL_SCALE.

    forward(position (T, 3), normal (T, 3), geodesic (T), offsets (B + 1), max_items) -> (T, 3)

Meshes are packed; without offsets, leading axes count meshes of one size, or padded ones with a mask of their valid nodes.

Mirrors. To the group, a mirrored wall is (-P', N', g): the point's embedding P changes sign, the plane's N and the scalar's
do not. An equivariant f therefore gives f(-P', N', g) = the mirror image of f(P, N, g), but f(P', N', g) is something else.
`both_signs` takes ½ f(P, N, g) + ½ f(-P, N, g); a mirror swaps the two halves, and their sum is the mirror image exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ... import GATr, embed_plane, embed_point, embed_scalar
from ...algebra import NORMAL
from ...batch import Sets
from ...config import preset
from ..baselines.transformer import Transformer
from .unconstrained import UnconstrainedGATr

VARIANTS: dict[str, dict[str, Any]] = {
    "gatr": {},
    "gatr_no_scalars": dict(in_s_channels=0, hidden_s_channels=0),
    "gatr_narrow": dict(hidden_mv_channels=4, hidden_s_channels=8),
    "gatr_shallow": dict(num_blocks=5),
}
"""GATr and the ablations of the paper's table 3 that are settings of it, as changes of the preset."""


class GATrArteries(nn.Module):
    """Multivector channels: the node, the plane of the wall there, the distance from the inlet; one scalar that is zero."""

    def __init__(self, net: GATr, *, both_signs: bool = False) -> None:
        super().__init__()
        if not isinstance(both_signs, bool):
            raise TypeError(f"both_signs must be true or false, got {both_signs!r}")
        self.net, self.both_signs = net, both_signs

    def forward(
        self,
        position: Tensor,
        normal: Tensor,
        geodesic: Tensor,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        if self.net.config.recenter:  # before embedding: far away -(n·p) e0 would be rounded
            sets = Sets(position.shape[:-1], offsets=offsets, max_items=max_items, mask=mask)
            position = position - sets.spread(sets.mean(position.detach()))
        position = position.to(normal.dtype)
        point = embed_point(position)
        others = [embed_plane(normal, position), embed_scalar(geodesic[..., None])]
        s = normal.new_zeros(*geodesic.shape, self.net.config.in_s_channels)

        def run(point: Tensor) -> Tensor:
            mv = torch.stack([point, *others], dim=-2)
            out: Tensor = self.net(mv, s, offsets=offsets, max_items=max_items, mask=mask)[0]
            return out[..., 0, NORMAL]

        return (run(point) + run(-point)) / 2 if self.both_signs else run(point)


class TransformerArteries(nn.Module):
    """A Transformer on the seven numbers of each node."""

    def __init__(self, net: Transformer) -> None:
        super().__init__()
        self.net = net

    def forward(
        self,
        position: Tensor,
        normal: Tensor,
        geodesic: Tensor,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        features = torch.cat([position.to(normal.dtype), normal, geodesic[..., None]], dim=-1)
        return self.net(features, offsets=offsets, max_items=max_items, mask=mask)  # type: ignore[no-any-return]


def _variant(changes: dict[str, Any]) -> Callable[..., nn.Module]:
    def build(both_signs: bool = False, **options: Any) -> nn.Module:
        return GATrArteries(GATr(preset("arteries", **changes | options)), both_signs=both_signs)

    return build


def unconstrained(**options: Any) -> nn.Module:
    """Without equivariance constraints on the linear maps, and therefore without recentring."""
    return GATrArteries(UnconstrainedGATr(preset("arteries", **{"recenter": False} | options)))


def transformer(
    hidden_channels: int = 160, num_heads: int = 4, multi_query: bool = True, **options: Any
) -> nn.Module:
    """Also GATr without multivectors."""
    net = Transformer(
        7, 3, hidden_channels, num_heads=num_heads, multi_query=multi_query, **options
    )
    return TransformerArteries(net)


MODELS: dict[str, Callable[..., nn.Module]] = {
    **{name: _variant(changes) for name, changes in VARIANTS.items()},
    "gatr_unconstrained": unconstrained,
    "transformer": transformer,
}
