"""The demonstrations of a folder, divided into sets for training, validation and test.

A folder holds the expert's demonstrations, made by `flashgatr data kuka`, or the published files
data_NUMBER.npy of Janner et al.
"""

from __future__ import annotations

from pathlib import Path

from ....train.settings import ConfigError
from . import published
from .shards import COMMAND, MANIFEST, describe, read
from .stream import Demonstration
from .windows import REST


def divided(
    folder: Path, held_out: int, limit: int | None = None
) -> dict[str, list[Demonstration]]:
    """The sets "train" (the first `limit`, or all), "validation" and "test".

    held_out: the last demonstrations of the folder, one half for validation, one for the test.
    """
    every = published.read_all(folder) if is_published(folder) else read(folder)
    most = len(every) - held_out
    train = _train_size(folder, len(every), held_out, limit)
    half = len(every) - held_out // 2
    return {"train": every[:train], "validation": every[most:half], "test": every[half:]}


def rest(folder: Path) -> int:
    """For how many frames windows hold the last state: published ones lie within a file."""
    return 0 if is_published(folder) else REST


def is_published(folder: Path) -> bool:
    """Whether a folder holds the published files and none of our own."""
    own = (folder / MANIFEST).exists()
    return not own and folder.is_dir() and bool(published.published_files(folder))


def exist(folder: Path) -> bool:
    """Whether a folder holds demonstrations, complete or damaged."""
    return (folder / MANIFEST).exists() or is_published(folder)


def require_enough(folder: Path, held_out: int, limit: int | None = None) -> None:
    """An error if a folder has too few demonstrations for the sets; none of them is read.

    Of published files, some may still turn out to be shorter than a window.
    """
    if is_published(folder):
        count = len(published.published_files(folder))
    else:
        count = describe(folder).count
    _train_size(folder, count, held_out, limit)


def _train_size(folder: Path, count: int, held_out: int, limit: int | None) -> int:
    """The number of demonstrations for training, of `count` in a folder."""
    missing = 0 if limit or is_published(folder) else describe(folder).missing
    if missing:
        raise ConfigError(
            f"{folder} holds {count:,} of {count + missing:,} demonstrations: `{COMMAND}` was "
            "interrupted; run it again, or say how many are for training with data.train_samples"
        )
    most = count - held_out
    train = limit or most
    if not 0 < train <= most:
        wanted = max(train, 1)
        more = f"make {wanted + held_out:,} with `{COMMAND} --demonstrations {wanted + held_out}`"
        raise ConfigError(
            f"{folder} holds {count:,} demonstrations, of which data.options.held_out = "
            f"{held_out} are for validation and test; {wanted:,} are needed for training; "
            + f"{more}, or " * (not is_published(folder))
            + "change one of the numbers"
        )
    return train
