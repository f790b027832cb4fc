"""Multi-layer perceptron: Linear, then GELU and Linear once per hidden layer.

On sets, flatten the items: (B, N, C) to (B, N·C). The network is then neither equivariant to
motions nor to permutations of the items, and works for a single number of items.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...precision import full_precision, stream_dtype
from .checks import Linear, checked, require_count


class MLP(nn.Module):
    """Features (..., in_features) to (..., out_features), with `layers` hidden layers.

    >>> import torch
    >>> net = MLP(4 * 7, 4 * 3)
    >>> net(torch.randn(64, 4, 7).flatten(1)).unflatten(1, (4, 3)).shape
    torch.Size([64, 4, 3])
    """

    def __init__(
        self, in_features: int, out_features: int, hidden: int = 384, layers: int = 2
    ) -> None:
        super().__init__()
        sizes = dict(in_features=in_features, out_features=out_features)
        for name, value in (sizes | dict(hidden=hidden, layers=layers)).items():
            require_count(name, value)
        self.linear_in = Linear(in_features, hidden)
        self.hidden = nn.ModuleList(Linear(hidden, hidden) for _ in range(layers - 1))
        self.linear_out = Linear(hidden, out_features)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear_in.weight
        x = checked(x, weight, (), self.linear_in.in_features)
        with full_precision(x.device):
            x = self.linear_in(x)
        for linear in self.hidden:
            x = linear(nn.functional.gelu(x))
        x = nn.functional.gelu(x)
        with full_precision(x.device):
            x = self.linear_out(x)
        return x.to(stream_dtype(weight.dtype))
