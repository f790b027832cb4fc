"""Scales and neighbours of meshes, computed once and kept beside the shards.

FOLDER/levels/KEY.safetensors holds those of up to 100 meshes. KEY is a hash of their positions and
of the settings, so a file never belongs to other meshes. A file that is missing, damaged or of
another version is made again. Nothing is written to a folder of shards that is marked read-only;
for such folders, and those where writing fails, files of the same names lie in the folder `levels`
of the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from ....io import files
from ....user_cache import cache_folder
from ...baselines.surfaces.levels import Hierarchy, Level, Levels
from ...hashing import hash_of
from .mesh import Array, ArteryError, Mesh

FOLDER = "levels"
FORMAT = 1
KEY = "levels"  # of our entry in the metadata
TOGETHER = 100
"""Meshes per file."""


def with_levels(
    meshes: Sequence[Mesh], hierarchy: Hierarchy, folder: Path | None = None
) -> list[Mesh]:
    """These meshes with their levels, which are kept for a folder of shards, if one is given."""
    found: list[Levels] = []
    for start in range(0, len(meshes), TOGETHER):
        positions = [np.asarray(mesh.position) for mesh in meshes[start : start + TOGETHER]]
        found += _kept(positions, hierarchy, folder)
    return [replace(mesh, levels=own) for mesh, own in zip(meshes, found, strict=True)]


def prepare_levels(
    meshes: Sequence[Mesh],
    hierarchy: Hierarchy,
    folder: Path,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Make and keep the levels of a set of meshes, in processes (by default one per 100 meshes, and
    at most one per core); `with_levels` then reads them. `progress` is called with (meshes done,
    meshes in all).
    """
    if not folder.is_dir():
        raise ArteryError(f"{folder} is not a folder; levels are made for a folder of shards")
    if not any(_may_be_written(place.parent) for place in _places(folder)):
        raise ArteryError(
            f"levels can be kept neither in {folder} nor in the user's cache folder; make one of "
            "them writable, or copy the shards"
        )
    parts = [
        [np.asarray(mesh.position) for mesh in meshes[start : start + TOGETHER]]
        for start in range(0, len(meshes), TOGETHER)
    ]
    workers = min(workers or os.cpu_count() or 1, len(parts))
    job = partial(_keep, hierarchy=hierarchy, folder=folder)
    done = 0
    with contextlib.ExitStack() as stack:
        run: Any = map
        if workers > 1:
            pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
            run = stack.enter_context(pool).map
        for count in run(job, parts):
            done += count
            if progress:
                progress(done, len(meshes))


def _keep(positions: list[Array], hierarchy: Hierarchy, folder: Path) -> int:
    return len(_kept(positions, hierarchy, folder))


def _kept(positions: list[Array], hierarchy: Hierarchy, folder: Path | None) -> list[Levels]:
    """The levels of a few meshes: from their file, or made now and written."""
    if folder is None:
        return [hierarchy.build(own) for own in positions]
    settings = f"{FORMAT} {sorted(asdict(hierarchy).items())}"
    key = hashlib.sha256(f"{settings} {hash_of(positions)}".encode()).hexdigest()[:32]
    name, nodes = f"{key}.safetensors", [len(own) for own in positions]
    for place in _places(folder):
        with contextlib.suppress(OSError, ValueError, TypeError, IndexError):  # absent or damaged
            return _read(place / name, len(hierarchy.ratios), nodes)
    found = [hierarchy.build(own) for own in positions]
    content = _packed(found)
    for place in _places(folder):
        if _may_be_written(place.parent):
            with contextlib.suppress(OSError):  # full, say; the last resort is to compute again
                place.mkdir(exist_ok=True)
                files.write(place / name, content)
                break
    return found


def _places(folder: Path) -> Iterator[Path]:
    """Where the levels of a folder of shards may lie, in order of preference."""
    yield folder / FOLDER
    cache = cache_folder()
    if cache is not None:
        yield cache / FOLDER


def _may_be_written(folder: Path) -> bool:
    """Whether a folder is there and not marked read-only, which would not stop the root user."""
    return folder.is_dir() and bool(folder.stat().st_mode & 0o222)


def _packed(surfaces: list[Levels]) -> bytes:
    """Arrays named MESH.SCALE.FIELD."""
    arrays = {
        f"{mesh}.{scale}.{field}": x
        for mesh, levels in enumerate(surfaces)
        for scale, level in enumerate(levels)
        for field, x in level._asdict().items()
        if x is not None
    }
    return files.pack_arrays(KEY, {"format": FORMAT}, dict(sorted(arrays.items())))[0]


def _read(path: Path, scales: int, nodes: list[int]) -> list[Levels]:
    """The levels in a file; an error if they are damaged or not those of these meshes."""
    header, stored = files.unpack_arrays(files.read(path), KEY, FORMAT, {})
    files.require_digest(header, dict(sorted(stored.items())))
    parts: list[list[dict[str, Array]]] = [[{} for _ in range(scales)] for _ in nodes]
    for name, x in stored.items():
        mesh, scale, field = name.split(".")
        own = np.frombuffer(x.data, "<i4").reshape(x.shape)
        parts[int(mesh)][int(scale)][field] = own
    found = [tuple(Level(**fields) for fields in own) for own in parts]
    for levels, count in zip(found, nodes, strict=True):
        _require_rows(levels, count)
    return found


def _require_rows(levels: Levels, nodes: int) -> None:
    """Refuse entries that are no rows of their scale."""
    finer = nodes
    for level in levels:
        for name, x in level._asdict().items():
            limit = level.rows if name in ("near", "linked") else finer
            if x is not None and x.size and not (x.min() >= -1 and x.max() < limit):
                raise files.FileError(f"{name} has entries outside of 0 to {limit - 1}")
        finer = level.rows
