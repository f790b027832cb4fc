"""Geometric Clifford Algebra networks (Ruhe et al., 2023): multivectors, without equivariance.

    linear map    y_o = Σ_i w_oi k_oi x_i k̃_oi       k: any even multivector, k̃ its reverse
    activation    x ↦ x · σ(⟨a, x⟩ + b)              a: 16 numbers per channel
    message       m_i = Σ_{j ≠ i} mlp([x_i, x_j])    update  x_i ← mlp([x_i, m_i])

A linear map replaces the e123 component of its inputs by a learned number per channel. With it, a
unit k moves points rigidly; without it, the weight of a point is lost. As k, a and b are fixed
multivectors, no layer commutes with motions of its input.

The sandwich k x k̃ does not mix grades, but for 1 and e0123. A linear map is therefore four matrix
products. Shapes: multivectors (..., C, 16) and (..., N, C, 16).
"""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...algebra import BLADES, EUCLIDEAN, GRADES, PGA, PSEUDOSCALAR, SCALAR, grade
from ...precision import full_precision, stream_dtype
from .checks import checked, require_count
from .fully_connected import run_on_pairs

ACTION = tuple(i for i in range(BLADES) if PGA.grades[i] % 2 == 0)
"""The blades of k."""
BLOCKS = ((SCALAR, PSEUDOSCALAR), *(tuple(range(BLADES)[grade(g)]) for g in (1, 2, 3)))
"""The blades that k x k̃ keeps together."""
_POINTS = PGA.grades.count(GRADES - 2)
_PARTS = [1, *map(len, BLOCKS[1:-1]), _POINTS - 1, 1, 1]
"""1, vectors, bivectors, trivectors with e0, e123, e0123."""


@cache
def _sandwiches() -> Tensor:
    """The maps x ↦ e_a x ẽ_b: a row per pair (a, b), a column per entry of every block.

    They also have entries outside the blocks, which cancel in k x k̃ = Σ k_a k_b e_a x ẽ_b.
    """
    columns = [(out, given) for block in BLOCKS for out in block for given in block]
    rows = []
    for a in ACTION:
        for b in ACTION:
            entries = {}
            for given in range(BLADES):
                left, sign = PGA.multiply(a, given)
                out, second = PGA.multiply(left, b)
                entries[out, given] = sign * second * PGA.reverse_sign[b]
            rows.append([entries.get(column, 0) for column in columns])
    with torch.inference_mode(False):
        return torch.tensor(rows, device="cpu")


class ConjugateLinear(nn.Module):
    """(..., C, 16) to (..., C', 16): every pair of channels has a weight w and an action k.

    k starts as a random rotation and is free in training.
    point_weight: what the learned e123 components start with.
    fan_in: number of input channels, if this is one of several maps that are added.
    """

    sandwiches: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        point_weight: float = 1.0,
        fan_in: int | None = None,
    ) -> None:
        super().__init__()
        sandwiches = _sandwiches().to(torch.get_default_dtype())  # 0 and ±1, exact in any dtype
        self.register_buffer("sandwiches", sandwiches, persistent=False)
        bound = 1 / math.sqrt(fan_in or in_channels)
        rotates = torch.tensor([float(blade in EUCLIDEAN) for blade in ACTION])
        action = rotates * torch.empty(out_channels, in_channels, len(ACTION)).uniform_(-1, 1)
        self.action = nn.Parameter(action / action.norm(dim=-1, keepdim=True))
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels).uniform_(-bound, bound))
        self.point_weight = nn.Parameter(torch.full((in_channels, 1), float(point_weight)))

    def forward(self, x: Tensor, terms: Tensor | None = None) -> Tensor:
        """If x is a sum of inputs, `terms` (..., 1, 1) is their number; then the result is the sum
        of their results.
        """
        x = x.to(self.weight.dtype)
        scalar, vector, bivector, ideal, weight, pseudoscalar = x.split(_PARTS, dim=-1)
        weight = self.point_weight.expand_as(weight) if terms is None else self.point_weight * terms
        blocks = (
            torch.cat([scalar, pseudoscalar], dim=-1),
            vector,
            bivector,
            torch.cat([ideal, weight], dim=-1),
        )
        ends, *middle = (
            (block.flatten(-2) @ matrix).unflatten(-1, (-1, block.shape[-1]))
            for block, matrix in zip(blocks, self._matrices(), strict=True)
        )
        scalar, pseudoscalar = ends.split(1, dim=-1)
        return torch.cat([scalar, *middle, pseudoscalar], dim=-1)

    def _matrices(self) -> list[Tensor]:
        """The map of every block, (C · blades, C' · blades)."""
        weighted = self.weight.unsqueeze(-1) * self.action
        pairs = (weighted.unsqueeze(-1) * self.action.unsqueeze(-2)).flatten(-2)
        entries = pairs @ self.sandwiches
        parts = entries.split([len(block) ** 2 for block in BLOCKS], dim=-1)
        return [
            part.unflatten(-1, (size, size)).permute(1, 3, 0, 2).flatten(2).flatten(0, 1)
            for part, size in zip(parts, map(len, BLOCKS), strict=True)
        ]

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}"


