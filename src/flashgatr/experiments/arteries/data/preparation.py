"""Prepares raw samples in parallel and writes shards: shard_NNNN.safetensors, 100 samples each.

Finished shards are kept, so a killed run continues where it was. A sample that cannot be used is
reported and left out, and its shard is made again in the next run. If a sample kills the process
that works on it, the other samples are still prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ....io.files import Header
from .arrays import PathLike
from .hdf5 import HINT
from .heat_method import chosen_method
from .mesh import ArteryError, Mesh
from .raw import RawMesh, read_raw, sample_names, sample_number
from .sets import tenths
from .shards import read_index, read_shard, write_shard
from .wall import prepare

BLOCK = 100  # sample numbers per shard
TOTALS = ("nodes", "faces", "inlet", "wss_sum", "wss_max")
"""Quantities of each raw sample that the header stores, for the checks in `verification`."""

Progress: TypeAlias = Callable[[int, int], None]


class VesselJob(NamedTuple):
    source: str
    name: str
    method: str
    cut: bool
    synthetic: bool


class Outcome(NamedTuple):
    """The mesh and the totals of a sample, or the reason why there is none."""

    name: str
    mesh: Mesh | None
    totals: list[float]
    error: str = ""


@dataclass
class PreparationResult:
    """How many samples were made and kept, and the errors of those that failed."""

    made: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def prepare_folder(
    source: PathLike,
    folder: PathLike,
    *,
    method: str = "auto",
    cut: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PreparationResult:
    """Prepare all samples of `source` that `folder` lacks.

    `workers` is the number of processes (by default it depends on the number of samples; 1 means
    this process). `progress` is called with (samples done, samples in all). Samples whose
    parameters say `synthetic` get their own division (sets.tenths).
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if find_spec("h5py") is None:
        raise ArteryError(HINT)
    names, result = sample_names(source), PreparationResult()
    blocks = _blocks(names, result)
    if not blocks:
        raise ArteryError(f"{source} has no sample with a number, such as sample_0000")
    synthetic = _is_synthetic(source, names)
    count = 1 + max(map(sample_number, names))
    header: Header = {
        "source": Path(source).name,
        "settings": {"geodesics": chosen_method(method), "cut": cut},
        "synthetic": synthetic,
    }
    if synthetic:
        header["split"] = tenths(count)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _require_ours(target, {_file(target, block) for block in blocks})
    todo = {}
    for block, members in blocks.items():
        if _is_finished(_file(target, block), header, members):
            result.kept += len(members)
        else:
            todo[block] = members
    total = sum(map(len, blocks.values()))
    done = result.kept
    with _Pool(_workers(workers, total - done)) as pool:
        for block, members in todo.items():
            jobs = [
                VesselJob(os.fspath(source), n, chosen_method(method), cut, synthetic)
                for n in members
            ]
            outcomes = []
            for outcome in pool.run(jobs):
                outcomes.append(outcome)
                done += 1
                if progress:
                    progress(done, total)
            _finish(_file(target, block), outcomes, header, result)
    return result


