"""The data set: files of a thousand demonstrations each, and a manifest.

    manifest.json                   recipe, number of demonstrations, SHA-256 of every shard;
                                    after an interruption, how many were still to be made
    demonstrations_0000.safetensors states (F, 39) float32, offsets (n + 1), ends (n, 3)

A data set is regenerated from its recipe alone. A longer one begins with the shorter one, whose
complete shards are kept. Each shard says how it was made and contains a SHA-256 of itself; the
manifest is written after each of them. Reading never runs code, and damaged files raise a
DataError.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ....io import files
from ....io.files import FileError, StoredArray
from .. import layouts
from ..layouts import JOINT
from . import stream as streams
from .stream import STACKS, Demonstration, Progress, Recipe
from .windows import REST, Demonstrations

FORMAT = 1
KEY = "kuka"  # of the header in a shard's metadata
HEADER = dict(recipe=dict, generator=int, first=int)
SHARD = 1000  # demonstrations
COMMAND = "flashgatr data kuka"
MANIFEST = "manifest.json"
_DTYPES = {"states": ("F32", "<f4"), "offsets": ("I64", "<i8"), "ends": ("I64", "<i8")}
_LARGEST_MANIFEST = 1 << 20  # bytes

Folder: TypeAlias = str | os.PathLike[str]


class DataError(ValueError):
    """A data set cannot be used: it is missing, damaged or made otherwise."""


@dataclass(frozen=True)
class Description:
    """Content of a data set: how it was made, its size, and a hash of everything."""

    recipe: Recipe
    count: int
    shards: tuple[str, ...]  # their hashes
    missing: int = 0  # how many were still to be made when the last command was interrupted

    @property
    def sha256(self) -> str:
        """A hash of the recipe and all demonstrations."""
        content = replace(self, missing=0).to_dict()
        return files.sha256(json.dumps(content, sort_keys=True).encode())

    def to_dict(self) -> dict[str, Any]:
        """The content of the manifest."""
        content = {
            "format": FORMAT,
            "generator": streams.GENERATOR,
            "recipe": self.recipe.to_dict(),
            "demonstrations": self.count,
            "shards": list(self.shards),
        }
        return {**content, "missing": self.missing} if self.missing else content


def generate(
    folder: Folder,
    count: int,
    recipe: Recipe = Recipe(),  # noqa: B008 (frozen)
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Description:
    """Generate the demonstrations that `folder` lacks and describe the data set.

    An intact data set of the same recipe is kept if it is large enough, and extended if it is not.
    A damaged file or another recipe is an error. `progress` is called with (done, wanted).
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"demonstrations must be an integer of at least 1, got {count!r}")
    streams.worker_count(workers, 1)  # a wrong number is an error before anything is written
    folder = Path(folder)
    kept: tuple[str, ...] = ()
    if (folder / MANIFEST).exists():
        found = describe(folder)
        if found.recipe != recipe:
            raise DataError(
                f"{folder} holds demonstrations of another recipe ({_difference(found, recipe)}); "
                "choose another folder or delete it"
            )
        if found.count >= count:
            enough = replace(found, missing=0)
            if found.missing:
                _describe_in(folder, enough)
            return enough
        kept = found.shards[: found.count // SHARD]
    try:
        return _generate(folder, count, recipe, kept, workers, progress)
    except OSError as error:
        raise DataError(
            f"cannot write demonstrations into {folder}: {error.strerror or error}; choose another "
            "folder"
        ) from error


def _generate(
    folder: Path,
    count: int,
    recipe: Recipe,
    kept: tuple[str, ...],
    workers: int | None,
    progress: Progress | None,
) -> Description:
    """Make the shards after those that are kept. The manifest follows every shard, so that an
    interruption loses one shard at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hashes, done = list(kept), len(kept) * SHARD
    source = streams.stream(recipe, count - done, first=done, workers=workers)
    while done < count:
        size = min(SHARD, count - done)
        part = []
        for _ in range(size):
            part.append(next(source))
            if progress:
                progress(done + len(part), count)
        hashes.append(_save(folder, len(hashes), recipe, part))
        done += size
        description = Description(recipe, done, tuple(hashes), missing=count - done)
        _describe_in(folder, description)
    return description


def _describe_in(folder: Path, description: Description) -> None:
    text = json.dumps(description.to_dict(), indent=1, sort_keys=True) + "\n"
    files.write(folder / MANIFEST, text.encode())


def describe(folder: Folder) -> Description:
    """What the manifest of a folder says."""
    path = Path(folder) / MANIFEST
    try:
        return _parse_manifest(files.read(path, _LARGEST_MANIFEST))
    except FileNotFoundError:
        raise DataError(
            f"there are no demonstrations in {folder}; make them with `{COMMAND}`"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise _damaged(path, error) from error


def read(folder: Folder, limit: int | None = None) -> list[Demonstration]:
    """The demonstrations of a folder (the first `limit`), in the joint layout."""
    found = describe(folder)
    wanted = found.count if limit is None else limit
    if wanted < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if wanted > found.count:
        raise DataError(
            f"{folder} holds {found.count} demonstrations, {wanted} are needed; make more with "
            f"`{COMMAND} --demonstrations {wanted}`"
        )
    shards = range(math.ceil(wanted / SHARD))
    return [d for number in shards for d in _load(Path(folder), number, found)][:wanted]


def load(folder: Folder, limit: int | None = None) -> Demonstrations:
    """The demonstrations of a folder (the first `limit`), as tensors in the geometric layout."""
    return to_tensors(read(folder, limit))


def to_tensors(demonstrations: list[Demonstration], rest: int = REST) -> Demonstrations:
    """Demonstrations in the geometric layout; one at a time would take minutes for thousands.

    rest: for how many frames windows hold the last state.
    """
    lengths = np.array([len(d.states) for d in demonstrations])
    offsets = np.concatenate([[0], lengths.cumsum()])
    states = torch.empty((int(offsets[-1]), layouts.GEOMETRIC))
    for start in range(0, len(demonstrations), SHARD):
        part = np.concatenate([d.states for d in demonstrations[start : start + SHARD]])
        end = min(start + SHARD, len(demonstrations))
        flat = layouts.to_geometric(part)
        states[int(offsets[start]) : int(offsets[end])] = torch.from_numpy(flat)
    return Demonstrations(states, torch.from_numpy(offsets), rest)


def _save(folder: Path, number: int, recipe: Recipe, part: list[Demonstration]) -> str:
    lengths = [0, *(len(d.states) for d in part)]
    arrays = {
        "states": np.concatenate([d.states for d in part]),
        "offsets": np.cumsum(lengths, dtype=np.int64),
        "ends": np.stack([d.ends for d in part]).astype(np.int64),
    }
    header = {
        "format": FORMAT,
        "recipe": recipe.to_dict(),
        "generator": streams.GENERATOR,
        "first": number * SHARD,
    }
    content, sha256 = files.pack_arrays(KEY, header, arrays)
    files.write(_path(folder, number), content)
    return sha256


def _load(folder: Path, number: int, description: Description) -> list[Demonstration]:
    """The demonstrations of a shard, or a DataError that names the file and says what to do."""
    path = _path(folder, number)
    try:
        return _parse(files.read(path), number, description)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run `{COMMAND}` in a new folder") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise _damaged(path, error) from error


def _parse(content: bytes, number: int, description: Description) -> list[Demonstration]:
    header, stored = files.unpack_arrays(content, KEY, FORMAT, HEADER)
    if stored.keys() != _DTYPES.keys():
        raise FileError(f"its arrays are {sorted(stored)}, expected {sorted(_DTYPES)}")
    files.require_digest(header, {name: stored[name] for name in _DTYPES})
    if header["sha256"] != description.shards[number]:
        raise FileError("it is not the file that the manifest names")
    if Recipe.from_dict(header["recipe"]) != description.recipe:
        raise FileError("it was made by another recipe than the manifest says")
    states, offsets, ends = (_array(name, stored[name]) for name in _DTYPES)
    count = min(SHARD, description.count - number * SHARD)
    if states.ndim != 2 or states.shape[1] != JOINT or not np.isfinite(states).all():
        raise FileError(f"states must be finite, of shape (F, {JOINT}); got {states.shape}")
    if offsets.shape != (count + 1,) or ends.shape != (count, STACKS):
        raise FileError(f"it should hold {count} demonstrations")
    if offsets[0] != 0 or offsets[-1] != len(states) or (np.diff(offsets) < 1).any():
        raise FileError("its offsets do not grow from 0 to the number of states")
    bounds = itertools.pairwise(offsets)
    return [Demonstration(states[a:b], ends[k]) for k, (a, b) in enumerate(bounds)]


def _array(name: str, stored: StoredArray) -> Any:
    dtype, code = _DTYPES[name]
    if stored.dtype != dtype:
        raise FileError(f"{name} has dtype {stored.dtype}, expected {dtype}")
    return np.frombuffer(stored.data, dtype=code).reshape(stored.shape)


def _parse_manifest(content: bytes) -> Description:
    found = json.loads(content)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FileError(f"it does not say that its format is {FORMAT}")
    if found.get("generator") != streams.GENERATOR:
        raise FileError(
            f"it was made by generator {found.get('generator')!r}; this version has "
            f"{streams.GENERATOR}"
        )
    count, shards = found["demonstrations"], found["shards"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise FileError(f"the number of demonstrations is {count!r}")
    whole = isinstance(shards, list) and len(shards) == math.ceil(count / SHARD)
    if not whole or not all(isinstance(x, str) for x in shards):
        raise FileError(f"its shards are not {math.ceil(count / SHARD)} hashes")
    missing = found.get("missing", 0)
    if isinstance(missing, bool) or not isinstance(missing, int) or missing < 0:
        raise FileError(f"the number of missing demonstrations is {missing!r}")
    return Description(Recipe.from_dict(found["recipe"]), count, tuple(shards), missing)


def _difference(found: Description, recipe: Recipe) -> str:
    made, asked = found.recipe.to_dict(), recipe.to_dict()
    return "; ".join(f"{k} {made[k]!r}, not {asked[k]!r}" for k in made if made[k] != asked[k])


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path} is damaged or not a set of demonstrations: {error}; delete the folder and run "
        f"`{COMMAND}` again"
    )


def _path(folder: Path, number: int) -> Path:
    return folder / f"demonstrations_{number:04}.safetensors"
