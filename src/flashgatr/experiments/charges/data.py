"""The sets of the charged five-body benchmark, one file DATA_SET.safetensors each.

    charge (N, n)    position, velocity (N, n, 3)    target, leaving (N, horizons, n, 3)

All sets of one seed come from one random stream, as published: 10,000 systems for training, then
2,000 for validation, then 2,000 for the test. Methods use the first 3,000 of the training systems,
and only those are simulated unless more are asked for. The metadata of a file contain its set, seed
and settings, and a SHA-256 of these and the tensors. Reading a file never runs code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...io import files
from ..nbody.data import DataError as DataError
from ..nbody.data import require_same
from .simulate import BODIES, STANDARD, Array, Interaction, State, draw, evolve

SETS = {"train": 10_000, "val": 2_000, "test": 2_000}
"""The sets in the order of the stream, and how many systems it has of each."""
SEED = 43
FORMAT = 2
KEY = "charges"  # of the header in the file's metadata
HEADER = dict(set=str, seed=int, settings=dict)
COMMAND = "flashgatr data charges"

Folder: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[str, int], None]


class Systems(NamedTuple):
    """Systems at the input step, and the positions of their bodies at every horizon.

    leaving: the velocities with which bodies leave their targets. Reversed, they lead back to the
        input: from (charge, target, -leaving), the same steps end at `position`.
    """

    charge: Array  # (N, n)
    position: Array  # (N, n, 3)
    velocity: Array  # (N, n, 3)
    target: Array  # (N, horizons, n, 3)
    leaving: Array  # (N, horizons, n, 3)


@dataclass(frozen=True)
class Description:
    """Content of a file: how its systems were made, their number, and the hash of settings and
    systems.
    """

    settings: Interaction
    seed: int
    count: int
    sha256: str


def data_name(force: str, clip: str) -> str:
    """The name of the data with this law of force, with which their files begin."""
    return f"{force}_norm" if clip == "norm" else force


def generate(
    folder: Folder,
    settings: Interaction = STANDARD["charges"],
    *,
    train: int = 3_000,
    others: int = 2_000,
    seed: int = SEED,
    progress: Progress | None = None,
) -> dict[str, Description]:
    """Generate the sets that `folder` lacks and describe all of them.

    An intact set with the same settings and seed is kept if it has enough systems, and generated
    again if it has too few. A damaged file or one with other settings is an error. `progress` is
    called with (set, systems) before a set is simulated.
    """
    wanted = {name: train if name == "train" else others for name in SETS}
    for what, number, name in (("train", train, "train"), ("others", others, "val")):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= SETS[name]:
            raise ValueError(f"{what} must be an integer from 1 to {SETS[name]:,}, got {number!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed must be an integer from 0 to {2**32 - 1}, got {seed!r}")
    done = {name: _existing(folder, name, settings, seed, wanted[name]) for name in SETS}
    Path(folder).mkdir(parents=True, exist_ok=True)
    last = max((i for i, name in enumerate(SETS) if done[name] is None), default=-1)
    stream = np.random.RandomState(seed)
    for name in list(SETS)[: last + 1]:
        state = draw(settings, SETS[name], stream)  # also of sets that are there: one stream
        if done[name] is None:
            if progress:
                progress(name, wanted[name])
            kept = State(*(x[: wanted[name]] for x in state))
            done[name] = _save(folder, name, settings, seed, simulate(kept, settings))
    return {name: found for name, found in done.items() if found}


def simulate(state: State, settings: Interaction) -> Systems:
    """Systems from their initial states."""
    first, *targets = (settings.input_step + horizon for horizon in (0, *settings.horizons))
    late = int(settings.force == "charges")  # the state after a step has the velocity before it
    steps = sorted({first, *targets, *(step + late for step in targets)})
    found = dict(zip(steps, evolve(state, settings, steps), strict=True))
    target = np.stack([found[step].position for step in targets], axis=1)
    leaving = np.stack([found[step + late].velocity for step in targets], axis=1)
    return Systems(*found[first], target, leaving)


def load(
    folder: Folder, data: str, name: str, horizon: int, limit: int | None = None
) -> dict[str, Tensor]:
    """The tensors of a set (its first `limit` systems), in float64, with `target` and `leaving`
    (N, n, 3) of one horizon. The whole file is checked.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    file = require(folder, data, name)
    description, systems = _read(file, data, name)
    if limit is not None and limit > description.count:
        raise DataError(
            f"{file} holds {description.count} systems, {limit} are needed; make more with "
            f"`{COMMAND}`"
        )
    horizons = description.settings.horizons
    if horizon not in horizons:
        raise DataError(
            f"{file} has targets {', '.join(map(str, horizons))} steps after the input, none after "
            f"{horizon}"
        )
    index = horizons.index(horizon)
    chosen = systems._replace(target=systems.target[:, index], leaving=systems.leaving[:, index])
    return {key: torch.tensor(x[:limit]) for key, x in chosen._asdict().items()}


