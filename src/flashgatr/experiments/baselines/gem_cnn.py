"""GEM-CNN (de Haan et al., 2021): gauge-equivariant convolutions on a surface, at three scales.

    scale 0   2 blocks ───────────────────────────────── 4 blocks, the last one to a vector
    scale 1        2 blocks ──────────────── 4 blocks
    scale 2             2 blocks ──────────

As for the artery data (Suk et al., 2022): a scale is pooled to the next one by the mean over the
nodes nearest to each of its nodes, in the frame of that node. On the way back, features are
copied, and those of the same scale are concatenated. A block is

    y = σ(conv(σ(conv(x))) + skip(x))

The input is what a node sees of its neighbours in its tangent frame, and the distance from the
inlet. The prediction turns with the surface. It would not depend on the frames if the nonlinearity
σ were sampled finely: one block changes by 0.09 with 7 samples, the authors' number, and by less
than 0.001 with 101. Mirror images are not recognised. Shapes as in `surfaces.convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...precision import full_precision
from ...recomputation import recomputed
from .checks import require_bool, require_count
from .surfaces.convolution import (
    ORDER,
    GaugeConvolution,
    Neighbourhood,
    RegularNonlinearity,
    Skip,
    neighbourhood,
    transported,
)
from .surfaces.frames import tangent_frames, transports, turned
from .surfaces.levels import ByLength, Hierarchy, Level, Levels, by_length, rows, shares

RATIOS = (1.0, 0.4, 0.1)
RADII = (0.042, 0.06, 0.8)
"""In cm, as published for single arteries. On 20 training meshes (every 80th) a node of the three
scales has 7.6, 5.5 and 66 neighbours on average, itself included; there are 6,263, 2,506 and 251
nodes. The last radius is no misprint for 0.08, within which no node of that scale has another."""
MOST = 512
_INPUTS = 8


class GemBlock(nn.Module):
    """Two convolutions with a residual connection; the last block has no second nonlinearity."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        rings: int,
        samples: int,
        out_order: int = ORDER,
        last: bool = False,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.first = GaugeConvolution(in_channels, out_channels, ORDER, ORDER, rings)
        self.second = GaugeConvolution(out_channels, out_channels, ORDER, out_order, rings)
        self.inner = RegularNonlinearity(out_channels, ORDER, samples)
        self.outer = nn.Identity() if last else RegularNonlinearity(out_channels, ORDER, samples)
        mixes = in_channels != out_channels
        self.skip = Skip(in_channels, out_channels) if mixes else nn.Identity()

    def forward(self, x: Tensor, near: Neighbourhood) -> Tensor:
        y = self._convolved(self.second, self.inner(self._convolved(self.first, x, near)), near)
        return self.outer(y + self.skip(x)[:, : y.shape[1]])  # type: ignore[no-any-return]

    def _convolved(self, layer: nn.Module, x: Tensor, near: Neighbourhood) -> Tensor:
        found: Tensor = recomputed(self.checkpoint, lambda x: layer(x, near), x)
        return found


