"""SE(3)-Transformer (Fuchs et al., 2020): attention over features of degrees 0 to ℓ.

    q_i = A f_i        k_ij, v_ij = convolutions of f_j        (see tensor_field.py)
    α_ij = softmax_j ⟨q_i, k_ij⟩ / √(numbers in a key)         over all other items of the sample
    f_i ← nonlinearity(P [Σ_j α_ij v_ij ; f_i])

It is equivariant under rotations, translations and permutations, and not under mirrors. Every pair
of items has its own kernel, so time and memory grow with the square of the number of items.

`SE3Transformer` is the authors' network for n bodies. `FusedSE3Transformer` is the form that NVIDIA
published: one radial network per convolution, norms normalised over channels, and a convolution
instead of attention at the end.
Shapes: N items, C channels, S components of all degrees, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...precision import full_precision
from ...recomputation import recomputed
from .checks import Linear, checked, require_bool, require_count
from .fully_connected import run_on_pairs
from .tensor_field import (
    Basis,
    Convolution,
    DegreeLinear,
    Fiber,
    FusedRadial,
    NormBias,
    NormLayerNorm,
    Pairs,
    PairwiseRadial,
)
from .wigner import length


class ConcatenatedMix(nn.Module):
    """P [z ; f]: a linear map per degree of the channels of both, where f has the degree."""

    def __init__(self, attended: Fiber, fiber: Fiber, out: Fiber) -> None:
        super().__init__()
        self.shared, self.own, self.out = fiber.shared(out), fiber, out
        fan_in = {
            degree: attended.channels + fiber.channels * (degree in fiber.degrees)
            for degree in out.degrees
        }
        self.from_attended = DegreeLinear(attended, out.channels, fan_in)
        self.from_features = DegreeLinear(self.shared, out.channels, fan_in)

    def forward(self, attended: Tensor, x: Tensor) -> Tensor:
        kept = self.from_features(x[..., self.own.place(self.shared)])
        place = self.out.place(self.shared)
        room = (place.start, self.out.components - place.stop)
        return self.from_attended(attended) + F.pad(kept, room)  # type: ignore[no-any-return]


class AttentiveMix(nn.Module):
    """Mix the channels of [z ; f], for a single output degree, with weights that depend on them.

    weights = softmax(Linear(LeakyReLU(LayerNorm(all inner products))))     over inputs
    """

    def __init__(self, attended: Fiber, fiber: Fiber, out: Fiber) -> None:
        super().__init__()
        if attended.lowest != attended.highest:
            raise ValueError(
                "the attentive mix is for features of one degree, got degrees "
                f"{attended.lowest} to {attended.highest}"
            )
        self.place = fiber.place(attended)
        channels = attended.channels + fiber.channels
        self.shape = out.channels, channels
        self.norm = nn.LayerNorm(channels**2)
        self.linear = Linear(channels**2, out.channels * channels)
        nn.init.kaiming_uniform_(self.linear.weight)

    def forward(self, attended: Tensor, x: Tensor) -> Tensor:
        both = torch.cat([attended, x[..., self.place]], dim=-2)
        with full_precision(x.device):
            products = (both @ both.mT).flatten(-2).to(self.norm.weight.dtype)
            logits: Tensor = self.linear(F.leaky_relu(self.norm(products)))
            weights = torch.softmax(logits.to(x.dtype).unflatten(-1, self.shape), dim=-1)
            return weights @ both


class AttentionBlock(nn.Module):
    """Attention of every item to all others, mixed with the item's own features."""

    def __init__(
        self,
        fiber: Fiber,
        out: Fiber,
        radial: type[PairwiseRadial | FusedRadial],
        mix: type[ConcatenatedMix | AttentiveMix],
        *,
        div: int,
        num_heads: int,
        edge_channels: int,
        add_position: bool,
        checkpoint: bool,
    ) -> None:
        super().__init__()
        values = Fiber(out.channels // div, out.lowest, out.highest)
        self.keys = values.shared(fiber)
        if values.channels % num_heads:
            raise ValueError(
                f"{values.channels} channels of values cannot be divided among {num_heads} heads; "
                "they are the output's channels divided by div"
            )
        self.fiber, self.num_heads, self.checkpoint = fiber, num_heads, checkpoint
        self.scale = 1 / math.sqrt(self.keys.channels * self.keys.components)
        self.convolution = Convolution(
            fiber,
            (values, self.keys),
            radial,
            edge_channels=edge_channels,
            add_position=add_position,
        )
        self.query = DegreeLinear(self.keys._replace(channels=fiber.channels), self.keys.channels)
        self.mix = mix(values, fiber, out)

    def forward(self, x: Tensor, pairs: Pairs) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self._attend(x, pairs)

        return self.mix(recomputed(self.checkpoint, attend, x), x)  # type: ignore[no-any-return]

    def _attend(self, x: Tensor, pairs: Pairs) -> Tensor:
        values, keys = self.convolution(x, pairs)
        queries = self.query(x[..., self.fiber.place(self.keys)])
        products = (queries.unsqueeze(-3) * keys).unflatten(-2, (self.num_heads, -1))
        logits = self.scale * products.sum((-2, -1))  # (..., N, N, H)
        valid = pairs.valid.unsqueeze(-1)
        lowest = torch.finfo(logits.dtype).min
        # An item without others has no valid pair: equal weights, which the second mask removes.
        weights = torch.where(valid, logits, lowest).softmax(-2) * valid
        values = values.unflatten(-2, (self.num_heads, -1))
        with full_precision(x.device):
            return torch.einsum("...ijh,...ijhcs->...ihcs", weights, values).flatten(-3, -2)


class SE3Transformer(nn.Module):
    """Sets of features with positions to features, equivariant under SE(3).

    fiber_in, fiber_out: channels and degrees of the features.
    hidden_channels, max_degree: hidden features have these channels of degrees 0 to max_degree.
    div: keys and values have hidden_channels / div channels.
    edge_channels: number of charges per item; the kernel of a pair sees their products.
    checkpoint: recompute what concerns pairs in the backward pass to save memory.

    >>> vector, two_vectors = Fiber(1, 1, 1), Fiber(2, 1, 1)
    >>> net = SE3Transformer(vector, two_vectors, num_layers=1, max_degree=1)
    >>> net(torch.randn(8, 5, 1, 3), torch.randn(8, 5, 3), torch.rand(8, 5, 1)).shape
    torch.Size([8, 5, 2, 3])
    """

    radial: type[PairwiseRadial | FusedRadial] = PairwiseRadial
    nonlinearity: type[NormBias | NormLayerNorm] = NormBias

    def __init__(
        self,
        fiber_in: Fiber,
        fiber_out: Fiber,
        hidden_channels: int = 8,
        max_degree: int = 3,
        num_layers: int = 4,
        num_heads: int = 1,
        *,
        div: int = 4,
        edge_channels: int = 1,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        counts = dict(
            hidden_channels=hidden_channels, num_layers=num_layers, num_heads=num_heads, div=div
        )
        for name, value in counts.items():
            require_count(name, value)
        require_count("max_degree", max_degree, least=0)
        require_count("edge_channels", edge_channels, least=0)
        require_bool("checkpoint", checkpoint)
        hidden = Fiber(hidden_channels, 0, max_degree)
        for name, fiber in (("fiber_in", fiber_in), ("fiber_out", fiber_out)):
            _check_fiber(name, fiber, max_degree)
        if hidden_channels < div:
            raise ValueError(
                f"keys and values have hidden_channels / div channels, got {hidden_channels} / "
                f"{div}; use at least {div} hidden_channels"
            )
        self.fiber_in, self.edge_channels, self.checkpoint = fiber_in, edge_channels, checkpoint
        self.basis = Basis(max_degree)
        fibers = [fiber_in, *[hidden] * num_layers]
        self.blocks = nn.ModuleList(
            self._block(fiber, hidden, ConcatenatedMix, div, num_heads) for fiber in fibers[:-1]
        )
        self.nonlinearities = nn.ModuleList(self.nonlinearity(hidden) for _ in self.blocks)
        self.last = self._last(hidden, fiber_out, num_heads)

    def _block(
        self,
        fiber: Fiber,
        out: Fiber,
        mix: type[ConcatenatedMix | AttentiveMix],
        div: int,
        num_heads: int,
    ) -> AttentionBlock:
        return AttentionBlock(
            fiber,
            out,
            self.radial,
            mix,
            div=div,
            num_heads=num_heads,
            edge_channels=self.edge_channels,
            add_position=self._adds_position(fiber),
            checkpoint=self.checkpoint,
        )

    def _adds_position(self, fiber: Fiber) -> bool:
        """Whether senders' vectors include the relative position: if there are several of them."""
        return 1 in fiber.degrees and fiber.channels > 1

    def _last(self, fiber: Fiber, out: Fiber, num_heads: int) -> nn.Module:
        mix = AttentiveMix if out.lowest == out.highest else ConcatenatedMix
        return self._block(fiber, out, mix, 1, min(num_heads, out.channels))

    def forward(
        self,
        features: Tensor,
        position: Tensor,
        charges: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        offsets: Tensor | None = None,
        max_items: int | None = None,
    ) -> Tensor:
        """Features (..., N, C, S) at positions (..., N, 3) to features (..., N, C', S').

        charges: (..., N, edge_channels), numbers that do not change under rotations.
        mask: (..., N), True for valid items; the others are ignored and their output is zero.
        offsets: (B + 1) for packed sets; the first axis of all inputs then holds all items.
        max_items: size of the largest packed set, if known.
        """
        inputs = self._checked(features, position, charges)
        items = inputs[0].shape[:-2]
        return run_on_pairs(
            self._run, inputs, items, mask=mask, offsets=offsets, max_items=max_items
        )

    def _run(self, inputs: list[Tensor], valid: Tensor) -> Tensor:
        x, position, charges = inputs
        pairs = self._pairs(position, charges, valid)
        for block, nonlinearity in zip(self.blocks, self.nonlinearities, strict=True):
            x = nonlinearity(block(x, pairs))
        return self.last(x, pairs)  # type: ignore[no-any-return]

    def _pairs(self, position: Tensor, charges: Tensor, valid: Tensor) -> Pairs:
        vectors = position.unsqueeze(-2) - position.unsqueeze(-3)
        products = charges.unsqueeze(-2) * charges.unsqueeze(-3)
        invariants = torch.cat([products, length(vectors)], dim=-1)
        return Pairs(valid, vectors, invariants, self.basis(vectors))

    def _checked(self, features: Tensor, position: Tensor, charges: Tensor | None) -> list[Tensor]:
        weight = next(self.parameters())
        position = checked(position, weight, ("N",), 3)
        if charges is None:
            charges = position.new_zeros(*position.shape[:-1], 0)
        charges = checked(charges, weight, ("N",), self.edge_channels)
        channels, components = self.fiber_in.channels, self.fiber_in.components
        features = checked(features, weight, ("N", str(channels)), components)
        items = position.shape[:-1]
        if features.shape[:-1] != (*items, channels) or charges.shape[:-1] != items:
            raise ValueError(
                f"features must be {(*items, channels, components)} and charges "
                f"{(*items, self.edge_channels)} for positions {tuple(position.shape)}, got "
                f"{tuple(features.shape)} and {tuple(charges.shape)}"
            )
        return [features, position, charges]

    def __repr__(self) -> str:
        hidden = self.basis.fiber
        parameters = sum(p.numel() for p in self.parameters())
        return (
            f"{type(self).__name__}({len(self.blocks)} layers of degrees 0 to {hidden.highest}, "
            f"{parameters:,} parameters)"
        )


class FinalConvolution(nn.Module):
    """Sum of the messages of all other items, and a linear map of the item's own features."""

    def __init__(self, fiber: Fiber, out: Fiber, *, edge_channels: int, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.place = fiber.place(out)
        self.convolution = Convolution(fiber, (out,), FusedRadial, edge_channels=edge_channels)
        self.own = DegreeLinear(out._replace(channels=fiber.channels), out.channels)

    def forward(self, x: Tensor, pairs: Pairs) -> Tensor:
        def gather(x: Tensor) -> Tensor:
            (messages,) = self.convolution(x, pairs)
            return torch.where(pairs.valid[..., None, None], messages, 0).sum(-3)

        own: Tensor = self.own(x[..., self.place])
        return own + recomputed(self.checkpoint, gather, x)


class FusedSE3Transformer(SE3Transformer):
    """The form for large sets: one radial network per convolution and a convolution at the end."""

    radial = FusedRadial
    nonlinearity = NormLayerNorm

    def _adds_position(self, fiber: Fiber) -> bool:
        return False

    def _last(self, fiber: Fiber, out: Fiber, num_heads: int) -> nn.Module:
        return FinalConvolution(
            fiber, out, edge_channels=self.edge_channels, checkpoint=self.checkpoint
        )


def _check_fiber(name: str, fiber: Fiber, max_degree: int) -> None:
    for part, value in fiber._asdict().items():
        require_count(f"{name}.{part}", value, least=1 if part == "channels" else 0)
    if not fiber.lowest <= fiber.highest <= max_degree:
        raise ValueError(
            f"{name} must have degrees between 0 and max_degree={max_degree}, got {fiber.lowest} "
            f"to {fiber.highest}"
        )
