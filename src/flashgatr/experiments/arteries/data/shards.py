"""Prepared meshes in safetensors files: mesh m owns rows offsets[m]:offsets[m+1].

    index, inlet_diameter          (M)      one per mesh
    offsets, face_offsets          (M + 1)
    position, normal, wss          (T, 3)   T nodes in all
    geodesic                       (T)
    face                           (F, 3)   node numbers within their mesh

Our files hold float32 and, as metadata, a format number, the names of the meshes, how they were
made, and a SHA-256 over everything. The compact copies in circulation have 16-bit numbers (position
and geodesic with an origin and a scale per mesh), no faces and no metadata. The mask is computed
from geodesic and inlet_diameter. Meshes without labels have no wss.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np

from ....io import files
from ....io.files import Header
from .arrays import NUMPY, PathLike, readable, to_numpy
from .mesh import Array, ArteryError, Mesh, between
from .wall import MARGIN

FORMAT = 1
KEY = "arteries"  # of our entry in the metadata
WHAT = "a shard of meshes"
HEADER = dict(names=list, settings=dict)
OWN = {
    "index": "I32",
    "offsets": "I64",
    "inlet_diameter": "F32",
    "position": "F32",
    "normal": "F32",
    "geodesic": "F32",
    "wss": "F32",
    "face": "I32",
    "face_offsets": "I64",
}
COMPACT = {
    "index": "I32",
    "offsets": "I64",
    "inlet_diameter": "F32",
    "position": "U16",
    "position_origin": "F32",
    "position_scale": "F32",
    "normal": "F16",
    "geodesic": "U16",
    "geodesic_origin": "F32",
    "geodesic_scale": "F32",
    "wss": "F16",
}
OPTIONAL = {"wss", "face", "face_offsets"}
PER_MESH = {
    "index",
    "inlet_diameter",
    "position_origin",
    "position_scale",
    "geodesic_origin",
    "geodesic_scale",
}
VECTORS = {"position", "normal", "wss", "face", "position_origin", "position_scale"}


def read_shard(path: PathLike, numbers: Container[int] | None = None) -> list[Mesh]:
    """Check a file and return its meshes: all, or those with the given sample numbers."""
    with readable(path, WHAT):
        header, tensors = _parsed(files.read(Path(path)))
        return _meshes(tensors, header, numbers)


def read_index(path: PathLike) -> tuple[list[int], Header]:
    """The sample numbers and the header of a file ({} for a compact copy); the rest is not read."""
    from safetensors import safe_open

    with readable(path, WHAT), safe_open(os.fspath(path), framework="numpy") as file:
        header = files.parse_header(file.metadata(), KEY, FORMAT, HEADER)
        index = file.get_tensor("index")
        if index.dtype != np.int32 or index.ndim != 1:
            raise ArteryError(f"index has dtype {index.dtype} and shape {index.shape}")
        return index.tolist(), header


def write_shard(path: PathLike, meshes: Sequence[Mesh], header: Header) -> None:
    """Write meshes atomically. `header` says how they were made: source, settings, any other
    JSON.
    """
    if not meshes:
        raise ValueError("a shard needs at least one mesh")
    tensors = _packed(meshes)
    header = {"source": "", "settings": {}, **header}
    header |= {"format": FORMAT, "names": [mesh.name for mesh in meshes]}
    files.write(Path(path), files.pack_arrays(KEY, header, tensors)[0])


def _packed(meshes: Sequence[Mesh]) -> dict[str, Array]:
    found: dict[str, list[Array]] = {}
    for mesh in meshes:
        for name in ("position", "normal", "geodesic", "wss", "face"):
            x = getattr(mesh, name)
            if x is not None:
                found.setdefault(name, []).append(np.asarray(x, dtype=NUMPY[OWN[name]]))
    mixed = [name for name, parts in found.items() if len(parts) < len(meshes)]
    if mixed:
        raise ArteryError(f"some meshes of the shard have no {mixed[0]}; write them apart")
    tensors = {name: np.concatenate(parts) for name, parts in found.items()}
    tensors["index"] = np.array([mesh.index for mesh in meshes], dtype="<i4")
    tensors["inlet_diameter"] = np.array([mesh.inlet_diameter for mesh in meshes], dtype="<f4")
    tensors["offsets"] = _offsets(found["position"])
    if "face" in found:
        tensors["face_offsets"] = _offsets(found["face"])
    return {name: np.ascontiguousarray(tensors[name]) for name in OWN if name in tensors}


def _offsets(parts: list[Array]) -> Array:
    return np.cumsum([0, *map(len, parts)]).astype("<i8")


def _parsed(content: bytes) -> tuple[Header, dict[str, Array]]:
    header, tensors = files.unpack_arrays(content, KEY, FORMAT, HEADER)
    kinds = COMPACT if "position_scale" in tensors else OWN
    missing, unknown = kinds.keys() - tensors.keys() - OPTIONAL, tensors.keys() - kinds.keys()
    if missing or unknown or ("face" in tensors) != ("face_offsets" in tensors):
        raise ArteryError(f"its tensors are {sorted(tensors)}, expected {sorted(kinds)}")
    if kinds is OWN:
        files.require_digest(header, {name: tensors[name] for name in OWN if name in tensors})
    arrays = to_numpy(tensors, kinds)
    _require_shapes(arrays)
    return header, arrays


def _require_shapes(arrays: dict[str, Array]) -> None:
    count = arrays["index"].size
    rows = {"": arrays["geodesic"].size, "face": 0}
    if "face" in arrays:
        rows["face"] = arrays["face"].shape[0] if arrays["face"].ndim else 0
    for name, x in arrays.items():
        if name in ("offsets", "face_offsets"):
            shape: tuple[int, ...] = (count + 1,)
        else:
            length = count if name in PER_MESH else rows["face" if name == "face" else ""]
            shape = (length, 3) if name in VECTORS else (length,)
        if x.shape != shape or not count:
            raise ArteryError(f"{name} has shape {x.shape}, expected {shape}")
    for name, total in (("offsets", rows[""]), ("face_offsets", rows["face"])):
        if name in arrays:
            x = arrays[name]
            if x[0] != 0 or x[-1] != total or (np.diff(x) < (name == "offsets")).any():
                raise ArteryError(f"{name} do not grow from 0 to {total:,}")
    if len(np.unique(arrays["index"])) < count or arrays["index"].min() < 0:
        raise ArteryError("index has numbers below 0 or twice the same")
    if not (arrays["inlet_diameter"] > 0).all():
        raise ArteryError("inlet_diameter has entries that are not above 0")


def _meshes(arrays: dict[str, Array], header: Header, numbers: Container[int] | None) -> list[Mesh]:
    index = arrays["index"].tolist()
    names = header.get("names") or [f"sample_{number:04d}" for number in index]
    if len(names) != len(index) or not all(isinstance(name, str) for name in names):
        raise ArteryError(f"it names {len(names)} meshes, expected {len(index)}")
    return [
        _mesh(arrays, m, name, number)
        for m, (name, number) in enumerate(zip(names, index, strict=True))
        if numbers is None or number in numbers
    ]


def _mesh(arrays: dict[str, Array], m: int, name: str, number: int) -> Mesh:
    rows = slice(*arrays["offsets"][m : m + 2].tolist())

    def own(key: str) -> Array:
        x = arrays[key][rows]
        if f"{key}_scale" in arrays:
            origin, scale = (
                arrays[f"{key}_{part}"][m].astype(np.float64) for part in ("origin", "scale")
            )
            x = origin + scale * x
        return np.array(x, dtype=np.float32)

    normal, geodesic = own("normal"), own("geodesic")
    if "position_scale" in arrays:  # 16-bit normals are not quite unit vectors
        length = np.linalg.norm(normal, axis=1, keepdims=True)
        if not (abs(length - 1) < 0.1).all():
            raise ArteryError(f"the normals of {name} are not unit vectors")
        normal /= length
    diameter = float(arrays["inlet_diameter"][m])
    mask = between(geodesic, MARGIN * diameter)
    if not mask.any():
        raise ArteryError(f"{name} has no nodes farther than its inlet's diameter from both ends")
    return Mesh(
        name=name,
        index=number,
        position=own("position"),
        normal=normal,
        geodesic=geodesic,
        mask=mask,
        inlet_diameter=diameter,
        wss=own("wss") if "wss" in arrays else None,
        face=_faces(arrays, m, name, len(geodesic)) if "face" in arrays else None,
    )


def _faces(arrays: dict[str, Array], m: int, name: str, nodes: int) -> Array:
    face = arrays["face"][slice(*arrays["face_offsets"][m : m + 2].tolist())].astype(np.int64)
    if len(face) and not (face.min() >= 0 and face.max() < nodes):
        raise ArteryError(f"faces of {name} name nodes that it does not have")
    return face