def require(folder: Folder, data: str, name: str) -> Path:
    """The file of a set; an error if there is none."""
    file = _file(folder, data, name)
    if not file.is_file():
        raise DataError(
            f"there is no {name} set of {data} in {folder}; make it with `{command(data)}`"
        )
    return file


def describe(folder: Folder, data: str) -> dict[str, Description]:
    """The sets of `data` in a folder; each is read and checked."""
    present = {name: _file(folder, data, name) for name in SETS}
    found = {name: _read(file, data, name)[0] for name, file in present.items() if file.is_file()}
    if not found:
        raise DataError(f"there are no data of {data} in {folder}; make them: `{command(data)}`")
    return found


def command(data: str) -> str:
    """The command line that makes these data."""
    settings = STANDARD[data]
    options = "" if settings.force == "charges" else f" --force {settings.force}"
    return COMMAND + options + (" --clip norm" if settings.clip == "norm" else "")


def _existing(
    folder: Folder, name: str, settings: Interaction, seed: int, count: int
) -> Description | None:
    """The set in the folder; None if it is missing or has fewer than `count` systems."""
    data = data_name(settings.force, settings.clip)
    file = _file(folder, data, name)
    if not file.exists():
        return None
    found, _ = _read(file, data, name)
    made = asdict(found.settings) | {"seed": found.seed}
    asked = asdict(settings) | {"seed": seed}
    require_same(file, made, asked)
    return found if found.count >= count else None


def _save(
    folder: Folder, name: str, settings: Interaction, seed: int, systems: Systems
) -> Description:
    header = {"format": FORMAT, "set": name, "seed": seed, "settings": asdict(settings)}
    arrays = {key: np.ascontiguousarray(x) for key, x in systems._asdict().items()}
    content, sha256 = files.pack_arrays(KEY, header, arrays)
    files.write(_file(folder, data_name(settings.force, settings.clip), name), content)
    return Description(settings, seed, len(systems.charge), sha256)


def _read(file: Path, data: str, name: str) -> tuple[Description, Systems]:
    """A file's content, or a DataError that names the file and says what to do."""
    try:
        return _parse(files.read(file), data, name)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{file} is damaged or not a set of {data}: {error}; delete it and run "
            f"`{command(data)}` again"
        ) from error


def _parse(content: bytes, data: str, name: str) -> tuple[Description, Systems]:
    header, tensors = files.unpack_arrays(content, KEY, FORMAT, HEADER)
    if tensors.keys() != set(Systems._fields):
        raise DataError(f"its tensors are {sorted(tensors)}, expected {sorted(Systems._fields)}")
    tensors = {key: tensors[key] for key in Systems._fields}
    files.require_digest(header, tensors)
    settings = Interaction(**header["settings"])
    found = f"{data_name(settings.force, settings.clip)} {header['set']}"
    if found != f"{data} {name}":
        raise DataError(f"it holds {found}, not {data} {name}")
    count = (*tensors["charge"].shape, 0)[0]
    vectors = (count, BODIES, 3)
    later = (count, len(settings.horizons), *vectors[1:])
    shapes = (vectors[:2], vectors, vectors, later, later)
    arrays = (
        files.float64_array(key, tensors[key], shape)
        for key, shape in zip(Systems._fields, shapes, strict=True)
    )
    return Description(settings, header["seed"], count, header["sha256"]), Systems(*arrays)


def _file(folder: Folder, data: str, name: str) -> Path:
    for what, value, known in (("data", data, STANDARD), ("set", name, SETS)):
        if value not in known:
            raise ValueError(f"unknown {what} {value!r}; expected one of {', '.join(known)}")
    return Path(folder) / f"{data}_{name}.safetensors"
