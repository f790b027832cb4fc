"""Errors of predicted flows: ε = √( Σᵢ ‖ŷᵢ - yᵢ‖² / Σᵢ ‖yᵢ‖² ) of a vessel, in %, then their mean.

The sums are over the points that count, of the lumen (velocity) or of the wall (stress).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .vessels import points_of

NAMES = "epsilon_velocity", "epsilon_stress"
"""By kind: 0 in the lumen, 1 on the wall."""
TINY = 1e-12


def errors(prediction: Tensor, rows: Tensor) -> dict[str, float]:
    """ε of one vessel, by name: predictions (N, 3) at rows (N, 12)."""
    points = points_of(rows)
    found = {}
    for kind, name in enumerate(NAMES):
        chosen = points.mask & (points.kind == kind)
        if not bool(chosen.any()):
            raise ValueError("a vessel has no point that counts, so there is nothing to measure")
        true = points.target[chosen].double()
        gap = (prediction[chosen].double() - true).square().sum()
        found[name] = 100 * float((gap / true.square().sum().clamp(min=TINY)).sqrt())
    return found


def summarise(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The means over vessels, and how many there are."""
    means = {name: torch.tensor([x[name] for x in found]).mean().item() for name in NAMES}
    return means | {"vessels": len(found)}
