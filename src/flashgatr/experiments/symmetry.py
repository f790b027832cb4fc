"""How far is a model f from the symmetry of its experiment?

    error = max |f(g x) - g f(x)| / max |f(x)|      over samples x and random motions g

f(x) are the vectors that are predicted; for positions how far they are from where they began, so
that their distance from the origin does not hide an error. Motions are applied in float64, and
their results are rounded. The error is of rounding size for an equivariant model, and of the order
of one for a model without the symmetry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .. import versors

DRAWS = 4
"""Random motions of a measurement, always the same ones."""


class Symmetry(Protocol):
    """The function behind `Experiment.symmetry`, which measures on a few samples of the task's
    evaluation or validation data.
    """

    def __call__(self, task: Any, model: nn.Module, dtype: torch.dtype) -> float | None:
        """The error of a model in evaluation mode whose weights have this dtype; None if the
        symmetry does not concern this model.
        """


def motions() -> Tensor:
    """Rotations followed by shifts, as matrices (DRAWS, 4, 4) in float64; shifts have a standard
    deviation of one unit of length along each axis.
    """
    generator = torch.Generator().manual_seed(0)
    return versors.to_matrix(versors.sample(DRAWS, kind="SE(3)", generator=generator))


def turned(motion: Tensor, x: Tensor) -> Tensor:
    """Vectors R x, computed in float64 and rounded to the dtype of x."""
    return (x.double() @ motion[:3, :3].to(x.device).mT).to(x.dtype)


def moved(motion: Tensor, x: Tensor) -> Tensor:
    """Points R x + t, computed in float64 and rounded to the dtype of x."""
    return (turned(motion, x.double()) + motion[:3, 3].to(x.device)).to(x.dtype)


@torch.no_grad()
def equivariance_error(
    predicted: Callable[[Tensor], Tensor],
    every: Tensor,
    turn: Callable[[Tensor, Tensor], Tensor] = turned,
) -> float:
    """The error over all motions of `every`. predicted(g) is f(g x); turn(g, y) is g y."""
    still = predicted(torch.eye(every.shape[-1], dtype=every.dtype)).double()
    differences = [(predicted(g).double() - turn(g, still)).abs().amax() for g in every]
    error = float(torch.stack(differences).amax() / still.abs().amax())
    if not error < float("inf"):
        raise ValueError("the predictions are not finite, or all zero")
    return error