class MultivectorActivation(nn.Module):
    """x ↦ x · σ(⟨a, x⟩ + b), with a and b per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(BLADES)
        self.weight = nn.Parameter(torch.empty(channels, BLADES).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.inner(x) + self.bias).sigmoid().unsqueeze(-1)

    def inner(self, x: Tensor) -> Tensor:
        """⟨a, x⟩, (..., C)"""
        return (x * self.weight).sum(-1)


class GCAMLP(nn.Module):
    """Multivectors (..., in_channels, 16) to (..., out_channels, 16), with `layers` hidden layers.

    On sets, flatten the items into channels; the network then works for one number of items.
    point_weight: what the learned e123 components start with. The released code starts them with
        zero; the points that a new network returns then have weight zero, and the n-body models
        read them as the released code does.

    >>> GCAMLP(4, 4, hidden=8)(torch.randn(64, 4, 16)).shape
    torch.Size([64, 4, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden: int = 128,
        layers: int = 2,
        *,
        point_weight: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = dict(in_channels=in_channels, out_channels=out_channels)
        for name, value in (sizes | dict(hidden=hidden, layers=layers)).items():
            require_count(name, value)
        self.in_channels = in_channels
        widths = [in_channels, *[hidden] * layers, out_channels]
        self.linears = nn.ModuleList(
            ConjugateLinear(n, m, point_weight=point_weight) for n, m in pairwise(widths)
        )
        self.activations = nn.ModuleList(MultivectorActivation(hidden) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = _checked(x, self, ())
        with full_precision(x.device):
            first, *others = self.linears
            x = first(x)
            for activation, linear in zip(self.activations, others, strict=True):
                x = linear(activation(x))
        return x.to(stream_dtype(x.dtype))


class MessagePassing(nn.Module):
    """One step between all pairs of items: (..., N, C, 16) to (..., N, C', 16).

    Both networks have one hidden layer. Pairs of items only need their gates σ, one number per
    channel: the first map is a sum r_i + s_j over receiver and sender, and the last map can follow
    the sum of the messages,

        Σ_j (r_i + s_j) σ_ij = r_i Σ_j σ_ij + Σ_j σ_ij s_j        σ_ij = σ(⟨a, r_i⟩ + ⟨a, s_j⟩ + b)
    """

    def __init__(
        self, channels: int, out_channels: int, messages: int, hidden: int, point_weight: float
    ) -> None:
        super().__init__()
        linear = partial(ConjugateLinear, point_weight=point_weight)
        self.receiver = linear(channels, hidden, fan_in=2 * channels)
        self.sender = linear(channels, hidden, fan_in=2 * channels)
        self.message_activation = MultivectorActivation(hidden)
        self.message = linear(hidden, messages)
        self.own = linear(channels, hidden, fan_in=channels + messages)
        self.received = linear(messages, hidden, fan_in=channels + messages)
        self.update_activation = MultivectorActivation(hidden)
        self.update = linear(hidden, out_channels)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """valid: (..., N, N), True where an item (row) receives from another (column)."""
        receiver, sender = self.receiver(x), self.sender(x)
        activation = self.message_activation
        own, other = activation.inner(receiver) + activation.bias, activation.inner(sender)
        gates = (own.unsqueeze(-2) + other.unsqueeze(-3)).sigmoid() * valid.unsqueeze(-1)
        hidden = receiver * gates.sum(-2).unsqueeze(-1)
        hidden = hidden + torch.einsum("...ijc,...jck->...ick", gates, sender)
        messages = self.message(hidden, terms=valid.sum(-1)[..., None, None])
        hidden = self.update_activation(self.own(x) + self.received(messages))
        return self.update(hidden)  # type: ignore[no-any-return]


class GCAGNN(nn.Module):
    """Message passing among all items of a set: (..., N, in_channels, 16) to (..., N, out_channels,
    16).

    hidden_channels, message_channels: channels of an item between steps, and of a message.
    mlp_channels: channels of the hidden layers within a step.
    point_weight: as in `GCAMLP`.

    >>> GCAGNN(1, 1, 4, 4, 8, steps=2)(torch.randn(64, 5, 1, 16)).shape
    torch.Size([64, 5, 1, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        message_channels: int = 64,
        mlp_channels: int = 128,
        steps: int = 4,
        *,
        point_weight: float = 1.0,
    ) -> None:
        super().__init__()
        counts = dict(
            in_channels=in_channels,
            out_channels=out_channels,
            hidden_channels=hidden_channels,
            message_channels=message_channels,
            mlp_channels=mlp_channels,
            steps=steps,
        )
        for name, value in counts.items():
            require_count(name, value)
        self.in_channels = in_channels
        widths = [in_channels, *[hidden_channels] * (steps - 1), out_channels]
        self.steps = nn.ModuleList(
            MessagePassing(n, m, message_channels, mlp_channels, point_weight)
            for n, m in pairwise(widths)
        )

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
    ) -> Tensor:
        """Multivectors (..., N, in_channels, 16) to (..., N, out_channels, 16).

        mask: (..., N), True for valid items; the others are ignored and their output is zero.
        offsets: (B + 1) for packed sets; x is then (all items, in_channels, 16).
        max_items: size of the largest packed set, if known.
        """
        x = _checked(x, self, ("N",))
        items = x.shape[:-2]
        with full_precision(x.device):
            out = run_on_pairs(
                self._run, [x], items, mask=mask, offsets=offsets, max_items=max_items
            )
        return out.to(stream_dtype(out.dtype))

    def _run(self, inputs: list[Tensor], valid: Tensor) -> Tensor:
        (x,) = inputs
        for step in self.steps:
            x = step(x, valid)
        return x


def _checked(x: Tensor, net: GCAMLP | GCAGNN, axes: tuple[str, ...]) -> Tensor:
    weight = next(net.parameters())
    x = checked(x, weight, (*axes, str(net.in_channels)), BLADES)
    if x.shape[-2] != net.in_channels:
        raise ValueError(
            f"expected multivectors with {net.in_channels} channels, got {tuple(x.shape)}"
        )
    return x
