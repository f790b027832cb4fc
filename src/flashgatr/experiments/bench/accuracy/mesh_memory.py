"""Memory that networks on all pairs of items would need for an artery mesh, which does not fit.

The paper says of SEGNN and the SE(3)-Transformer that they did not fit into memory on this task.
Their memory grows with the number of pairs,

    m(N) = a + b · B · N²        B sets of N items,

and a and b follow from the two largest N that were measured. A mesh is one set. This is an
extrapolation, by about a factor of 100 in N².
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..page import of_last_machine
from ..scaling import ON_PAIRS

VERTICES = 7000
"""Of the paper's meshes, about."""


class MeshMemory(NamedTuple):
    """The extrapolation for one network."""

    model: str
    checkpointing: bool
    measured: tuple[int, int]
    """The two numbers of items that it is based on."""
    bytes_per_pair: float
    gibibytes: float
    """For forward and backward on one mesh."""


def extrapolate(source: Path, vertices: int = VERTICES) -> list[MeshMemory]:
    """For every network on pairs that was measured at two numbers of items or more, on the last
    machine.
    """
    lines = of_last_machine(source)
    return [
        found
        for model in ON_PAIRS
        for checkpointing in (False, True)
        if (found := _of_network(lines, model, checkpointing, vertices)) is not None
    ]


def _of_network(
    lines: Iterable[dict[str, Any]], model: str, checkpointing: bool, vertices: int
) -> MeshMemory | None:
    points: dict[int, tuple[int, float]] = {}
    for line in lines:
        settings = line["settings"]
        if (line["model"], line["metric"]) != (model, "memory"):
            continue
        if settings["checkpointing"] == checkpointing:
            points[settings["n_items"]] = settings["batch"], 2**20 * line["value"]
    if len(points) < 2:
        return None
    (n, (batch, fewer)), (m, (_, more)) = sorted(points.items())[-2:]
    slope = (more - fewer) / (batch * (m**2 - n**2))
    offset = more - slope * batch * m**2
    return MeshMemory(model, checkpointing, (n, m), slope, (offset + slope * vertices**2) / 2**30)
