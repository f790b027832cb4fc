"""A folder of shards, divided by sample number into train, val and test.

    original    the authors' code: 0-1599, 1600-1798, 1799-1998
    published   Suk et al.:        0-1599, 1600-1799, 1800-1999

Samples missing from the folder are skipped. Synthetic data bring their own division, 80/10/10 by
number, in the metadata of the shards (`"split": {"train": [0, 160], ...}`, ends excluded), which is
used instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....io.files import Header
from .arrays import PathLike
from .mesh import ArteryError, Mesh
from .shards import read_index, read_shard

SETS = ("train", "val", "test")
DIVISIONS: dict[str, dict[str, range]] = {
    "original": {"train": range(1600), "val": range(1600, 1799), "test": range(1799, 1999)},
    "published": {"train": range(1600), "val": range(1600, 1800), "test": range(1800, 2000)},
}
COMMAND = "flashgatr data arteries"


@dataclass(frozen=True)
class Summary:
    """Totals of a set. `label_scale` is None if some meshes have no labels."""

    meshes: int
    nodes: int
    masked: int
    label_scale: float | None


def load(
    folder: PathLike, split: str, *, limit: int | None = None, division: str = "original"
) -> list[Mesh]:
    """The meshes of a set (or its first `limit`), sorted by sample number."""
    contents, chosen = choose(folder, split, limit=limit, division=division)
    return sorted(_read(contents, frozenset(chosen)), key=lambda mesh: mesh.index)


def choose(
    folder: PathLike, split: str, *, limit: int | None = None, division: str = "original"
) -> tuple[DataFolder, list[int]]:
    """The contents of a folder, and the sample numbers that `load` would read; an error if there
    are none.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    contents = scan(folder)
    wanted = numbers(contents, split, division)
    if not wanted:
        raise ArteryError(f"{folder} has no {split} meshes; make some with `{COMMAND}`")
    if limit is not None and limit > len(wanted):
        raise ArteryError(f"{folder} has {len(wanted)} {split} meshes, {limit} are needed")
    return contents, wanted[:limit]


def label_scale(meshes: Iterable[Mesh]) -> float:
    """Root mean square √(mean |y|²) of the labels over all masked nodes."""
    total, count = 0.0, 0
    for mesh in meshes:
        if mesh.wss is None:
            raise ArteryError(f"{mesh.name} has no labels")
        total += float(np.square(mesh.wss[mesh.mask], dtype=np.float64).sum())
        count += int(mesh.mask.sum())
    if not count:
        raise ArteryError("there are no masked nodes to take the labels' scale of")
    return float(np.sqrt(total / count))


def tenths(count: int) -> dict[str, list[int]]:
    """The division of `count` synthetic samples, as stored in the metadata.

    >>> tenths(40)
    {'train': [0, 32], 'val': [32, 36], 'test': [36, 40]}
    """
    if count < 3:
        raise ValueError(f"a division into {', '.join(SETS)} needs 3 samples at least, got {count}")
    tenth = max(1, round(count / 10))
    ends = [0, count - 2 * tenth, count - tenth, count]
    return {name: ends[k : k + 2] for k, name in enumerate(SETS)}


@dataclass(frozen=True)
class DataFolder:
    """The sample numbers in each file, and the division stored in the files, if there is one."""

    files: dict[Path, list[int]]
    split: dict[str, range] | None
    headers: dict[Path, Header]


def scan(folder: PathLike) -> DataFolder:
    """Read the sample numbers and headers of all shards in a folder, but not their meshes."""
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise ArteryError(f"there are no meshes in {folder}; make them with `{COMMAND}`")
    files, headers = {}, {}
    owner: dict[int, Path] = {}
    for path in paths:
        files[path], headers[path] = read_index(path)
        for number in files[path]:
            if number in owner:
                raise ArteryError(
                    f"sample {number} is both in {owner[number]} and in {path.name}; "
                    "keep data of one kind in a folder"
                )
            owner[number] = path
    splits = [headers[path].get("split") for path in paths]
    for path, split in zip(paths, splits, strict=True):
        if split != splits[0]:
            raise ArteryError(
                f"{path} has another division than {paths[0].name}; prepare them again"
            )
    return DataFolder(files, _ranges(paths[0], splits[0]), headers)


def numbers(contents: DataFolder, split: str, division: str = "original") -> list[int]:
    """The sample numbers of a set that the folder has, sorted."""
    if split not in SETS:
        raise ValueError(f"unknown set {split!r}; expected one of {', '.join(SETS)}")
    if division not in DIVISIONS:
        raise ValueError(f"unknown division {division!r}; expected one of {', '.join(DIVISIONS)}")
    wanted = (contents.split or DIVISIONS[division])[split]
    return sorted(n for found in contents.files.values() for n in found if n in wanted)


def describe(folder: PathLike, division: str = "original") -> dict[str, Summary]:
    """Totals of each set; all files are read and checked."""
    contents = scan(folder)
    return {name: _summary(contents, numbers(contents, name, division)) for name in SETS}


def _summary(contents: DataFolder, wanted: list[int]) -> Summary:
    nodes = masked = 0
    total: float | None = 0.0
    for mesh in _read(contents, frozenset(wanted)):
        nodes, masked = nodes + mesh.nodes, masked + int(mesh.mask.sum())
        if mesh.wss is None or total is None:
            total = None
        else:
            total += float(np.square(mesh.wss[mesh.mask], dtype=np.float64).sum())
    scale = float(np.sqrt(total / masked)) if masked and total is not None else None
    return Summary(len(wanted), nodes, masked, scale)


def _read(contents: DataFolder, wanted: frozenset[int]) -> Iterator[Mesh]:
    for path, found in contents.files.items():
        if not wanted.isdisjoint(found):
            yield from read_shard(path, wanted)


def _ranges(path: Path, split: object) -> dict[str, range] | None:
    if split is None:
        return None
    if isinstance(split, dict) and split.keys() == set(SETS):
        ends = [x for name in SETS for x in split[name]] if all(map(_pair, split.values())) else []
        if ends and ends == sorted(ends):
            return {name: range(*split[name]) for name in SETS}
    raise ArteryError(f"{path} is damaged: its division is {str(split)[:80]}; prepare it again")


def _pair(x: object) -> bool:
    return isinstance(x, list) and len(x) == 2 and all(type(n) is int and n >= 0 for n in x)
