"""Facts about a run that its results on test meshes tell; of a run without a test, those on
validation meshes.
"""

from __future__ import annotations

import math
from typing import Any

from ...report.protocol import Run


def last_set(run: Run) -> str:
    """The set on which the run ended: `test`, or `val` if it compares settings."""
    return "test" if "test" in run.results else "val"


def _told(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.summary["results"][last_set(run)]
    return found


def configured_orientation(run: Run) -> str:
    """The orientations that the run's settings ask for."""
    return str(run.config.data.options.get("orientation", "random"))


def tested_orientation(run: Run) -> str:
    """The orientations of the meshes that the run was tested on."""
    found = _told(run).get("orientation")
    return found if isinstance(found, str) else configured_orientation(run)


def is_synthetic(run: Run) -> bool:
    """Whether it was tested on vessels that flashgatr made."""
    return _told(run).get("synthetic") is True


def error_per_mesh(run: Run) -> dict[str, float]:
    """ε of every mesh of the last set, by its name."""
    found = _told(run).get("per_mesh", {})
    if not isinstance(found, dict):
        return {}
    return {str(k): float(x) for k, x in found.items() if isinstance(x, int | float)}


def mean_error(run: Run) -> float:
    """Mean ε over the meshes of the last set; infinite if it is not finite."""
    error = run.results[last_set(run)]["epsilon_mean"]
    return error if math.isfinite(error) else math.inf
