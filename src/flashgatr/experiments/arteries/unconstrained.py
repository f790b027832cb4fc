"""GATr without the equivariance constraint on its linear maps (paper, table 3).

Each linear map is a dense matrix on all 16 C + S numbers of an item. Products, joins, attention and
norms are unchanged and run in the plain layers. The network does not recentre its input.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...algebra import BLADES, SCALAR
from ...config import GATrConfig
from ...functional.linear import basis
from ...model import GATr
from ...nn import EquiLinear


class AnyLinear(nn.Module):
    """A dense linear map of (mv, s), from 16 C + S to 16 C' + S' numbers, that replaces an
    EquiLinear.

    It starts with the biases of the replaced layer and with random weights; the weights of each
    output channel have the same norm as in the replaced layer.
    """

    def __init__(self, layer: EquiLinear) -> None:
        super().__init__()
        self.in_mv_channels, self.out_mv_channels = layer.in_mv_channels, layer.out_mv_channels
        self.in_s_channels, self.out_s_channels = layer.in_s_channels, layer.out_s_channels
        weight, bias = dense(layer)
        drawn = torch.randn_like(weight)
        for rows in self._channels():
            drawn[rows] *= weight[rows].norm() / drawn[rows].norm().clamp(min=1e-12)
        self.weight = nn.Parameter(drawn)
        self.bias = nn.Parameter(bias) if layer.bias_mv is not None else None

    def forward(self, mv: Tensor, s: Tensor | None = None) -> tuple[Tensor, Tensor]:
        numbers = mv.flatten(-2) if s is None else torch.cat([mv.flatten(-2), s.to(mv.dtype)], -1)
        out = F.linear(numbers.to(self.weight.dtype), self.weight, self.bias)
        mv, s = out.split([BLADES * self.out_mv_channels, self.out_s_channels], dim=-1)
        return mv.unflatten(-1, (self.out_mv_channels, BLADES)), s

    def _channels(self) -> list[slice]:
        """The rows of the matrix that belong to each output channel."""
        end = BLADES * self.out_mv_channels
        wide = [slice(k, k + BLADES) for k in range(0, end, BLADES)]
        return wide + [slice(k, k + 1) for k in range(end, end + self.out_s_channels)]


@torch.no_grad()
def dense(layer: EquiLinear) -> tuple[Tensor, Tensor]:
    """An equivariant map as a dense matrix and bias, on the flattened multivectors and scalars.

    >>> layer = EquiLinear(2, 3, 4, 5)
    >>> [tuple(x.shape) for x in dense(layer)]
    [(53, 36), (53,)]
    """
    c_in, c_out = layer.in_mv_channels, layer.out_mv_channels
    size = BLADES * c_out + layer.out_s_channels, BLADES * c_in + layer.in_s_channels
    weight, bias = layer.weight.new_zeros(size), layer.weight.new_zeros(size[0])
    pairs = torch.einsum("oib,bkl->okil", layer.weight, basis().to(layer.weight))
    weight[: BLADES * c_out, : BLADES * c_in] = pairs.reshape(BLADES * c_out, BLADES * c_in)
    scalars_out = slice(SCALAR, BLADES * c_out, BLADES)
    if layer.s2mv is not None:
        weight[scalars_out, BLADES * c_in :] = layer.s2mv
    if layer.mv2s is not None:
        weight[BLADES * c_out :, SCALAR : BLADES * c_in : BLADES] = layer.mv2s
    if layer.s2s is not None:
        weight[BLADES * c_out :, BLADES * c_in :] = layer.s2s
    if layer.bias_mv is not None:
        bias[scalars_out] = layer.bias_mv
    if layer.bias_s is not None:
        bias[BLADES * c_out :] = layer.bias_s
    return weight, bias


class UnconstrainedGATr(GATr):
    """GATr with dense linear maps. `recenter` must be off: it would hide the input's position."""

    def __init__(self, config: GATrConfig) -> None:
        if config.recenter:
            raise ValueError(
                "a network without equivariance constraints must not recentre its input; set "
                "recenter = false"
            )
        super().__init__(config)
        for module in list(self.modules()):
            for name, layer in list(module.named_children()):
                if isinstance(layer, EquiLinear):
                    setattr(module, name, AnyLinear(layer))