class Scale(NamedTuple):
    """The neighbourhoods on one scale, for rows in the order of their numbers of neighbours."""

    rows: ByLength
    near: Neighbourhood

    def run(self, blocks: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(blocks, nn.ModuleList)
        x = x[self.rows.order]
        for block in blocks:
            x = block(x, self.near)
        return x[self.rows.back]


class GemCNN(nn.Module):
    """Positions and normals (T, 3) and distances (T) of nodes to one vector (T, 3) each.

    The nodes of all surfaces of a batch follow one another, and `levels` are theirs
    (`surfaces.levels`).

    channels: of the features of each order.  rings: of the kernels.
    samples: angles at which the nonlinearity is applied, an odd number.
    checkpoint: compute the convolutions again in the backward pass to save memory.

    >>> net, position = GemCNN(hierarchy(radii=(0.5, 0.5, 0.5)), channels=4), torch.rand(60, 3)
    >>> normal = torch.nn.functional.normalize(torch.randn(60, 3), dim=-1)
    >>> net(position, normal, torch.rand(60), net.hierarchy.batch(position)).shape
    torch.Size([60, 3])
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        channels: int = 26,
        *,
        rings: int = 2,
        samples: int = 7,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        require_count("channels", channels)
        require_count("rings", rings, least=2)
        require_count("samples", samples, least=2 * ORDER + 1)
        require_bool("checkpoint", checkpoint)
        if samples % 2 == 0:
            raise ValueError(f"samples must be odd, got {samples}")
        if len(hierarchy.ratios) != len(RATIOS) or not hierarchy.convolves:
            raise ValueError(
                f"GEM-CNN convolves on {len(RATIOS)} scales; got {hierarchy}; make them with "
                "gem_cnn.hierarchy"
            )
        self.hierarchy, self.rings = hierarchy, rings
        options: dict[str, Any] = dict(rings=rings, samples=samples, checkpoint=checkpoint)

        def blocks(in_channels: int, count: int) -> list[nn.Module]:
            widths = [in_channels, *[channels] * (count - 1)]
            return [GemBlock(width, channels, **options) for width in widths]

        self.down = nn.ModuleList(
            nn.ModuleList(blocks(width, 2)) for width in (_INPUTS, channels, channels)
        )
        last = GemBlock(channels, 1, out_order=1, last=True, **options)
        self.up = nn.ModuleList(
            [
                nn.ModuleList([*blocks(2 * channels, 3), last]),
                nn.ModuleList(blocks(2 * channels, 4)),
            ]
        )

    def forward(
        self,
        position: Tensor,
        normal: Tensor,
        geodesic: Tensor,
        levels: Levels,
        gauge: Tensor | None = None,
    ) -> Tensor:
        """gauge: angles (T) by which the tangent frames are turned first, for tests."""
        with full_precision(position.device):
            frames = tangent_frames(position, normal, _nearest(levels[0].linked))
            if gauge is not None:
                frames = turned(frames, gauge)
            scales, moves = self._geometry(position, frames, levels)
            x = seen(position, frames, geodesic, levels[0])
        features = []
        for k, blocks in enumerate(self.down):
            if k:
                x = pooled(x, moves[k - 1], levels[k])
            x = scales[k].run(blocks, x)
            features.append(x)
        for k in (1, 0):
            x = transported(rows(x, levels[k + 1].near[:, 0]), moves[k].conj())
            x = scales[k].run(self.up[k], torch.cat([x, features[k]], dim=-1))
        return (x[:, [1, 2, 0]] * frames).sum(1)

    def _geometry(
        self, position: Tensor, frames: Tensor, levels: Levels
    ) -> tuple[list[Scale], list[Tensor]]:
        """The neighbourhoods of each scale, and the transports to the next coarser one."""
        scales, moves = [], []
        for radius, level in zip(self.hierarchy.radii, levels, strict=True):
            if level.kept is not None:
                coarse = rows(frames, level.kept)
                toward = rows(coarse, level.near[:, 0])
                moves.append(transports(frames[:, 0], frames[:, 2], toward))
                position, frames = rows(position, level.kept), coarse
            own = by_length(level.linked)
            placed = position[own.order], frames[own.order]
            near = neighbourhood(*placed, own.lists, radius, self.rings, own.cuts)
            scales.append(Scale(own, near))
        return scales, moves

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.parameters())
        channels = self.down[1][0].first.out_channels  # type: ignore[index]
        return (
            f"GemCNN({len(self.down)} scales, {channels} channels of orders 0 to {ORDER}, "
            f"{parameters:,} parameters)"
        )


def hierarchy(
    radii: Sequence[float] = RADII, ratios: Sequence[float] = RATIOS, most: int = MOST
) -> Hierarchy:
    """The scales of GEM-CNN."""
    return Hierarchy(tuple(ratios), tuple(radii), most, convolves=True)


def pooled(x: Tensor, moves: Tensor, level: Level) -> Tensor:
    """The mean of transported features over the members of each row of the coarser scale."""
    found = rows(transported(x, moves), level.members)  # (M, K, D, C)
    return (found * shares(level.members, x.dtype)[..., None, None]).sum(1)


def seen(position: Tensor, frames: Tensor, geodesic: Tensor, level: Level) -> Tensor:
    """The input features (N, 5, 8): means of d⊗d, n⊗n and d⊗n over the neighbours, as seen in the
    tangent frame (d: offset, n: normal of the neighbour), and the distance from the inlet.

    The nine numbers of a mean have the orders 0, 0, 0, 1, 1 and 2; the first channel takes one of
    each, the others the rest. Symmetric ones have no third channel.
    """
    share = shares(level.linked, position.dtype)
    offset = rows(position, level.linked) - position[:, None]
    d = torch.einsum("nax,nkx->nka", frames, offset)
    n = torch.einsum("nax,nkx->nka", frames, rows(frames[:, 2], level.linked))
    channels = []
    for a, b, is_symmetric in ((d, d, True), (n, n, True), (d, n, False)):
        m = torch.einsum("nka,nkb,nk->nab", a, b, share)
        trace, up = (m[:, 0, 0] + m[:, 1, 1]) / 2, m[:, 2, 2]
        curl = (m[:, 1, 0] - m[:, 0, 1]) / 2
        second = [(m[:, 0, 0] - m[:, 1, 1]) / 2, (m[:, 0, 1] + m[:, 1, 0]) / 2]
        below, beside = list(m[:, 2, :2].unbind(-1)), list(m[:, :2, 2].unbind(-1))
        none = [torch.zeros_like(trace)] * 2
        if is_symmetric:
            channels += [[trace, *below, *second], [up, *none, *none]]
        else:
            channels += [[curl, *below, *second], [trace, *beside, *none], [up, *none, *none]]
    channels.append([geodesic.to(position.dtype), *none, *none])
    return torch.stack([torch.stack(own, dim=-1) for own in channels], dim=-1)


def _nearest(linked: Tensor) -> Tensor:
    """The nearest other node of each, from lists with the nearest first; -1 if there is none."""
    own = torch.arange(len(linked), device=linked.device, dtype=linked.dtype)[:, None]
    place = (linked != own).int().argmax(dim=1, keepdim=True)
    found = linked.gather(1, place.long())
    return torch.where(found == own, -1, found)[:, 0]
