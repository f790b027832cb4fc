"""Facts about a run that its results on test meshes tell."""

from __future__ import annotations

import math

from ...report.protocol import Run


def configured_orientation(run: Run) -> str:
    """The orientations that the run's settings ask for."""
    return str(run.config.data.options.get("orientation", "random"))


def tested_orientation(run: Run) -> str:
    """The orientations of the meshes that the run was tested on."""
    found = run.summary["results"]["test"].get("orientation")
    return found if isinstance(found, str) else configured_orientation(run)


def is_synthetic(run: Run) -> bool:
    """Whether it was tested on vessels that flashgatr made."""
    return run.summary["results"]["test"].get("synthetic") is True


def error_per_mesh(run: Run) -> dict[str, float]:
    """ε of every test mesh, by its name."""
    found = run.summary["results"]["test"].get("per_mesh", {})
    if not isinstance(found, dict):
        return {}
    return {str(k): float(x) for k, x in found.items() if isinstance(x, int | float)}


def mean_error(run: Run) -> float:
    """Mean ε over the test meshes; infinite if it is not finite."""
    error = run.results["test"]["epsilon_mean"]
    return error if math.isfinite(error) else math.inf
