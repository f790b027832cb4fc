"""A network on random sets, for benchmarks of large sets: a training step without the optimiser.

    zero_grad, forward, mean squared difference to random targets, backward

On a GPU the default `precision` is bfloat16 by autocast; on a CPU it is float32, because the CPU
kernels do not support 16-bit numbers. Shapes: items are (B, N), or (T) for packed sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import GATr, embed_point
from ...algebra import BLADES
from ...config import preset
from ...train.compiled import blocks
from ..baselines.se3_transformer import FusedSE3Transformer
from ..baselines.segnn import SEGNN
from ..baselines.tensor_field import Fiber
from ..baselines.transformer import Transformer


class Sample(NamedTuple):
    """Inputs of a network, its targets, and options of the call."""

    inputs: tuple[Any, ...]
    target: Tensor
    options: dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A network, and a function that draws its inputs and targets."""

    net: nn.Module
    draw: Callable[[tuple[int, ...]], tuple[tuple[Any, ...], Tensor]]
    device: torch.device
    precision: str

    def sample(self, *items: int, **options: Any) -> Sample:
        return Sample(*self.draw(items), options)

    def step(self, sample: Sample) -> None:
        """Compute the gradients of the loss."""
        self.net.zero_grad(set_to_none=True)
        with autocast(self.device, self.precision):
            out = self.net(*sample.inputs, **sample.options)
            out = out[0] if isinstance(out, tuple) else out
            loss = (out - sample.target).square().mean()
        loss.backward()

    def predict(self, sample: Sample) -> None:
        """The forward pass alone, without gradients."""
        with torch.no_grad(), autocast(self.device, self.precision):
            self.net(*sample.inputs, **sample.options)

    def compile(self) -> None:
        """Compile block by block, as the trainer does.

        What was compiled for earlier cases is dropped: torch keeps a few versions of a function
        only, and runs it eagerly after that.
        """
        torch.compiler.reset()
        for block in blocks(self.net):
            block.compile()


Make = Callable[[], Work]


def usual_precision(device: torch.device) -> str:
    return "bfloat16" if device.type == "cuda" else "float32"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Autocast for a captured graph: without a cache, it casts the weights in every step."""
    enabled = precision == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)


def gatr(name: str, device: torch.device, **changes: Any) -> Work:
    """The preset `name` on random points."""
    config = preset(name, **changes)
    net = GATr(config).to(device)
    return multivector_work(net, config.in_mv_channels, config.in_s_channels, device)


def multivector_work(
    net: nn.Module,
    mv_channels: int,
    s_channels: int,
    device: torch.device,
    precision: str | None = None,
) -> Work:
    """A network that maps pairs (mv, s) to one multivector per item."""

    def draw(items: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        points = torch.randn(*items, mv_channels, 3, device=device)
        scalars = torch.randn(*items, s_channels, device=device)
        return (embed_point(points), scalars), torch.randn(*items, 1, BLADES, device=device)

    return Work(net, draw, device, precision or usual_precision(device))


def transformer(sizes: tuple[int, int], device: torch.device, **options: Any) -> Work:
    """The baseline with four heads that share keys and values; `sizes` are the input and output
    channels.
    """
    net = Transformer(*sizes, num_blocks=10, num_heads=4, multi_query=True, **options)
    return feature_work(net.to(device), sizes, device)


def feature_work(net: nn.Module, sizes: tuple[int, int], device: torch.device) -> Work:
    """A network that maps features to features; `sizes` are their numbers."""

    def draw(items: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        features, target = (torch.randn(*items, size, device=device) for size in sizes)
        return (features,), target

    return Work(net, draw, device, usual_precision(device))


def segnn(channels: int, layers: int, device: torch.device, **options: Any) -> Work:
    """SEGNN on all pairs of moving points, with as many scalars as vectors: 4 · `channels` numbers
    per item.
    """
    width = 2 * channels  # SEGNN's measure: a map of its features has width² weights
    net = SEGNN(width, layers, **options).to(device)

    def draw(items: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        position, velocity, target = torch.randn(3, *items, 3, device=device)
        return (position, velocity, torch.randn(*items, device=device)), target

    return Work(net, draw, device, usual_precision(device))


def se3_transformer(channels: int, layers: int, device: torch.device, **options: Any) -> Work:
    """The form for large sets, on all pairs of points with four scalars and four vectors each; it
    has 4 · `channels` numbers per item, and six heads.
    """
    fiber = Fiber(4, 0, 1)
    net = FusedSE3Transformer(
        fiber, fiber, channels, 1, layers, 6, div=2, edge_channels=0, **options
    ).to(device)

    def draw(items: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        features, target = torch.randn(2, *items, 4, fiber.components, device=device)
        return (features, torch.randn(*items, 3, device=device)), target

    return Work(net, draw, device, usual_precision(device))
