"""A trained artery model on anchors: a few nodes of a wall that all its nodes attend to.

The model keeps its parameters. Its time is proportional to nodes times anchors, and the nodes are
computed in tiles, so that a wall may have millions of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...anchored import TILE, AnchoredGATr, Progress
from ...anchors import METHODS, cell_weights, choose_anchors
from ...model import GATr
from .data.mesh import ArteryError
from .models import GATrArteries, opposite, stress_of

CPU_TILE = 8192
"""Nodes that a CPU computes at a time."""


@dataclass(frozen=True)
class AnchorChoice:
    """How many anchors a wall gets, and which: see `choose_anchors` and `cell_weights`.

    A wall with fewer nodes has all of them as anchors.
    """

    count: int
    method: Literal["farthest", "random", "medoids"] = "medoids"
    weighted: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ArteryError(f"the number of anchors must be at least 1, got {self.count}")
        if self.method not in METHODS:
            raise ArteryError(
                f"anchors are chosen by {', '.join(METHODS)}; got method {self.method!r}"
            )

    def __str__(self) -> str:
        weights = "weighted by their nodes" if self.weighted else "without weights"
        return f"{self.count} nodes ({self.method}), {weights}, seed {self.seed}"

    def on(
        self,
        position: Tensor,
        *,
        mask: Tensor | None = None,
        seed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The numbers of the anchors among these nodes (..., N, 3), and their weights.

        seed: used instead of the choice's own.
        """
        count = min(self.count, position.shape[-2])
        about: dict[str, Any] = dict(method=self.method, mask=mask)
        index = choose_anchors(position, count, seed=self.seed if seed is None else seed, **about)
        return index, cell_weights(position, index, mask=mask) if self.weighted else None


class GivenAnchors(NamedTuple):
    """The anchors of one wall, chosen before: copies of the wall elsewhere keep them."""

    numbers: Tensor
    weights: Tensor | None

    def on(self, position: Tensor) -> tuple[Tensor, Tensor | None]:
        """These numbers and weights on the device of the nodes."""
        weights = None if self.weights is None else self.weights.to(position.device)
        return self.numbers.to(position.device), weights


def anchored(model: nn.Module) -> GATrArteries:
    """The model, whose network now takes anchors; an error for models without such a network."""
    if not isinstance(model, GATrArteries) or type(model.net) not in (GATr, AnchoredGATr):
        name = type(getattr(model, "net", model)).__name__
        raise ArteryError(
            f"anchors are for models with a GATr inside, whose nodes can attend to a few of them; "
            f"this one is {name}: leave the anchors out"
        )
    if not isinstance(model.net, AnchoredGATr):
        model.net = AnchoredGATr.from_gatr(model.net)
    return model


@torch.no_grad()
def predict_wall(
    model: nn.Module,
    position: Tensor,
    normal: Tensor,
    geodesic: Tensor,
    choice: AnchorChoice | GivenAnchors,
    *,
    tile: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The stress (N, 3) at all nodes of one wall, in the units of the model.

    tile: nodes that are computed at a time; by default what suits the device.
    """
    model = anchored(model)
    net = model.net
    assert isinstance(net, AnchoredGATr)
    tile = tile or min(TILE if position.is_cuda else CPU_TILE, max(len(position), 1))
    index, weights = choice.on(position)
    if net.config.recenter:  # as in `GATrArteries.forward`, about the anchors
        position = position - position[index].mean(0)
    columns = torch.cat([position, normal, geodesic[:, None]], dim=-1)  # (N, 7)
    passes, embedded = 1 + model.both_signs, model.embedded

    def embed(sign: int, columns: Tensor) -> tuple[Tensor, Tensor]:
        position, normal, geodesic = columns.split([3, 3, 1], dim=-1)
        mv, s = embedded(position, normal, geodesic[:, 0])
        return (opposite(mv) if sign else mv), s

    def report(sign: int, done: int, total: int) -> None:
        if progress is not None:
            progress(sign * total + done, passes * total)

    found = []
    for sign in range(passes):
        state = net.encode(*embed(sign, columns[index]), weights=weights)
        field = net.field(
            state,
            partial(embed, sign),
            extract=stress_of,
            tile=tile,
            progress=partial(report, sign),
        )
        found.append(field(columns))
    return torch.stack(found).mean(0)
