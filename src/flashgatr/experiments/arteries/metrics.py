"""Errors of predicted wall shear stress: of each mesh over its masked nodes, then over meshes.

    ε    = √( Σᵢ ‖ŷᵢ - yᵢ‖² / Σᵢ ‖yᵢ‖² )     the paper reports the mean over test meshes, in %
    NMAE = meanᵢ ‖ŷᵢ - yᵢ‖ / M                M: the largest ‖y‖ over all nodes of all meshes

Everything is computed in float64. Errors are in dyn/cm², like the labels; ε and NMAE are in %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-12
"""Avoids division by zero on walls without stress."""


@dataclass(frozen=True)
class MeshErrors:
    """The errors on one mesh."""

    epsilon: float  # in %
    mean_error: float
    max_error: float
    cosine: float
    """Mean cosine of the angle between prediction and label."""
    largest: float
    """Largest ‖y‖ of all nodes."""


def mesh_errors(prediction: Tensor, target: Tensor, mask: Tensor) -> MeshErrors:
    """Errors on one mesh: prediction and target (N, 3) in dyn/cm², mask (N)."""
    if not bool(mask.any()):
        raise ValueError("a mesh has no node in its mask, so there is nothing to measure on it")
    largest = target.double().norm(dim=-1).max().item()
    found, true = prediction.double()[mask], target.double()[mask]
    distance = (found - true).norm(dim=-1)
    size = true.norm(dim=-1)
    cosine = (found * true).sum(-1) / (found.norm(dim=-1) * size).clamp(min=TINY)
    epsilon = distance.square().sum() / size.square().sum().clamp(min=TINY)
    return MeshErrors(
        epsilon=100 * epsilon.sqrt().item(),
        mean_error=distance.mean().item(),
        max_error=distance.max().item(),
        cosine=cosine.mean().item(),
        largest=largest,
    )


def summarise(errors: Sequence[MeshErrors]) -> dict[str, float]:
    """Mean, median and 75 % quantile of ε over meshes, and the means of the other errors."""
    if not errors:
        raise ValueError("there are no meshes to summarise")
    epsilon = torch.tensor([e.epsilon for e in errors], dtype=torch.float64)
    mean_error = sum(e.mean_error for e in errors) / len(errors)
    largest = max(max(e.largest for e in errors), TINY)
    return {
        "epsilon_mean": epsilon.mean().item(),
        "epsilon_median": epsilon.quantile(0.5).item(),
        "epsilon_q75": epsilon.quantile(0.75).item(),
        "nmae": 100 * mean_error / largest,
        "mean_error": mean_error,
        "max_error": sum(e.max_error for e in errors) / len(errors),
        "cosine": sum(e.cosine for e in errors) / len(errors),
        "meshes": len(errors),
    }


def relative_change(found: Tensor, before: Tensor) -> float:
    """‖found - before‖ / ‖before‖ over all nodes of a mesh."""
    found, before = found.double(), before.double()
    return float((found - before).norm() / before.norm().clamp(min=TINY))
