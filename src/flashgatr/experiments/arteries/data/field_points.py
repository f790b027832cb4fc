"""Points of a vessel's flow field for training: velocity in the lumen, stress on the wall.

A folder holds a file per vessel, sample_0000.safetensors, with L points of the lumen, then W points
of the wall, T = L + W:

    position    (T, 3)   cm
    distance    (T)      cm from the inlet along the centreline
    pressure    (T)      dyn/cm², relative to the outlet
    target      (T, 3)   velocity in the lumen, cm/s; shear stress on the wall, dyn/cm²
    normal      (W, 3)   outward unit vectors of the wall

All are float32. The header has the settings, the vessel's inlet diameter, the span of distances the
points come from, and the volume and area of this part. A SHA-256 covers everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....io.files import Header
from .arrays import ArrayFile, PathLike, readable
from .mesh import Array, ArteryError
from .raw import sample_number
from .sets import SETS, tenths
from .wall import MARGIN

LUMEN, WALL = 0, 1
FILE = ArrayFile(
    what="a file of points of a flow field",
    key="artery_field",
    format=1,
    header=dict(name=str, settings=dict, inlet_diameter=float, span=list, volume=float, area=float),
    dtypes=dict.fromkeys(("position", "distance", "pressure", "target", "normal"), "F32"),
)
SUFFIX = ".safetensors"
COMMAND = "flashgatr data flows"


@dataclass(frozen=True)
class FieldPoints:
    """L points of a vessel's lumen, then W points of its wall; T = L + W.

    Points are uniform in volume and in area: each stands for volume / L or area / W.
    """

    name: str
    position: Array  # (T, 3) float32, cm
    distance: Array  # (T,) float32, cm from the inlet along the centreline
    pressure: Array  # (T,) float32, dyn/cm², relative to the outlet
    target: Array  # (T, 3) float32: velocity in the lumen, stress on the wall
    normal: Array  # (W, 3) float32, of the wall
    inlet_diameter: float  # cm
    span: tuple[float, float]  # distances of the ends that points come from, cm
    volume: float  # cm³
    area: float  # cm²
    settings: dict[str, Any]

    @property
    def index(self) -> int:
        return sample_number(self.name)

    @property
    def lumen(self) -> slice:
        """The rows of the points of the lumen."""
        return slice(0, len(self.position) - len(self.normal))

    @property
    def wall(self) -> slice:
        """The rows of the points of the wall."""
        return slice(len(self.position) - len(self.normal), len(self.position))

    @property
    def kind(self) -> Array:
        """(T,) LUMEN or WALL."""
        return np.repeat([LUMEN, WALL], [len(self.position) - len(self.normal), len(self.normal)])

    @property
    def mask(self) -> Array:
        """(T,) bool: the points that count in loss and metrics, as for meshes: those farther than
        the inlet's diameter from both ends of the span.
        """
        margin = MARGIN * self.inlet_diameter
        low, high = self.span[0] + margin, self.span[1] - margin
        return np.asarray((self.distance > low) & (self.distance < high))


def write_field(path: PathLike, points: FieldPoints) -> None:
    """Write points atomically."""
    header: Header = {name: getattr(points, name) for name in FILE.header}
    header["span"] = list(points.span)
    FILE.write(path, header, {name: getattr(points, name) for name in FILE.dtypes})


def read_field(path: PathLike) -> FieldPoints:
    """Read and check the points of a vessel."""
    header, arrays = FILE.read(path)
    with readable(path, FILE.what):
        total, walls = arrays["distance"].size, arrays["normal"].size // 3
        shapes = dict(distance=(total,), pressure=(total,), normal=(walls, 3))
        for name, x in arrays.items():
            expected = shapes.get(name, (total, 3))
            if x.shape != expected or walls > total:
                raise ArteryError(f"{name} has shape {x.shape}, expected {expected}")
        low, high = map(float, header["span"])
        if not low < high or not header["inlet_diameter"] > 0:
            raise ArteryError(
                f"its points lie from {low} to {high} cm behind an inlet of diameter "
                f"{header['inlet_diameter']} cm"
            )
        values: dict[str, Any] = {name: header[name] for name in FILE.header}
        return FieldPoints(**(values | arrays | {"span": (low, high)}))


def field_files(
    folder: PathLike, split: str | None = None, *, limit: int | None = None
) -> list[Path]:
    """The files of a folder, by sample number: all, or (the first `limit`) of train, val or test.

    As for meshes, eighty percent are for training and ten each for validation and test, by number.
    """
    by_number = {sample_number(path.stem): path for path in Path(folder).glob(f"*{SUFFIX}")}
    by_number.pop(-1, None)
    if not by_number:
        raise ArteryError(f"there are no points in {folder}; make them with `{COMMAND}`")
    if split is None:
        return [by_number[n] for n in sorted(by_number)]
    if split not in SETS:
        raise ValueError(f"unknown set {split!r}; expected one of {', '.join(SETS)}")
    first, end = tenths(1 + max(by_number))[split]
    found = [by_number[n] for n in sorted(by_number) if first <= n < end]
    if not found:
        raise ArteryError(f"{folder} has no {split} vessels; make more with `{COMMAND}`")
    if limit is not None and limit > len(found):
        raise ArteryError(f"{folder} has {len(found)} {split} vessels, {limit} are needed")
    return found[:limit]


def load_fields(folder: PathLike, split: str, *, limit: int | None = None) -> list[FieldPoints]:
    """The vessels of a set (or its first `limit`), sorted by sample number."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    return [read_field(path) for path in field_files(folder, split, limit=limit)]
