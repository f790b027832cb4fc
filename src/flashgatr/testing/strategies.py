"""Hypothesis strategies for property tests: versors, multivectors, point clouds.

Public through `flashgatr.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algebra import BLADES
from ..versors import Kind, sample, to_matrix

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def versors(kind: Kind = "E(3)", distance: float = 10.0) -> SearchStrategy[Tensor]:
    """Hypothesis strategy: versors (16), float64, of the given kind."""
    st = _hypothesis()

    def draw(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return sample(kind=kind, distance=distance, generator=generator)

    strategy: SearchStrategy[Tensor] = st.builds(draw, st.integers(0, 2**31 - 1))
    return strategy


def multivectors(*shape: int, scale: float = 1.0) -> SearchStrategy[Tensor]:
    """Hypothesis strategy: multivectors (*shape, 16), float64, normally distributed, some of them
    partly zero.
    """
    st = _hypothesis()

    def draw(seed: int, density: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(*shape, BLADES, generator=generator, dtype=torch.float64)
        kept = torch.rand(*shape, BLADES, generator=generator, dtype=torch.float64) < density
        return scale * torch.where(kept, values, 0)

    densities = st.sampled_from([1.0, 0.5, 0.2])
    strategy: SearchStrategy[Tensor] = st.builds(draw, st.integers(0, 2**31 - 1), densities)
    return strategy


def point_clouds(items: int = 6, distance: float = 10.0) -> SearchStrategy[Tensor]:
    """Hypothesis strategy: points (items, 3), float64, often degenerate.

    Kinds: generic, coplanar, collinear, coincident, partly coincident, all at the origin. All but
    the last are moved away from the origin by about `distance`.
    """
    st = _hypothesis()

    def draw(seed: int, kind: str) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(items, 3, generator=generator, dtype=torch.float64)
        if kind == "origin":
            return torch.zeros_like(points)
        kept = {"coplanar": 2, "collinear": 1, "coincident": 0}.get(kind, 3)
        points[:, kept:] = 0
        if kind == "partly coincident":
            points[items // 2 :] = points[: items - items // 2].clone()
        frame = to_matrix(sample(kind="SE(3)", distance=distance, generator=generator))
        return points @ frame[:3, :3].mT + frame[:3, 3]

    kinds = ["generic", "coplanar", "collinear", "coincident", "partly coincident", "origin"]
    chosen = st.sampled_from(kinds)
    strategy: SearchStrategy[Tensor] = st.builds(draw, st.integers(0, 2**31 - 1), chosen)
    return strategy


def _hypothesis() -> Any:
    try:
        from hypothesis import strategies
    except ImportError as error:
        raise ImportError("strategies need hypothesis: pip install hypothesis") from error
    return strategies
