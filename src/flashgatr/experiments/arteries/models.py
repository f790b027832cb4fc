"""Models of the artery experiment: from the nodes of a wall to the stress in units of LABEL_SCALE.

    forward(position (T, 3), normal (T, 3), geodesic (T), offsets (B + 1), max_items) -> (T, 3)

Meshes are packed. Without offsets, the leading axes are meshes of one size, or padded meshes with a
mask of their valid nodes. In SEGNN, messages come from the nearest nodes. PointNet++ and GEM-CNN
take packed meshes only, or a single one. They convolve over neighbours, which `levels` gives, and
compute them if it is left out.

Reflections. Let P, N and g be the embeddings of the points, planes and scalars of a wall, and P',
N', g those of the mirrored wall. A reflection of multivectors maps (P, N, g) to (-P', N', g). An
equivariant network f therefore maps (-P', N', g) to the mirror image of f(P, N, g), but this says
nothing about f(P', N', g). `both_signs` computes ½ f(P, N, g) + ½ f(-P, N, g): a reflection swaps
the two terms, so that their sum is exactly equivariant. In `gatr_e3`, channels have types: P is
odd, N and g are even. It is exactly equivariant in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import GATr, embed_plane, embed_point, embed_scalar, parity
from ...algebra import NORMAL
from ...batch import Sets
from ...config import preset
from ..baselines import gem_cnn as gem
from ..baselines import pointnet2 as pointnet
from ..baselines.gem_cnn import GemCNN
from ..baselines.pointnet2 import PointNet2
from ..baselines.segnn import SEGNN
from ..baselines.surfaces.levels import Levels
from ..baselines.transformer import Transformer
from .data.mesh import ArteryError
from .unconstrained import UnconstrainedGATr

MOST_NEIGHBOURS = 10_000_000
"""Of a mesh of one's own; a published one has about 80,000 pairs."""
WIDE = 12
"""Multivector channels of `gatr_e3_wide`."""
VARIANTS: dict[str, dict[str, Any]] = {
    "gatr": {},
    "gatr_no_scalars": dict(in_s_channels=0, hidden_s_channels=0),
    "gatr_narrow": dict(hidden_mv_channels=4, hidden_s_channels=8),
    "gatr_shallow": dict(num_blocks=5),
}
"""GATr, and the ablations of the paper's table 3 that only change settings of the preset."""


