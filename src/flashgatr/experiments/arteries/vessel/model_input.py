"""From a vessel in a file to the inputs of a model: finds the inlet, the unit and the extensions.

    extensions   auto   existing ones are cut off; where there are none, they are added and cut off
                 cut    the vessel has extensions, like the published ones: cut them off
                 add    add them at every end, and cut them off
                 keep   nothing is cut off or added; only the nodes of caps are left out

The models were trained on vessels between straight extensions of 5 diameters D, of which 4 D were
cut off at either end after the distances had been computed. N nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..data import raw
from ..data.mesh import EDGE, Array, ArteryError, Mesh
from ..data.wall import CUT, MARGIN, between_extensions, inlet_diameter, prepare_wall
from . import formats
from .boundaries import LENGTH, End, cap, choose_inlet, extension, find_ends, is_extended
from .surface import MOST, Surface, cleaned, close_nodes, require_at_most

UNITS = {"cm": 1.0, "mm": 0.1, "m": 100.0}
PLAUSIBLE = (0.1, 1.0)  # cm, inlet diameters by which the unit is recognised
TRAINED = (0.24, 0.41)  # cm, inlet diameters of the published vessels
FAR = 100.0  # cm; meshes farther from the origin are centred before rounding to float32
EXTENSIONS = ("auto", "cut", "add", "keep")
REFERENCE = "wss_reference"


@dataclass(frozen=True)
class Vessel:
    """What a model sees, and which of its nodes come from the file."""

    mesh: Mesh
    origin: Array  # (nodes of mesh,) number of the node in the file; -1: added
    position: Array  # (nodes of mesh, 3) float64, in the units of the file
    inlet: str
    unit: str
    notes: list[str]
    start: float = 0.0  # geodesic distance at the file's inlet, if an extension was added there


@dataclass(frozen=True)
class _Closed:
    """A closed surface in cm, and where its nodes come from."""

    position: Array  # (N, 3) float64
    face: Array
    inlet: Array
    origin: Array  # (N,) number of the node in the file; -1: added
    is_cap: Array  # (N,) on a cap, but not on its rim
    far: Array  # (N,) added, and more than MARGIN diameters away from the vessel
    joint: Array  # the nodes at which an extension was added to the inlet, if any
    is_added: tuple[bool, bool] = (
        False,
        False,
    )  # whether extensions were added at the inlet, and at another end


def read_vessel(
    path: Path,
    *,
    sample: str | None = None,
    inlet: str = "auto",
    scale: str = "auto",
    extensions: str = "auto",
    reference: str = REFERENCE,
    method: str = "auto",
    most: int = MOST,
    way_out: str = "",
) -> Vessel:
    """The vessel in a file of any supported format, or in the published layout.

    Meshes of more than `most` nodes are refused before the costly part of the preparation; the
    error recommends `way_out` first.
    """
    for name, value, known in (
        ("scale", scale, ("auto", *UNITS)),
        ("extensions", extensions, EXTENSIONS),
    ):
        if value not in known:
            raise ArteryError(f"--{name} must be one of {', '.join(known)}, got {value!r}")
    if not path.exists():
        raise ArteryError(f"there is no {path}")
    if not (path.is_file() or path.is_dir()):
        raise ArteryError(
            f"{path} is neither a file nor a folder, but such as a pipe or a device; save the mesh "
            "to a file first"
        )
    given = reference != REFERENCE  # an array that the user asks for must exist
    published = path.is_dir() or path.suffix.lower() in raw.SUFFIXES
    if sample is not None and not published:
        raise ArteryError(f"--sample goes with HDF5 files of several samples, not with {path.name}")
    told = ""
    if published:
        if given and reference != "wss":
            raise ArteryError(
                f"--reference goes with .vtp and .vtu files; {path.name} has its labels as wss"
            )
        _require_sample(path, sample)
        found = raw.read_raw(path, sample)
        name, index = found.name, found.index
        with _about(path, name):
            require_at_most(found.nodes, most, way_out)
            if inlet == "auto" and extensions in ("auto", "cut"):
                return _published(found, scale, method)
            surface = cleaned(found.position, found.face, found.wss, most=most, way_out=way_out)
            if inlet == "auto":
                inlet = " ".join(map(str, found.position[found.inlet].astype(np.float64).mean(0)))
                told = "the file's"
    else:
        name, index = path.stem, -1
        position, face, labels = formats.read(path, reference, required=given)
        with _about(path, name):
            repeats = path.suffix.lower() == ".stl"
            labels = _vectors(reference, labels)
            surface = cleaned(position, face, labels, repeats=repeats, most=most, way_out=way_out)
    with _about(path, name):
        try:
            return _vessel(surface, name, index, inlet, told, scale, extensions, method)
        except ArteryError as error:
            raise ArteryError(f"{error}{close_nodes(surface)}") from error


def _require_sample(path: Path, sample: str | None) -> None:
    """Refuse unknown names of samples, which would also become names of output files."""
    names = raw.sample_names(path) if sample is not None else []
    if sample is not None and sample not in names:
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        raise ArteryError(f"{path} has no sample {sample!r}; --sample must be one of {shown}")


@contextmanager
def _about(path: Path, name: str) -> Iterator[None]:
    where = str(path) if name == path.stem else f"{name} in {path}"
    try:
        yield
    except ArteryError as error:
        raise ArteryError(f"cannot use {where}: {error}") from error


def _vectors(name: str, x: Array | None) -> Array | None:
    if x is None:
        return None
    if x.shape[1:] != (3,) or not np.isfinite(x).all():
        raise ArteryError(f"{name} has shape {x.shape}, expected finite vectors (N, 3)")
    return x.astype(np.float32)


def _published(found: raw.RawMesh, scale: str, method: str) -> Vessel:
    """A vessel in the published layout, prepared as the training data are."""
    everything = np.arange(found.nodes)
    diameter = inlet_diameter(found.position, found.face, found.inlet)
    unit, notes = _unit(diameter, scale)
    exact = UNITS[unit] * found.position.astype(np.float64)
    no = np.zeros(found.nodes, bool)
    closed = _Closed(exact, found.face, found.inlet, everything, no, no, everything[:0])
    mesh, keep, _ = _inputs(closed, found.name, found.index, True, method)
    notes += [*_left_out("both ends", found.nodes, mesh.nodes), *_resolution(mesh)]
    mesh = replace(mesh, wss=None if found.wss is None else found.wss[keep])
    place = found.position[keep].astype(np.float64)
    return Vessel(mesh, everything[keep], place, "the file's", unit, notes)


def _vessel(
    surface: Surface,
    name: str,
    index: int,
    inlet: str,
    told: str,
    scale: str,
    extensions: str,
    method: str,
) -> Vessel:
    """`told` says where the position of the inlet comes from, if not from the user."""
    found, holes = find_ends(surface.position, surface.face)
    if len(found) < 2:
        raise ArteryError(
            f"it has {len(found)} ends (openings or flat caps), expected two or more; cut it off "
            "flat "
            "at inlet and outlet, such as with ParaView's filter Clip"
        )
    place, how = choose_inlet(found, inlet)
    if told:
        how = f"end {place + 1}, {told}"
    unit, notes = _unit(found[place].diameter, scale)
    notes = [*surface.notes, *notes]
    if inlet == "auto":
        notes.append(how)
        how = f"end {place + 1}, the largest"
    if len(found) > 2:
        notes.append(f"it has {len(found)} ends; the models were trained on vessels with two")
    if holes:
        notes.append(f"{len(holes)} small holes were closed")
    exact = UNITS[unit] * surface.position
    in_cm = [
        replace(end, centre=UNITS[unit] * end.centre, diameter=UNITS[unit] * end.diameter)
        for end in found
    ]
    longer, cut = _plan(exact, surface.face, in_cm, in_cm[place].diameter, extensions, notes)
    opened = [str(k + 1) for k, end in enumerate(found) if end.is_open]
    if opened:
        notes.append(f"open ends were closed: {', '.join(opened)}")
    closed = _closed(exact, surface.face, in_cm, holes, place, longer)
    mesh, keep, start = _inputs(closed, name, index, cut, method)
    origin = closed.origin[keep]
    if cut and (~keep & ~closed.is_cap & (closed.origin >= 0)).any():
        where = [k for k in range(len(found)) if k not in longer]
        kept = int((origin >= 0).sum())
        notes += _left_out(_named(where), len(surface.position), kept)
    if surface.wss is not None:
        mesh = replace(mesh, wss=np.where(origin[:, None] >= 0, surface.wss[origin], 0))
    notes += _resolution(mesh)
    return Vessel(mesh, origin, closed.position[keep] / UNITS[unit], how, unit, notes, start)


def _named(ends: Iterable[int]) -> str:
    """For example "end 2" or "ends 1, 2 and 3"."""
    *some, last = (str(k + 1) for k in ends)
    return f"ends {', '.join(some)} and {last}" if some else f"end {last}"


def _left_out(where: str, nodes: int, kept: int) -> list[str]:
    return [
        f"flow extensions were cut off at {where}: {nodes - kept:,} of {nodes:,} nodes are left "
        "out; "
        "--extensions keep keeps all but the caps"
    ]


def _unit(diameter: float, scale: str) -> tuple[str, list[str]]:
    """The unit of the file (with "auto", guessed from the diameter of its inlet), and notes on
    it.
    """
    low, high = PLAUSIBLE
    unit = scale
    notes = []
    if scale == "auto":
        fits = [name for name, factor in UNITS.items() if low <= factor * diameter < high]
        if not fits:
            raise ArteryError(
                f"its inlet has a diameter of {diameter:.3g}, which is that of a coronary artery "
                f"({low:g} to {high:g} cm) in none of {', '.join(UNITS)}; scale it, or say the "
                "unit with "
                f"--scale"
            )
        unit = fits[0]
        if unit != "cm":
            notes.append(f"its unit was taken to be {unit}; --scale says otherwise")
    size = UNITS[unit] * diameter
    if not TRAINED[0] <= size <= TRAINED[1]:
        notes.append(
            f"its inlet has a diameter of {size:.3g} cm, the published training vessels of 0.25 "
            "to 0.4 cm: "
            "expect larger errors"
        )
    return unit, notes


def _plan(
    position: Array, face: Array, found: list[End], size: float, extensions: str, notes: list[str]
) -> tuple[dict[int, float], bool]:
    """The lengths of the extensions to add, by end, and whether extensions are cut off at the
    end.
    """
    if extensions == "auto":
        has = [is_extended(position, face, end, CUT * size) for end in found]
        if len(found) > 2 and any(has):
            notes.append("some ends look like flow extensions; nothing is cut off or added")
            return {}, False
    else:
        has = [extensions != "add"] * len(found)
    if extensions == "keep":
        return {}, False
    if extensions == "cut" and len(found) > 2:
        raise ArteryError(f"--extensions cut needs a vessel with two ends, got {len(found)}")
    longer = {k: LENGTH * size for k, there in enumerate(has) if not there}
    if longer:
        notes.append(f"straight flow extensions were added for the computation at {_named(longer)}")
    return longer, len(found) == 2


def _closed(
    position: Array,
    face: Array,
    found: list[End],
    holes: list[Array],
    place: int,
    longer: dict[int, float],
) -> _Closed:
    """Add extensions, close openings, and drop the nodes of caps that extensions replace."""
    count = len(position)
    is_cap, far = np.zeros(count, bool), np.zeros(count, bool)
    dropped = np.concatenate([found[k].cap for k in longer] or [np.zeros(0)]).astype(np.int64)
    pieces = [np.delete(face, dropped, axis=0)]
    for rim in holes:
        added = cap(position, rim, rings=0)
        position = np.concatenate([position, added.position])
        is_cap, far = (np.append(x, np.zeros(len(added.position), bool)) for x in (is_cap, far))
        pieces.append(added.face)
    inlet = np.zeros(0, np.int64)
    for k, end in enumerate(found):
        rim = end.rim
        if k in longer:
            tube = extension(position, end, longer[k])
            away = np.repeat(
                np.linspace(0, longer[k], len(tube.position) // len(rim) + 1)[1:], len(rim)
            )
            position = np.concatenate([position, tube.position])
            is_cap = np.append(is_cap, np.zeros(len(away), bool))
            far = np.append(far, away > longer[k] * MARGIN / LENGTH)
            pieces.append(tube.face)
            rim = tube.rim
        if k in longer or end.is_open:
            added = cap(position, rim)
            nodes = np.concatenate([rim, len(position) + np.arange(len(added.position))])
            position = np.concatenate([position, added.position])
            is_cap = np.append(is_cap, np.ones(len(added.position), bool))
            far = np.append(far, np.full(len(added.position), k in longer))
            pieces.append(added.face)
        else:
            nodes = np.unique(face[end.cap])
            is_cap[np.setdiff1d(nodes, rim)] = True
        if k == place:
            inlet = nodes
    whole = np.concatenate(pieces)
    used = np.zeros(len(position), bool)
    used[whole] = True
    number = np.cumsum(used) - 1
    origin = np.where(np.arange(len(position)) < count, np.arange(len(position)), -1)
    return _Closed(
        position[used],
        number[whole],
        number[inlet],
        origin[used],
        is_cap[used],
        far[used],
        number[found[place].rim] if place in longer else inlet[:0],
        (place in longer, any(k != place for k in longer)),
    )


def _inputs(
    closed: _Closed, name: str, index: int, cut: bool, method: str
) -> tuple[Mesh, Array, float]:
    """The mesh for the model, the nodes it consists of, and the distance at the file's inlet."""
    near = own = closed.position.astype(np.float32)
    if (near != closed.position).any():  # a mesh far from the origin would lose its shape
        center = closed.position.mean(axis=0)
        near = (closed.position - center).astype(np.float32)
        own = near if np.abs(center).max() > FAR else own

    def keep(geodesic: Array, diameter: float) -> Array:
        if cut:
            return _uncut(closed, geodesic, diameter)
        return np.asarray(~(closed.is_cap | closed.far))

    hint = "; if it has no flow extensions, --extensions add" + (" or keep" if cut else "")
    inside = closed.origin >= 0 if not cut and closed.far.any() else None
    found = raw.RawMesh(name, index, near, closed.face, closed.inlet)
    wall = prepare_wall(found, keep, method, inside=inside, hint=hint)
    start = float(wall.geodesic[closed.joint].mean()) if len(closed.joint) else 0.0
    return replace(wall.mesh, position=own[wall.keep]), wall.keep, start


def _uncut(closed: _Closed, geodesic: Array, diameter: float) -> Array:
    """The nodes between the extensions. Nodes of the file are kept where an extension was added."""
    is_first = geodesic < (geodesic.min() + geodesic.max()) / 2
    inlet, outlet = closed.is_added
    is_safe = (closed.origin >= 0) & ((is_first & inlet) | (~is_first & outlet))
    return np.asarray(between_extensions(geodesic, diameter) | is_safe)


def _resolution(mesh: Mesh) -> list[str]:
    assert mesh.face is not None
    corners = mesh.position.astype(np.float64)[mesh.face]
    edge = float(np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=-1).mean())
    if EDGE / 2 <= edge <= 2 * EDGE:
        return []
    return [
        f"its edges are {edge:.2g} cm long, those of the published training meshes {EDGE} cm: "
        "expect "
        "larger errors, or make new triangles of that size"
    ]
