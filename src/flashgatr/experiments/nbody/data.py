"""The five sets of the n-body experiment, one file NAME.safetensors each.

    mass (N, n)    position, velocity, target (N, n, 3)

Every thousand systems have their own random stream, given by (seed, set, chunk). A set therefore
does not depend on the number of workers, and a longer set begins with the shorter one. The metadata
of a file contain its set, seed and settings, and a SHA-256 of these and the tensors. Reading a file
never runs code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...io import files
from .simulate import Gravity, Systems, simulate

SETS: dict[str, dict[str, Any]] = {
    "train": {},
    "val": {},
    "eval": {},
    "more_bodies": dict(bodies=6),
    "translated": dict(shift_mean=(200.0, 0.0, 0.0)),
}
"""The settings that each set changes. A set's position in this table selects its random streams."""

FORMAT = 1
KEY = "nbody"  # of the header in the file's metadata
HEADER = dict(set=str, seed=int, settings=dict)
CHUNK = 1000  # systems per random stream
COMMAND = "flashgatr data nbody"

Folder: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[str, int, int], None]
Job: TypeAlias = tuple[Gravity, list[int]]  # settings, random stream


class DataError(ValueError):
    """A data set cannot be used: it is missing, damaged or made with other settings."""


@dataclass(frozen=True)
class Description:
    """Content of a file: how its systems were made, their number, and the hash of settings and
    systems.
    """

    settings: Gravity
    seed: int
    count: int
    sha256: str