class GATrArteries(nn.Module):
    """Multivector channels: node, plane of the wall, distance from the inlet. The scalar channel
    is zero.
    """

    def __init__(self, net: GATr, *, both_signs: bool = False) -> None:
        super().__init__()
        if not isinstance(both_signs, bool):
            raise TypeError(f"both_signs must be true or false, got {both_signs!r}")
        if both_signs and net.config.is_typed:
            raise ValueError(
                "both_signs is for networks without types of channels; one with types is exact "
                "under mirrors without it"
            )
        self.net, self.both_signs = net, both_signs

    def forward(
        self,
        position: Tensor,
        normal: Tensor,
        geodesic: Tensor,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        mask: Tensor | None = None,
        anchors: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """anchors: numbers of the nodes that all nodes attend to, for an `AnchoredGATr`; weights:
        how many nodes each of them stands for.
        """
        if self.net.config.recenter:  # before embedding, which rounds -(n·p) e0 for distant p
            sets = Sets(position.shape[:-1], offsets=offsets, max_items=max_items, mask=mask)
            position = position - sets.spread(sets.mean(position.detach()))
        position = position.to(normal.dtype)
        mv, s = self.embedded(position, normal, geodesic)
        about: dict[str, Any] = dict(offsets=offsets, max_items=max_items, mask=mask)
        if anchors is not None:
            about |= dict(anchors=anchors, weights=weights)

        def run(mv: Tensor) -> Tensor:
            return stress_of(*self.net(mv, s, **about))

        return (run(mv) + run(opposite(mv))) / 2 if self.both_signs else run(mv)

    def embedded(self, position: Tensor, normal: Tensor, geodesic: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the network, multivectors (..., 3, 16) and scalars, at these nodes."""
        point, plane = embed_point(position), embed_plane(normal, position)
        mv = torch.stack([point, plane, embed_scalar(geodesic[..., None])], dim=-2)
        return mv, normal.new_zeros(*geodesic.shape, self.net.config.in_s_channels)


def opposite(mv: Tensor) -> Tensor:
    """The same input with the other sign of the points."""
    return torch.cat([-mv[..., :1, :], mv[..., 1:, :]], dim=-2)


def stress_of(mv: Tensor, s: Tensor) -> Tensor:
    """The stress (..., 3), as the output of the network holds it."""
    return mv[..., 0, NORMAL]


class TransformerArteries(nn.Module):
    """A Transformer on seven numbers per node: position, normal and distance."""

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


class SEGNNArteries(nn.Module):
    """SEGNN on a position and a vector, the normal, per node, with the distance from the inlet as
    its charge: exactly equivariant under rotations, translations and mirrors.
    """

    def __init__(self, net: SEGNN) -> None:
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
        about = dict(offsets=offsets, max_items=max_items, mask=mask)
        return self.net(position.to(normal.dtype), normal, geodesic, **about)  # type: ignore[no-any-return]


class SurfaceModel(nn.Module):
    """A network on whole meshes, whose scales and neighbours `hierarchy` describes."""

    def __init__(self, net: PointNet2 | GemCNN) -> None:
        super().__init__()
        self.net, self.hierarchy = net, net.hierarchy

    def forward(
        self,
        position: Tensor,
        normal: Tensor,
        geodesic: Tensor,
        offsets: Tensor | None = None,
        max_items: int | None = None,
        mask: Tensor | None = None,
        levels: Levels | None = None,
    ) -> Tensor:
        if mask is not None or position.dim() != 2:
            raise ValueError(
                f"expected whole meshes, packed in positions (T, 3) with offsets; got positions "
                f"{tuple(position.shape)}{' and a mask' * (mask is not None)}"
            )
        position = position.to(normal.dtype)
        if levels is None:
            levels = self.hierarchy.batch(position, offsets)
            _require_few_neighbours(levels)
        if isinstance(self.net, GemCNN):
            return self.net(position, normal, geodesic, levels)  # type: ignore[no-any-return]
        return self.net(torch.cat([normal, geodesic[:, None]], -1), position, levels)  # type: ignore[no-any-return]


def _variant(changes: dict[str, Any]) -> Callable[..., nn.Module]:
    def build(both_signs: bool = False, **options: Any) -> nn.Module:
        return GATrArteries(GATr(preset("arteries", **changes | options)), both_signs=both_signs)

    return build


def gatr_e3(both_signs: bool = False, **options: Any) -> nn.Module:
    """GATr with types of channels, exactly equivariant under mirrors, too."""
    types = dict(in_mv_parity=parity("point", "plane", "scalar"), out_mv_parity=parity("plane"))
    return GATrArteries(GATr(preset("arteries", **types, **options)), both_signs=both_signs)


def gatr_e3_wide(**options: Any) -> nn.Module:
    """`gatr_e3` of a width that gives about as many parameters as `gatr` has."""
    return gatr_e3(**{"hidden_mv_channels": WIDE, **options})


def gatr_both_signs(**options: Any) -> nn.Module:
    """`gatr`, exactly equivariant under mirrors because both signs are averaged."""
    return _variant({})(both_signs=True, **options)


def unconstrained(**options: Any) -> nn.Module:
    """GATr with unconstrained linear maps, and therefore without recentring."""
    return GATrArteries(UnconstrainedGATr(preset("arteries", **{"recenter": False} | options)))


def transformer(
    hidden_channels: int = 160, num_heads: int = 4, multi_query: bool = True, **options: Any
) -> nn.Module:
    """The Transformer, which is also the ablation of GATr without multivectors."""
    net = Transformer(
        7, 3, hidden_channels, num_heads=num_heads, multi_query=multi_query, **options
    )
    return TransformerArteries(net)


def segnn(k: int = 16, num_layers: int = 8, **options: Any) -> nn.Module:
    """SEGNN with messages from the `k` nearest other nodes; nodes see their own distance, too."""
    return SEGNNArteries(SEGNN(num_layers=num_layers, k=k, charge_as_node_scalar=True, **options))


def pointnet2(
    radii: Sequence[float] = pointnet.RADII,
    ratios: Sequence[float] = pointnet.RATIOS,
    most: int = pointnet.MOST,
    widths: Sequence[int] = pointnet.WIDTHS,
) -> nn.Module:
    """PointNet++ on the normal and the distance of each node."""
    scales = pointnet.hierarchy(radii, ratios, most)
    return SurfaceModel(PointNet2(4, 3, scales, widths))


def gem_cnn(
    radii: Sequence[float] = gem.RADII,
    ratios: Sequence[float] = gem.RATIOS,
    most: int = gem.MOST,
    **options: Any,
) -> nn.Module:
    """GEM-CNN, with options of the network: channels, rings, samples, checkpoint."""
    return SurfaceModel(GemCNN(gem.hierarchy(radii, ratios, most), **options))


def _require_few_neighbours(levels: Levels) -> None:
    """Refuse meshes that are so fine that convolutions would need more than about 10 GB."""
    count = sum(int((level.linked >= 0).sum()) for level in levels if level.linked is not None)
    if count > MOST_NEIGHBOURS:
        raise ArteryError(
            f"the mesh is too fine for this network: {count:,} pairs of neighbours, "
            f"{MOST_NEIGHBOURS:,} are possible; make new triangles with edges of about 0.03 cm"
        )


ON_SURFACES: dict[str, Callable[..., nn.Module]] = {"pointnet2": pointnet2, "gem_cnn": gem_cnn}
MODELS: dict[str, Callable[..., nn.Module]] = {
    **{name: _variant(changes) for name, changes in VARIANTS.items()},
    "gatr_both_signs": gatr_both_signs,
    "gatr_e3": gatr_e3,
    "gatr_e3_wide": gatr_e3_wide,
    "gatr_unconstrained": unconstrained,
    "transformer": transformer,
    "segnn": segnn,
    **ON_SURFACES,
}
