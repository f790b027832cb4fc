"""The demonstrations that Janner et al. (2022) published: one file data_NUMBER.npy each.

A file holds states (T, 39) in the joint layout. As the authors' loader does, every second frame is
kept and at most 300 of them; demonstrations that are then shorter than a window of 128 frames have
no windows. Files are opened without pickle, so reading runs no code.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import numpy as np

from ..layouts import HORIZON, JOINT
from . import shards
from .shards import DataError
from .stream import Demonstration, Singles
from .windows import Demonstrations

EVERY, LONGEST = 2, 300
_LARGEST = 1 << 28  # bytes of a file; published ones have about 100 kB
_NAME = re.compile(r"data_(\d+)\.npy")


def load_published(folder: str | os.PathLike[str], limit: int | None = None) -> Demonstrations:
    """The published demonstrations in a folder (the first `limit` files), by their numbers.

    Nothing is held after the end: their windows lie within the demonstration.
    """
    return shards.to_tensors(read_all(folder, limit), rest=0)


def read_all(folder: str | os.PathLike[str], limit: int | None = None) -> list[Demonstration]:
    """The demonstrations (of the first `limit` files) that are as long as a window or longer."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    paths = published_files(folder)
    if not paths:
        raise DataError(f"there are no files data_NUMBER.npy in {folder}")
    read = [read_published(path) for path in paths[:limit]]
    kept = [Demonstration(x, np.zeros(0, dtype=np.int64)) for x in read if len(x) >= HORIZON]
    if not kept:
        raise DataError(
            f"none of the {len(read)} demonstrations in {folder} has {HORIZON} frames after every "
            "second one is left out; these are shorter than a window"
        )
    return kept


def published_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files data_NUMBER.npy in a folder, by their numbers."""
    found = [(int(match[1]), path) for path in _files(folder) if (match := _match(path))]
    return [path for _, path in sorted(found)]


def read_published(path: str | os.PathLike[str]) -> Singles:
    """The states (T, 39) of a file, with every second frame, at most 300."""
    try:
        size = os.stat(path).st_size
        if size > _LARGEST:
            raise DataError(f"{path} has {size:,} bytes; the limit is {_LARGEST:,}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            raw = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(raw, np.ndarray) or raw.ndim != 2 or raw.shape[1] != JOINT:
                raise ValueError(f"it has the shape {np.shape(raw)}, expected (T, {JOINT})")
            if raw.dtype.kind != "f" or not len(raw):
                raise ValueError(f"it holds {len(raw)} rows of {raw.dtype}; expected numbers")
            states = np.array(raw[::EVERY][:LONGEST], dtype=np.float32)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except DataError:
        raise
    except Exception as error:  # numpy's reader raises many kinds
        raise DataError(f"{path} is damaged or not a demonstration: {error}") from error
    if not np.isfinite(states).all():
        raise DataError(f"{path} has entries that are not finite")
    return states


def _files(folder: str | os.PathLike[str]) -> list[Path]:
    try:
        return list(Path(folder).iterdir())
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from error


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)