def generate(
    folder: Folder,
    *,
    train: int = 100_000,
    others: int = 5_000,
    seed: int = 0,
    settings: Gravity = Gravity(),  # noqa: B008 (frozen)
    workers: int | None = None,
    sets: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Description]:
    """Generate the sets that `folder` lacks (all five, or those in `sets`) and describe them.

    An intact set with the same settings and seed is kept if it has enough systems, and generated
    again if it has too few. A damaged file or one with other settings is an error. `workers` is the
    number of processes (default: chosen by the amount of work). `progress` is called with (set,
    systems done, systems wanted).
    """
    names = list(SETS) if sets is None else list(dict.fromkeys(sets))
    for name in names:
        _require_name(name)
    for what, number, least in (("train", train, 1), ("others", others, 1), ("seed", seed, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{what} must be an integer of at least {least}, got {number!r}")
    wanted = {name: train if name == "train" else others for name in names}
    done = {
        name: _existing(folder, name, replace(settings, **SETS[name]), seed, count)
        for name, count in wanted.items()
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    if progress:
        for name in names:
            if done[name]:
                progress(name, wanted[name], wanted[name])
    missing = {name: count for name, count in wanted.items() if done[name] is None}
    steps = settings.steps * sum(math.ceil(count / CHUNK) for count in missing.values())
    with mapper(_workers(workers, steps)) as run:
        for name, count in missing.items():
            own = replace(settings, **SETS[name])
            number = list(SETS).index(name)
            jobs = [(own, [seed, number, chunk]) for chunk in range(math.ceil(count / CHUNK))]
            parts: list[Systems] = []
            for part in run(jobs):
                parts.append(part)
                if progress:
                    progress(name, min(len(parts) * CHUNK, count), count)
            systems = Systems(*(np.concatenate(x)[:count] for x in zip(*parts, strict=True)))
            done[name] = _save(folder, name, own, seed, systems)
    return {name: found for name, found in done.items() if found}


def load(folder: Folder, name: str, limit: int | None = None) -> dict[str, Tensor]:
    """The tensors of a set (its first `limit` systems), in float64. The whole file is checked."""
    _require_name(name)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    file = require(folder, name)
    description, systems = _read(folder, name)
    if limit is not None and limit > description.count:
        raise DataError(
            f"{file} holds {description.count} systems, {limit} are needed; make more with "
            f"`{COMMAND}`"
        )
    return {key: torch.tensor(x[:limit]) for key, x in systems._asdict().items()}


def require(folder: Folder, name: str) -> Path:
    """The file of a set; an error if there is none."""
    file = _file(folder, name)
    if not file.is_file():
        raise DataError(f"there is no {name} set in {folder}; make it with `{COMMAND}`")
    return file


def describe(folder: Folder) -> dict[str, Description]:
    """The sets in a folder; each is read and checked."""
    found = {name: _read(folder, name)[0] for name in SETS if _file(folder, name).is_file()}
    if not found:
        raise DataError(f"there are no n-body data in {folder}; make them with `{COMMAND}`")
    return found


def _existing(
    folder: Folder, name: str, settings: Gravity, seed: int, count: int
) -> Description | None:
    """The set in the folder; None if it is missing or has fewer than `count` systems."""
    file = _file(folder, name)
    if not file.exists():
        return None
    found, _ = _read(folder, name)
    made, asked = (
        {**asdict(s), "seed": n} for s, n in ((found.settings, found.seed), (settings, seed))
    )
    require_same(file, made, asked)
    return found if found.count >= count else None


def require_same(file: Path, made: dict[str, Any], asked: dict[str, Any]) -> None:
    """An error that says how the settings of a file differ from those asked for, if they do."""
    differ = [f"{key} {made[key]!r}, not {asked[key]!r}" for key in made if made[key] != asked[key]]
    if differ:
        raise DataError(
            f"{file} was made with other settings ({'; '.join(differ)}); choose another folder or "
            "delete the file"
        )


@contextmanager
def mapper(workers: int) -> Iterator[Callable[[list[Job]], Iterator[Systems]]]:
    """A function that runs jobs in order, in this process or in `workers` processes."""
    if workers == 1:
        yield lambda jobs: map(_chunk, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield lambda jobs: pool.map(_chunk, jobs)


def _workers(asked: int | None, steps: int) -> int:
    """Number of processes: as asked, or one per 20,000 integration steps of a chunk, which take
    2.5 s on a Xeon core; starting a process takes 2 s.
    """
    if asked is None:
        return max(1, min(os.cpu_count() or 1, steps // 20_000))
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ValueError(f"workers must be an integer of at least 1, got {asked!r}")
    return asked


def _chunk(job: Job) -> Systems:
    settings, stream = job
    return simulate(settings, CHUNK, np.random.default_rng(stream))


def _save(folder: Folder, name: str, settings: Gravity, seed: int, systems: Systems) -> Description:
    header = {"format": FORMAT, "set": name, "seed": seed, "settings": asdict(settings)}
    content, sha256 = files.pack_arrays(KEY, header, systems._asdict())
    files.write(_file(folder, name), content)
    return Description(settings, seed, len(systems.mass), sha256)


def _read(folder: Folder, name: str) -> tuple[Description, Systems]:
    """A file's content, or a DataError that names the file and says what to do."""
    file = _file(folder, name)
    try:
        return _parse(files.read(file), name)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file} is damaged or not a set of n-body data: {error}; delete it and run "
            f"`{COMMAND}` again"
        ) from error


def _parse(content: bytes, name: str) -> tuple[Description, Systems]:
    header, tensors = files.unpack_arrays(content, KEY, FORMAT, HEADER)
    if tensors.keys() != set(Systems._fields):
        raise DataError(f"its tensors are {sorted(tensors)}, expected {sorted(Systems._fields)}")
    tensors = {key: tensors[key] for key in Systems._fields}
    files.require_digest(header, tensors)
    if header["set"] != name:
        raise DataError(f"it holds the set {header['set']!r}, not {name!r}")
    settings = Gravity(**header["settings"])
    count = (*tensors["mass"].shape, 0)[0]
    systems = Systems(
        files.float64_array("mass", tensors["mass"], (count, settings.bodies)),
        *(
            files.float64_array(key, tensors[key], (count, settings.bodies, 3))
            for key in Systems._fields[1:]
        ),
    )
    return Description(settings, header["seed"], count, header["sha256"]), systems


def _file(folder: Folder, name: str) -> Path:
    return Path(folder) / f"{name}.safetensors"


def _require_name(name: str) -> None:
    if name not in SETS:
        raise ValueError(f"unknown set {name!r}; expected one of {', '.join(SETS)}")
