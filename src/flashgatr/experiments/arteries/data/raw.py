"""Vessels in the published HDF5 layout: a database with a group per sample, or a file per sample.

    pos         (N, 3)   cm
    face        (M, 3)   node numbers from 0, facing outward
    inlet_idcs  (K)      node numbers
    wss         (N, 3)   dyn/cm²
    pressure    (N)      dyn/cm²

The database is called database.hdf5; its groups, or the files, are called sample_0000 and so on.
Attributes hold the parameters of a generator. Other datasets are ignored. A separate process reads
the files (hdf5.py).
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ....io.files import replacing, write
from .hdf5 import HINT, READER
from .mesh import Array, ArteryError

if TYPE_CHECKING:
    import h5py

PathLike: TypeAlias = str | os.PathLike[str]
T = TypeVar("T")

SUFFIXES = (".hdf5", ".h5")
DATABASE = "database.hdf5"
MAX_NODES = 2_000_000
JSON_MARK = "json:"  # prefix of parameters that are stored as JSON


@dataclass(frozen=True)
class RawMesh:
    """A closed surface with flow extensions. `index` is the number at the end of its name, or
    -1.
    """

    name: str
    index: int
    position: Array  # (N, 3) float32, cm
    face: Array  # (M, 3) int64, outward
    inlet: Array  # (K,) int64, the nodes of the inlet cap
    wss: Array | None = None  # (N, 3) float32, dyn/cm²
    pressure: Array | None = None  # (N,) float32, dyn/cm²
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        return int(np.shape(self.position)[0])


def sample_number(name: str) -> int:
    """The number at the end of a sample's name, which sets its place in the split; -1 without one.

    >>> sample_number("sample_0042"), sample_number("vessel")
    (42, -1)
    """
    found = re.search(r"([0-9]{1,9})$", name)
    return int(found.group(1)) if found else -1


def sample_names(path: PathLike) -> list[str]:
    """The samples of a database, of a folder of files, or of one file, in alphabetical order."""
    place = _place(path)
    if not place.is_dir():
        names = _named(place, "", lambda: READER.names(str(place)))
        return sorted(name or place.stem for name in names)
    names = [file.stem for file in place.iterdir() if file.suffix in SUFFIXES]
    twice = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    )
    if twice:
        raise ArteryError(f"{path} has more than one file of {min(twice)}; keep one of them")
    if not names:
        raise ArteryError(
            f"{path} has no samples: expected {DATABASE}, or files such as sample_0000.hdf5"
        )
    return sorted(names)


def read_raw(path: PathLike, name: str | None = None) -> RawMesh:
    """Read and check a sample.

    Without a name, `path` must hold a single sample. A name is that of a group, or of a file in the
    folder without its suffix; it is never a path.
    """
    if name is None:
        names = sample_names(path)
        if len(names) != 1:
            raise ArteryError(
                f"{path} holds {len(names)} samples; say which, such as --sample {names[0]}"
            )
        name = names[0]
    if Path(name).name != name:
        raise ArteryError(f"{name!r} is no name of a sample in {path}")
    place, group = sample_file(path, name), ""
    if not _place(path).is_dir() and (
        name != place.stem or _named(place, name, lambda: READER.names(str(place))) != [""]
    ):
        group = name
    return _named(place, name, lambda: _sample(place, group, name))


def sample_file(path: PathLike, name: str) -> Path:
    """The file that holds a sample of a database, of a folder of files, or of one file."""
    place = _place(path)
    if not place.is_dir():
        return place
    there = [place / f"{name}{suffix}" for suffix in SUFFIXES]
    return next((file for file in there if file.is_file()), there[0])


def write_raw(target: PathLike | h5py.Group, mesh: RawMesh) -> None:
    """Write a sample to a file (atomically), or into a group of an open HDF5 file."""
    _checked(mesh)
    if not isinstance(target, (str, os.PathLike)):
        return _fill(target, mesh)
    content = io.BytesIO()
    with _h5py().File(content, "w") as file:
        _fill(file, mesh)
    write(Path(target), content.getvalue())


def merge(folder: PathLike, target: PathLike) -> int:
    """Merge the files of a folder into one database and return their number; all must be
    readable.
    """
    names = sample_names(folder)
    with replacing(Path(target)) as aside, _h5py().File(aside, "w") as database:
        for name in names:
            _fill(database.create_group(name), read_raw(folder, name))
    return len(names)


def _place(path: PathLike) -> Path:
    """The database, the folder of files or the single file that a path stands for."""
    place = Path(path)
    if not place.exists():
        raise ArteryError(f"there is no {path}; expected {DATABASE} or a folder of samples")
    if not place.is_dir():
        return place
    for database in (place / DATABASE, place / "raw" / DATABASE):
        if database.is_file():
            others = [f for f in place.iterdir() if f.suffix in SUFFIXES and f != database]
            if others:
                raise ArteryError(
                    f"{path} has both {DATABASE} and {others[0].name}; name one of them"
                )
            return database
    return place


def _named(place: Path, name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except ArteryError as error:
        where = f"{name} in {place}" if name and name != place.stem else str(place)
        raise ArteryError(f"cannot use {where}: {error}") from error


def _sample(place: Path, group: str, name: str) -> RawMesh:
    arrays, attributes = READER.sample(str(place), group)
    parameters = {key: _decoded(key, value) for key, value in attributes.items()}
    return _checked(RawMesh(name, sample_number(name), **arrays, parameters=parameters))


def _checked(mesh: RawMesh) -> RawMesh:
    """The mesh with our dtypes, after checking shapes and numbers."""
    count = mesh.nodes if np.ndim(mesh.position) else 0
    if not 4 <= count <= MAX_NODES:
        raise ArteryError(f"it has {count:,} nodes, expected 4 to {MAX_NODES:,}")
    face = _indices("face", mesh.face, 2, count)
    inlet = _indices("inlet_idcs", mesh.inlet, 1, count)
    if len(np.unique(inlet)) < len(inlet):
        raise ArteryError("inlet_idcs names some nodes twice")
    if (face == np.roll(face, 1, axis=1)).any():
        raise ArteryError("some faces name a node twice, expected three different ones")
    return replace(
        mesh,
        position=_floats("pos", mesh.position, (count, 3)),
        face=face,
        inlet=inlet,
        wss=None if mesh.wss is None else _floats("wss", mesh.wss, (count, 3)),
        pressure=None if mesh.pressure is None else _floats("pressure", mesh.pressure, (count,)),
    )


def _floats(name: str, x: Array, shape: tuple[int, ...]) -> Array:
    if np.shape(x) != shape or np.asarray(x).dtype.kind not in "iuf":
        raise ArteryError(
            f"{name} has shape {np.shape(x)} and dtype {np.asarray(x).dtype}, expected {shape} "
            "and floats"
        )
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32)
    wrong = int((~np.isfinite(x)).sum())
    if wrong:
        raise ArteryError(f"{name} has {wrong:,} values that are not finite")
    return x


def _indices(name: str, x: Array, dimensions: int, count: int) -> Array:
    shape = np.shape(x)
    if (
        np.asarray(x).dtype.kind not in "iu"
        or len(shape) != dimensions
        or shape[1:] not in ((), (3,))
    ):
        expected = "(M, 3)" if dimensions == 2 else "(K,)"
        raise ArteryError(
            f"{name} has shape {shape} and dtype {np.asarray(x).dtype}, expected {expected} and "
            "integers"
        )
    if not shape[0]:
        raise ArteryError(f"{name} is empty")
    low, high = int(x.min()), int(x.max())
    if low < 0 or high >= count:
        raise ArteryError(f"{name} names nodes {low} to {high}, expected 0 to {count - 1}")
    return np.ascontiguousarray(x, dtype=np.int64)


def _fill(group: h5py.Group, mesh: RawMesh) -> None:
    mesh = _checked(mesh)
    datasets = {
        "pos": mesh.position,
        "face": mesh.face.astype(np.int32),
        "inlet_idcs": mesh.inlet.astype(np.int32),
        "wss": mesh.wss,
        "pressure": mesh.pressure,
    }
    for name, x in datasets.items():
        if x is not None:
            group.create_dataset(name, data=x, compression="gzip", shuffle=True)
    for key, value in mesh.parameters.items():
        group.attrs[key] = _encoded(key, value)


def _encoded(key: str, value: Any) -> Any:
    """A parameter as an HDF5 attribute: numbers and text as they are, everything else as JSON."""
    if isinstance(value, str) and not value.startswith(JSON_MARK):
        return value
    plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(plain, (bool, int, float)) and abs(plain) < 2**63:
        return plain
    try:
        return JSON_MARK + json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise ArteryError(f"parameter {key!r} cannot be stored: {error}") from error


def _decoded(key: str, value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith(JSON_MARK)):
        return value
    try:
        return json.loads(value[len(JSON_MARK) :])
    except (ValueError, RecursionError) as error:
        raise ArteryError(f"its parameter {key!r} is damaged ({error})") from error


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise ImportError(HINT) from None
    return h5py
