"""data.options of the experiment: how many points and anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...train.settings import ConfigError, check_options, read_options


@dataclass(frozen=True)
class Options:
    """data.options of the experiment.

    lumen_anchors, wall_anchors: all points of a vessel attend to this many of its lumen and of its
        wall, which are chosen again in every step
    lumen_points, wall_points: train on this many other points, drawn again in every step
    anchor_method: how anchors are chosen, see `choose_anchors`
    augment: training vessels are turned at random in every step
    points: read the first of each kind of points only (0: all)
    val_points, test_points: validate and test on the first of each kind of points only (0: all)
    val_limit, test_limit: use the first vessels only (0: all)
    """

    lumen_anchors: int = 512
    wall_anchors: int = 512
    lumen_points: int = 512
    wall_points: int = 512
    anchor_method: Literal["farthest", "random", "medoids"] = "medoids"
    augment: bool = False
    points: int = 0
    val_points: int = 20_000
    test_points: int = 0
    val_limit: int = 0
    test_limit: int = 0

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        return read_options(cls, values)

    def __post_init__(self) -> None:
        names = ("lumen_anchors", "wall_anchors", "lumen_points", "wall_points")
        check_options(self, **dict.fromkeys(names, 1))
        for name in ("points", "val_points", "test_points"):
            value, least = getattr(self, name), max(self.anchors)
            if 0 < value < least:
                raise ConfigError(
                    f"data.options.{name} must be at least the number of anchors, {least}, or 0 "
                    f"for all points, got {value}"
                )

    @property
    def anchors(self) -> tuple[int, int]:
        """How many anchors there are of the lumen and of the wall."""
        return self.lumen_anchors, self.wall_anchors
