"""Points of many vessels' flow fields, as files, from their solutions: parallel, resumable.

The points of a vessel depend only on its solution, the seed and the numbers of points. They come
from the part between the flow extensions, cut as the meshes are: CUT inlet diameters at either end,
here measured along the centreline.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..data.arrays import PathLike
from ..data.field_points import FILE, SUFFIX, FieldPoints, write_field
from ..data.mesh import ArteryError
from ..data.raw import sample_number
from ..data.wall import CUT
from .field import Field
from .points import RandomPoints
from .solution import Solution, read_solution
from .workers import GenerationResult, Say, require_integer, require_same, run_jobs


def make_fields(
    solutions: PathLike,
    folder: PathLike,
    lumen: int,
    wall: int,
    seed: int = 0,
    *,
    workers: int | None = None,
    say: Say = print,
) -> GenerationResult:
    """Draw `lumen` and `wall` points of every vessel whose solution is in a folder.

    An existing file is kept if it was made with the same settings; otherwise it is an error.
    """
    counts = (("lumen", lumen, 0), ("wall", wall, 0), ("seed", seed, 0), ("workers", workers, 1))
    for what, number, least in counts:
        require_integer(what, number, least)
    if not lumen + wall:
        raise ValueError("expected points in the lumen or on the wall, got 0 of both")
    settings = dict(seed=seed, lumen=lumen, wall=wall)
    found = [x for x in sorted(Path(solutions).glob(f"*{SUFFIX}")) if sample_number(x.stem) >= 0]
    if not found:
        raise ArteryError(
            f"there are no solutions in {solutions}; make them with `generate(…, solutions=True)`"
        )
    place, result = Path(folder), GenerationResult()
    place.mkdir(parents=True, exist_ok=True)
    todo: dict[str, tuple[Any, ...]] = {}
    for path in found:
        file = place / path.name
        if file.exists():
            require_same(file, FILE.read_header(file)["settings"], settings)
            result.kept.append(path.stem)
        else:
            todo[path.stem] = (os.fspath(path), os.fspath(file), settings)
    if result.kept:
        say(f"the points of {len(result.kept)} of {len(found)} vessels exist already")
    run_jobs(_job, todo, workers, result, say)
    return result


def field_points(solution: Solution, lumen: int, wall: int, seed: int = 0) -> FieldPoints:
    """Random points of a vessel's lumen and wall, between its flow extensions."""
    field = Field(solution.flow)
    diameter = 2 * solution.tube.radius
    length = float(field.grid.distance[-1])
    span = (CUT * diameter, length - CUT * diameter)
    name = f"sample_{solution.number:04d}"
    if not span[0] < span[1]:
        raise ArteryError(
            f"{name} is {length:.3g} cm long with an inlet of diameter {diameter:.3g} cm, so that "
            "nothing is left between its extensions"
        )
    points = RandomPoints(field, span)
    # One stream for each kind: the points of one do not depend on the number of the other.
    streams = [np.random.default_rng([seed, solution.number, kind]) for kind in (0, 1)]
    inside = field.lumen(points.lumen(lumen, streams[0]))
    on_wall = field.wall(points.wall(wall, streams[1]))
    both = {
        name: np.concatenate([getattr(inside, name), getattr(on_wall, name)]).astype(np.float32)
        for name in ("position", "distance", "pressure")
    }
    return FieldPoints(
        name=name,
        **both,
        target=np.concatenate([inside.velocity, on_wall.stress]).astype(np.float32),
        normal=on_wall.normal.astype(np.float32),
        inlet_diameter=diameter,
        span=span,
        volume=points.volume,
        area=points.area,
        settings=dict(seed=seed, lumen=lumen, wall=wall),
    )


def _job(source: str, target: str, settings: dict[str, int]) -> str:
    points = field_points(read_solution(source), **settings)
    write_field(target, points)
    return (
        f"{points.name}: {settings['lumen']:,} points in {points.volume:.3g} cm³, "
        f"{settings['wall']:,} on {points.area:.3g} cm²"
    )
