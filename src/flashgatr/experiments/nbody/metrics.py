"""Errors of predicted positions, per system: a few near-collisions dominate their mean."""

from __future__ import annotations

from torch import Tensor


def system_errors(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error per coordinate of every system: (N, n, 3) to (N), float64."""
    return (prediction.double() - target.double()).square().mean((-2, -1))


def summarise(errors: Tensor) -> dict[str, float]:
    """Mean, median, 90 % quantile, and the mean without the worst 1 % of the systems."""
    ordered = errors.double().sort().values
    kept = max(1, int(len(ordered) * 0.99))
    return {
        "mse": ordered.mean().item(),
        "median": ordered.median().item(),
        "q90": ordered.quantile(0.9).item(),
        "trimmed": ordered[:kept].mean().item(),
        "systems": len(ordered),
    }
