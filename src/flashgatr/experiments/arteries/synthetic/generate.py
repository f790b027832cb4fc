"""Generates synthetic samples in parallel, as files in the published layout (sample_0000.hdf5 …).

Sample i depends only on the seed, on i and on the settings, not on the number of workers: each
sample is computed in a process with one BLAS thread. Files are written atomically, so a killed run
continues where it was. The attributes of a file are `synthetic` = true, the settings, the vessel,
the fluid, and the residual of the flow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import numpy as np

from ..data.mesh import ArteryError
from ..data.raw import RawMesh, read_raw, write_raw
from .flow import Flow, flux, nodal_pressure, solve, wall_stress
from .grid import MeshSize, surface
from .tube import Tube, draw

FORMAT = 1  # increases when the same settings give different samples
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Folder: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Settings:
    """The settings that, with its number, determine a sample."""

    seed: int = 0
    mesh: MeshSize = (3, 2, 80)
    planar: bool = True
    max_reduction: float = 0.49
    format: int = FORMAT


@dataclass
class GenerationResult:
    """The names of the samples made and kept, and the errors of those that failed."""

    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def generate(
    folder: Folder,
    count: int,
    seed: int = 0,
    *,
    mesh: MeshSize = (3, 2, 80),
    workers: int | None = None,
    planar: bool = True,
    max_reduction: float = 0.49,
    say: Callable[[str], object] = print,
) -> GenerationResult:
    """Make the samples 0 … count − 1 that the folder lacks.

    An existing file is kept if it was made with the same settings; otherwise it is an error. A
    sample whose flow cannot be computed is reported and left out. `mesh` is (core, ring, axial),
    see grid.py. `workers` is the number of processes (default: one per core; each needs 0.6 GB at
    the default mesh). `planar` keeps centrelines in the plane z = 0, like the published ones.
    `max_reduction` is the largest share of the radius by which a stenosis narrows the vessel.
    """
    for what, number, least in (("count", count, 1), ("seed", seed, 0), ("workers", workers, 1)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise ValueError(f"{what} must be an integer, got {number!r}")
        if number is not None and number < least:
            raise ValueError(f"{what} must be at least {least}, got {number}")
    settings = Settings(seed, _size(mesh), planar, max_reduction)
    draw(np.random.default_rng(0), planar=planar, max_reduction=max_reduction)  # checks the bound
    place, result = Path(folder), GenerationResult()
    place.mkdir(parents=True, exist_ok=True)
    todo = []
    for number in range(count):
        if _is_there(place, number, settings):
            result.kept.append(sample_name(number))
        else:
            todo.append(number)
    if result.kept:
        say(f"{len(result.kept)} of {count} samples exist already")
    if todo:
        _run(place, todo, settings, min(workers or os.cpu_count() or 1, len(todo)), result, say)
    return result


def sample_name(number: int) -> str:
    return f"sample_{number:04d}"


def make(number: int, settings: Settings) -> RawMesh:
    """Draw a vessel, compute its flow, and return it as a sample."""
    random = np.random.default_rng([settings.seed, number])
    tube = draw(random, planar=settings.planar, max_reduction=settings.max_reduction)
    return sample(number, tube, solve(tube, settings.mesh), asdict(settings))


def sample(number: int, tube: Tube, flow: Flow, settings: dict[str, Any]) -> RawMesh:
    """A flow as a sample: surface, wall stress (zero on the caps), pressure and all parameters."""
    grid = flow.grid
    cross = grid.section
    nodes, face, inlet = surface(grid)
    wss = np.zeros_like(grid.node)
    wss[:, cross.free :] = wall_stress(flow)
    entering, leaving = (flux(grid, flow.velocity, plane) for plane in (0, -1))
    vessel = asdict(tube)
    return RawMesh(
        name=sample_name(number),
        index=number,
        position=grid.node.reshape(-1, 3)[nodes].astype(np.float32),
        face=face,
        inlet=inlet,
        wss=wss.reshape(-1, 3)[nodes].astype(np.float32),
        pressure=nodal_pressure(flow).ravel()[nodes].astype(np.float32),
        parameters={
            "synthetic": True,
            "number": number,
            **settings,
            **vessel,
            **asdict(flow.fluid),
            "reynolds": 2
            * tube.radius
            * flow.fluid.speed
            * flow.fluid.density
            / flow.fluid.viscosity,
            "residual": flow.residual,
            "newton_steps": flow.steps,
            "flux": entering,
            "flux_balance": leaving / entering - 1,
        },
    )


def _run(
    place: Path,
    todo: list[int],
    settings: Settings,
    workers: int,
    result: GenerationResult,
    say: Callable[[str], object],
) -> None:
    with (
        _one_thread(),
        ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent) as pool,
    ):
        jobs = {pool.submit(_job, os.fspath(place), n, settings): sample_name(n) for n in todo}
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                name = jobs[job]
                try:
                    told = job.result()
                except ArteryError as error:
                    result.failed[name] = told = f"{name} failed: {error}"
                else:
                    result.made.append(name)
                say(f"[{done}/{len(todo)}] {told}")
        except BrokenProcessPool as error:
            raise ArteryError(
                f"a worker was killed, perhaps for lack of memory, after {len(result.made)} "
                f"samples; run the command again with fewer than {workers} workers: finished "
                "samples are kept"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    result.made.sort()


def _end_with_parent() -> None:
    """End this worker when its parent dies; otherwise it would wait for work forever."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _job(folder: str, number: int, settings: Settings) -> str:
    mesh = make(number, settings)
    write_raw(Path(folder) / f"{mesh.name}.hdf5", mesh)
    found = mesh.parameters
    return (
        f"{mesh.name}: {mesh.nodes:,} nodes, {len(found['stenoses'])} stenoses, "
        f"Reynolds number {found['reynolds']:.0f}, "
        f"residual {found['residual']:.0e}, flux balance {found['flux_balance']:.0e}"
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within: new processes use one thread, which is faster and gives the same result
    everywhere.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_there(place: Path, number: int, settings: Settings) -> bool:
    """Whether the file of a sample exists; it is an error if it was made with other settings."""
    file = place / f"{sample_name(number)}.hdf5"
    if not file.exists():
        return False
    found = read_raw(file, file.stem).parameters
    asked = {**asdict(settings), "mesh": list(settings.mesh)}
    differ = [f"{k} {found.get(k)!r}, not {v!r}" for k, v in asked.items() if found.get(k) != v]
    if differ:
        raise ArteryError(
            f"{file} was made with other settings ({'; '.join(differ)}); choose another folder or "
            "delete the file"
        )
    return True


def _size(mesh: MeshSize) -> MeshSize:
    if len(mesh) != 3 or not all(type(x) is int and x >= 1 for x in mesh):
        raise ValueError(f"mesh must be three positive integers (core, ring, axial), got {mesh!r}")
    return (mesh[0], mesh[1], mesh[2])
