"""data.options of the experiment: which data, and how training systems are changed at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...train.settings import ConfigError, check_options, read_options
from .data import data_name


@dataclass(frozen=True)
class Options:
    """data.options of the experiment.

    force, clip: which data: "charges" with forces limited per "coordinate" (as published) or by
        their "norm", or "gravity" (of which `clip` says nothing)
    horizon: number of steps between input and target
    flip_charges: reverse all charges of a training system at random in every step, which leaves its
        motion as it is
    rotate: turn training systems at random in every step
    reverse_time: train on every system a second time, from its target back to its input; this takes
        velocities at the target, which other methods do not use
    test: evaluate on the test systems at the end; otherwise on the validation systems, to compare
        settings
    """

    force: Literal["charges", "gravity"] = "charges"
    clip: Literal["coordinate", "norm"] = "coordinate"
    horizon: int = 1000
    flip_charges: bool = False
    rotate: bool = False
    reverse_time: bool = False
    test: bool = True

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        return read_options(cls, values)

    def __post_init__(self) -> None:
        check_options(self, horizon=1)
        if self.flip_charges and self.force == "gravity":
            raise ConfigError(
                "data.options.flip_charges needs charges, but data.options.force is gravity"
            )

    @property
    def data(self) -> str:
        """The name of the data."""
        return data_name(self.force, self.clip if self.force == "charges" else "none")
