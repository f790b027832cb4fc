"""The demonstrations of a folder, divided into sets for training, validation and test."""

from __future__ import annotations

from pathlib import Path

from ....train.settings import ConfigError
from .shards import read
from .stream import Demonstration


def divided(
    folder: Path, held_out: int, limit: int | None = None
) -> dict[str, list[Demonstration]]:
    """The sets "train" (the first `limit`, or all), "validation" and "test".

    held_out: the last demonstrations of the folder, one half for validation, one for the test.
    """
    every = read(folder)
    most = len(every) - held_out
    train = limit or most
    if not 0 < train <= most:
        raise ConfigError(
            f"{folder} holds {len(every)} demonstrations, of which data.options.held_out = "
            f"{held_out} are for validation and test; {max(train, 1)} are needed for training; "
            "make more, or change one of the numbers"
        )
    half = len(every) - held_out // 2
    return {"train": every[:train], "validation": every[most:half], "test": every[half:]}
