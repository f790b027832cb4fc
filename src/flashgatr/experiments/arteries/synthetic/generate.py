"""Generates synthetic samples in parallel, as files in the published layout (sample_0000.hdf5 …).

Sample i depends only on the seed, on i and on the settings, not on the number of workers
(workers.py). Files are written atomically, so a killed run continues where it was. The attributes
of a file are `synthetic` = true, the settings, the vessel, the fluid, and the residual of the flow.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..data.raw import RawMesh, read_raw, write_raw
from .flow import Flow, flux, nodal_pressure, solve, wall_stress
from .grid import MeshSize, surface
from .solution import FILE, Solution, read_solution, write_solution
from .tube import Tube, draw
from .workers import GenerationResult, Say, require_integer, require_same, run_jobs

FORMAT = 1  # increases when the same settings give different samples
SOLUTION = ".safetensors"  # suffix of the file beside the sample

Folder: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Settings:
    """The settings that, with its number, determine a sample."""

    seed: int = 0
    mesh: MeshSize = (3, 2, 80)
    planar: bool = True
    max_reduction: float = 0.49
    format: int = FORMAT


def generate(
    folder: Folder,
    count: int,
    seed: int = 0,
    *,
    mesh: MeshSize = (3, 2, 80),
    workers: int | None = None,
    planar: bool = True,
    max_reduction: float = 0.49,
    solutions: bool = False,
    say: Say = print,
) -> GenerationResult:
    """Make the samples 0 … count − 1 that the folder lacks.

    An existing file is kept if it was made with the same settings; otherwise it is an error. A
    sample whose flow cannot be computed is reported and left out. `mesh` is (core, ring, axial),
    see grid.py. `workers` is the number of processes (default: one per core; each needs 0.6 GB at
    the default mesh). `planar` keeps centrelines in the plane z = 0, like the published ones.
    `max_reduction` is the largest share of the radius by which a stenosis narrows the vessel. With
    `solutions`, the flow is kept, too (solution.py); a sample without it is computed again, and its
    own file is not changed.
    """
    for what, number, least in (("count", count, 1), ("seed", seed, 0), ("workers", workers, 1)):
        require_integer(what, number, least)
    settings = Settings(seed, _size(mesh), planar, max_reduction)
    draw(np.random.default_rng(0), planar=planar, max_reduction=max_reduction)  # checks the bound
    place, result = Path(folder), GenerationResult()
    place.mkdir(parents=True, exist_ok=True)
    todo: dict[str, tuple[Any, ...]] = {}
    for number in range(count):
        if _is_there(place, number, settings, solutions):
            result.kept.append(sample_name(number))
        else:
            todo[sample_name(number)] = (os.fspath(place), number, settings, solutions)
    if result.kept:
        say(f"{len(result.kept)} of {count} samples exist already")
    run_jobs(_job, todo, workers, result, say)
    return result


def sample_name(number: int) -> str:
    return f"sample_{number:04d}"


def make(number: int, settings: Settings) -> RawMesh:
    """Draw a vessel, compute its flow, and return it as a sample."""
    found = solution(number, settings)
    return sample(number, found.tube, found.flow, asdict(settings))


def solution(number: int, settings: Settings) -> Solution:
    """Draw a vessel and compute its flow."""
    random = np.random.default_rng([settings.seed, number])
    tube = draw(random, planar=settings.planar, max_reduction=settings.max_reduction)
    return Solution(number, tube, solve(tube, settings.mesh))


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


def _job(folder: str, number: int, settings: Settings, solutions: bool) -> str:
    """Write the files of a sample that the folder lacks."""
    raw, coefficients = _files(Path(folder), number)
    if solutions and coefficients.exists():
        found = read_solution(coefficients)
    else:
        found = solution(number, settings)
        if solutions:
            write_solution(coefficients, found, _plain(settings))
    mesh = sample(number, found.tube, found.flow, asdict(settings))
    if not raw.exists():
        write_raw(raw, mesh)
    said = mesh.parameters
    return (
        f"{mesh.name}: {mesh.nodes:,} nodes, {len(said['stenoses'])} stenoses, "
        f"Reynolds number {said['reynolds']:.0f}, "
        f"residual {said['residual']:.0e}, flux balance {said['flux_balance']:.0e}"
    )


def _files(place: Path, number: int) -> tuple[Path, Path]:
    """The file of a sample, and that of its solution."""
    name = sample_name(number)
    return place / f"{name}.hdf5", place / f"{name}{SOLUTION}"


def _is_there(place: Path, number: int, settings: Settings, solutions: bool) -> bool:
    """Whether the files of a sample exist; it is an error if they were made with other settings."""
    raw, coefficients = _files(place, number)
    asked = _plain(settings)
    if raw.exists():
        require_same(raw, read_raw(raw, raw.stem).parameters, asked)
    if solutions and coefficients.exists():
        require_same(coefficients, FILE.read_header(coefficients)["settings"], asked)
    return raw.exists() and (not solutions or coefficients.exists())


def _plain(settings: Settings) -> dict[str, Any]:
    """Settings as files hold them."""
    return {**asdict(settings), "mesh": list(settings.mesh)}


def _size(mesh: MeshSize) -> MeshSize:
    if len(mesh) != 3 or not all(type(x) is int and x >= 1 for x in mesh):
        raise ValueError(f"mesh must be three positive integers (core, ring, axial), got {mesh!r}")
    return (mesh[0], mesh[1], mesh[2])