def _blocks(names: Iterable[str], result: PreparationResult) -> dict[int, list[str]]:
    """The samples of each shard, by number. Samples without a number, or with one taken, fail."""
    owner: dict[int, str] = {}
    for name in names:
        number = sample_number(name)
        if number < 0:
            result.failed[name] = f"{name} has no number at its end, such as sample_0000"
        elif number in owner:
            result.failed[name] = f"{name} has the same number as {owner[number]}"
        else:
            owner[number] = name
    blocks: dict[int, list[str]] = {}
    for number in sorted(owner):
        blocks.setdefault(number // BLOCK, []).append(owner[number])
    return blocks


def _is_synthetic(source: PathLike, names: Iterable[str]) -> bool:
    """Whether the first readable sample is synthetic; the others must agree with it."""
    for name in names:
        try:
            return bool(read_raw(source, name).parameters.get("synthetic"))
        except ArteryError:
            continue  # reported with the others later
    return False


def _is_finished(file: Path, header: Header, members: list[str]) -> bool:
    if not file.exists():
        return False
    read_shard(file)  # raises an error if it is damaged
    _, found = read_index(file)
    for key in ("settings", "synthetic", "source"):
        if found.get(key) != header[key]:
            raise ArteryError(
                f"{file} was made with other {key} ({found.get(key)}, not {header[key]}); choose "
                "another folder or delete the file"
            )
    return set(members) <= set(found["names"]) and found.get("split") == header.get("split")


def _require_ours(folder: Path, expected: set[Path]) -> None:
    others = sorted(set(folder.glob("*.safetensors")) - expected)
    if others:
        raise ArteryError(
            f"{others[0]} is not of this data set; choose another folder or delete it"
        )


def _finish(file: Path, outcomes: list[Outcome], header: Header, result: PreparationResult) -> None:
    result.failed |= {outcome.name: outcome.error for outcome in outcomes if outcome.error}
    good = [outcome for outcome in outcomes if outcome.mesh is not None]
    labelled = sum(o.mesh is not None and o.mesh.wss is not None for o in good)
    if 0 < labelled < len(good):  # a shard has labels on all of its meshes or on none
        for o in good:
            if o.mesh is not None and o.mesh.wss is None:
                result.failed[o.name] = f"{o.name} has no wss, which others of its shard have"
        good = [o for o in good if o.mesh is not None and o.mesh.wss is not None]
    if good:
        totals = dict(
            zip(TOTALS, map(list, zip(*(o.totals for o in good), strict=True)), strict=True)
        )
        write_shard(file, [o.mesh for o in good if o.mesh is not None], {**header, "raw": totals})
        result.made += len(good)


def _prepared(job: VesselJob) -> Outcome:
    try:
        raw = read_raw(job.source, job.name)
        if bool(raw.parameters.get("synthetic")) != job.synthetic:
            raise ArteryError(f"{job.name} is {'not ' * job.synthetic}synthetic, unlike the first")
        return Outcome(job.name, prepare(raw, method=job.method, cut=job.cut), _totals(raw))
    except ArteryError as error:
        return Outcome(job.name, None, [], str(error))
    except Exception as error:  # one odd sample must not stop the others
        return Outcome(job.name, None, [], f"cannot prepare {job.name}: {error!r}")


def _totals(raw: RawMesh) -> list[float]:
    stress = np.zeros(1) if raw.wss is None else np.linalg.norm(raw.wss.astype(np.float64), axis=1)
    return [raw.nodes, len(raw.face), len(raw.inlet), float(stress.sum()), float(stress.max())]


class _Pool:
    """Runs jobs in order, here or in processes. A process that dies affects only its own sample."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *error: Any) -> None:
        self._close()

    def run(self, jobs: list[VesselJob]) -> Iterator[Outcome]:
        if self.workers == 1:
            yield from map(_prepared, jobs)
            return
        done = 0
        try:
            for outcome in self._started(self.workers).map(_prepared, jobs):
                yield outcome
                done += 1
        except BrokenProcessPool:
            self._close()
            yield from self._one_by_one(jobs[done:])

    def _one_by_one(self, jobs: list[VesselJob]) -> Iterator[Outcome]:
        for job in jobs:
            try:
                yield self._started(1).submit(_prepared, job).result()
            except BrokenProcessPool:
                self._close()
                yield Outcome(job.name, None, [], f"cannot prepare {job.name}: its process died")
        self._close()

    def _started(self, workers: int) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        return self._pool

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def _workers(asked: int | None, samples: int) -> int:
    """As asked, or one per 50 samples (5 s on a Xeon core; starting a process takes 3 s)."""
    return asked or max(1, min(os.cpu_count() or 1, samples // 50))


def _file(folder: Path, block: int) -> Path:
    return folder / f"shard_{block:04d}.safetensors"
