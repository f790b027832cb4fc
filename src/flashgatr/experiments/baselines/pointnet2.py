"""PointNet++ (Qi et al., 2017): sets of points at five scales, pooled and interpolated.

    down    x'ᵢ = max over j in the ball around i of  mlp[xⱼ, pⱼ - pᵢ]
    up      xᵢ  = mlp[Σⱼ wⱼ x'ⱼ / Σⱼ wⱼ, skipᵢ]     over the three nearest j, wⱼ = 1 / ‖pⱼ - pᵢ‖²

Each layer of an mlp is a linear map, batch normalisation and ReLU. The widths are those of a later
network by the authors of the artery data. Only differences of positions enter, so the network
is equivariant under translations, and under permutations of the nodes; it is not under rotations.
Shapes: L and M rows of the finer and the coarser scale, K neighbours, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...precision import full_precision, stream_dtype
from .checks import Linear, checked, require_count
from .surfaces.levels import Hierarchy, Level, Levels, rows

WIDTHS = (32, 64, 128, 212, 256)
RATIOS = (0.2, 0.25, 0.25, 0.25, 0.25)
RADII = (0.058, 0.131, 0.254, 0.507, 2.18)
"""In cm. Half of the balls hold 13 nodes of the finer scale or more: the medians of the distance to
the 13th nearest one (the centre is the first), over 20 training meshes of the published arteries,
every 80th. Medians of single meshes differ from them by up to 10 % in the first three scales, by
19 % in the fourth and 48 % in the fifth, which has five nodes. 13 is the number by which the
authors of the data chose radii for other vessels."""
MOST = 32
"""Neighbours in a ball. Of the balls of the first scale, 1 % hold more; of the others, none."""
_LEAST_SQUARE = 1e-16
"""Nodes that coincide have this squared distance in the weights of an interpolation."""


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of (..., C) over all entries, or over those that `valid` (...) marks."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        x = x.to(stream_dtype(self.weight.dtype))
        entries = x.shape[:-1].numel()
        if not self.training or (valid is None and entries > 1):
            return super().forward(x.flatten(0, -2)).view_as(x)
        if valid is None:  # a single entry, which torch refuses
            valid = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        axes = tuple(range(x.dim() - 1))
        count = valid.sum().to(x.dtype)
        share = valid[..., None] / count
        mean = (x * share).sum(axes)
        centred = x - mean
        variance = (centred.square() * share).sum(axes)
        self._follow(mean, variance * (count / (count - 1).clamp(min=1)))
        return centred * ((variance + self.eps).rsqrt() * self.weight) + self.bias

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Update the averages that evaluation uses."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += 1


class PointMLP(nn.Module):
    """Linear, BatchNorm and ReLU, once per width after the first."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.linears = nn.ModuleList(Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(BatchNorm(b) for _, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = F.relu(norm(linear(x)))
        return x


class SetAbstraction(PointMLP):
    """The features of a scale (L, C), pooled in the balls around the rows of the next one."""

    def forward(self, x: Tensor, position: Tensor, level: Level) -> Tensor:  # type: ignore[override]
        offset = (rows(position, level.pooled) - rows(position, level.kept)[:, None]).to(x.dtype)
        valid = level.pooled >= 0
        first = self.linears[0]
        assert isinstance(first, Linear)
        weight = first.weight
        # The first map acts on [xⱼ, pⱼ - pᵢ]. Its first part needs one product per node, not one
        # per neighbour.
        own = F.linear(x.to(weight.dtype), weight[:, : x.shape[-1]])
        h = rows(own, level.pooled) + F.linear(
            offset.to(weight.dtype), weight[:, x.shape[-1] :], first.bias
        )
        h = F.relu(self.norms[0](h, valid))
        for linear, norm in zip(self.linears[1:], self.norms[1:], strict=True):
            h = F.relu(norm(linear(h), valid))
        return h.masked_fill(~valid[..., None], 0).amax(dim=1)  # ReLU: no entry is below 0


class FeaturePropagation(PointMLP):
    """The features of a scale, interpolated at the rows of the finer one, beside the latter's."""

    def forward(  # type: ignore[override]
        self, x: Tensor, skip: Tensor, position: Tensor, coarse: Tensor, level: Level
    ) -> Tensor:
        square = (rows(coarse, level.near) - position[:, None]).square().sum(-1)
        weight = torch.where(level.near >= 0, 1 / square.clamp(min=_LEAST_SQUARE), 0)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        between = (rows(x, level.near) * weight[..., None]).sum(1)
        return super().forward(torch.cat([between, skip], dim=-1))


class PointNet2(nn.Module):
    """Features (T, in_channels) of nodes at `position` (T, 3) to (T, out_channels).

    The nodes of all surfaces of a batch follow one another, and `levels` are theirs
    (`surfaces.levels`). widths: channels of the five scales.

    >>> net, position = PointNet2(4, 3, hierarchy()), torch.rand(80, 3)
    >>> levels = net.hierarchy.batch(position)
    >>> net(torch.randn(80, 4), position, levels).shape
    torch.Size([80, 3])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hierarchy: Hierarchy,
        widths: Sequence[int] = WIDTHS,
    ) -> None:
        super().__init__()
        for name, value in dict(in_channels=in_channels, out_channels=out_channels).items():
            require_count(name, value)
        if len(widths) != len(WIDTHS) or len(hierarchy.ratios) != len(WIDTHS):
            raise ValueError(
                f"PointNet++ has {len(WIDTHS)} scales; got {len(widths)} widths and "
                f"{len(hierarchy.ratios)} ratios"
            )
        for width in widths:
            require_count("widths", width)
        self.in_channels, self.hierarchy = in_channels, hierarchy
        a, b, c, d, e = widths
        down = [
            (in_channels + 3, a, a, b), (b + 3, b, b, c), (c + 3, c, c, d), (d + 3, d, d, e),
            (e + 3, e, e, e),
        ]  # fmt: skip
        up = [
            (c + in_channels, c, c, c), (d + b, d, c), (d + c, d, d), (e + d, d, d), (e + e, e, e),
        ]  # fmt: skip
        self.down = nn.ModuleList(SetAbstraction(own) for own in down)
        self.up = nn.ModuleList(FeaturePropagation(own) for own in up)
        self.linear_out = Linear(c, out_channels)

    def forward(self, x: Tensor, position: Tensor, levels: Levels) -> Tensor:
        x = checked(x, self.linear_out.weight, (), self.in_channels)
        places, features = [position], [x]
        for abstraction, level in zip(self.down, levels, strict=True):
            features.append(abstraction(features[-1], places[-1], level))
            places.append(rows(places[-1], level.kept))
        x = features[-1]
        for k in reversed(range(len(levels))):
            x = self.up[k](x, features[k], places[k], places[k + 1], levels[k])
        with full_precision(x.device):
            return self.linear_out(x).to(stream_dtype(self.linear_out.weight.dtype))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.parameters())
        return (
            f"PointNet2({self.in_channels} -> {self.linear_out.out_features}; {len(self.down)} "
            f"scales, {parameters:,} parameters)"
        )


def hierarchy(
    radii: Sequence[float] = RADII, ratios: Sequence[float] = RATIOS, most: int = MOST
) -> Hierarchy:
    """The scales of PointNet++."""
    return Hierarchy(tuple(ratios), tuple(radii), most, convolves=False)
