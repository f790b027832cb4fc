"""The demonstrations of a folder, divided into sets for training, validation and test."""

from __future__ import annotations

from pathlib import Path

from ....train.settings import ConfigError
from .shards import COMMAND, MANIFEST, describe, read
from .stream import Demonstration


def divided(
    folder: Path, held_out: int, limit: int | None = None
) -> dict[str, list[Demonstration]]:
    """The sets "train" (the first `limit`, or all), "validation" and "test".

    held_out: the last demonstrations of the folder, one half for validation, one for the test.
    """
    every = read(folder)
    most = len(every) - held_out
    train = _train_size(folder, len(every), held_out, limit)
    half = len(every) - held_out // 2
    return {"train": every[:train], "validation": every[most:half], "test": every[half:]}


def exist(folder: Path) -> bool:
    """Whether a folder holds demonstrations, complete or damaged."""
    return (folder / MANIFEST).exists()


def require_enough(folder: Path, held_out: int, limit: int | None = None) -> None:
    """An error if a folder has too few demonstrations for the sets; none of them is read."""
    _train_size(folder, describe(folder).count, held_out, limit)


def _train_size(folder: Path, count: int, held_out: int, limit: int | None) -> int:
    """The number of demonstrations for training, of `count` in a folder."""
    most = count - held_out
    train = limit or most
    if not 0 < train <= most:
        wanted = max(train, 1)
        raise ConfigError(
            f"{folder} holds {count:,} demonstrations, of which data.options.held_out = "
            f"{held_out} are for validation and test; {wanted:,} are needed for training; make "
            f"{wanted + held_out:,} with `{COMMAND} --demonstrations {wanted + held_out}`, or "
            "change one of the numbers"
        )
    return train
