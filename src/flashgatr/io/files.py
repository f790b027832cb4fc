"""Atomic and checked files: a file is complete or absent; SHA-256; safetensors.

    write, replacing   write a temporary file, flush it to disk, rename it: readers find the old
                       file or the new one
    to_safetensors     named tensors to bytes; `from_safetensors` is the inverse
    pack_arrays        named arrays with a header to bytes; `unpack_arrays` is the inverse

The header of packed arrays is JSON in one entry of the safetensors metadata. It says how the arrays
were made and contains a SHA-256 of itself and the arrays. Reading a file never runs code; damaged
content raises a FileError.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

Header: TypeAlias = dict[str, Any]

LARGEST = 16 << 30
"""Largest size in bytes of a file that is read."""
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class FileError(ValueError):
    """The content of a file is damaged, too large, or not what was expected."""


# ---- writing and reading ----


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash, either the new content or the old is there."""
    with replacing(path) as aside, aside.open("wb") as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context that gives a temporary path to write to; on exit, the file is flushed to disk and
    renamed to `path`. Errors such as a full disk name that path.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(aside)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        aside.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Write a file and flush it to disk, without renaming: for a folder that is itself renamed
    when complete.
    """
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that files renamed in it stay renamed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a file of at most `limit` bytes."""
    size = path.stat().st_size
    if size > limit:
        raise FileError(f"it has {size:,} bytes; the limit is {limit:,}")
    return path.read_bytes()


def sha256(*chunks: bytes | memoryview) -> str:
    """SHA-256 of the chunks, one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


# ---- tensors ----


def to_safetensors(state: Mapping[str, Tensor]) -> bytes:
    """Tensors in the safetensors format: header length, JSON header, data.

    The library's own writer needs numpy, which the core does not install; its reader does not.
    """
    header: Header = {}
    chunks: list[bytes] = []
    start = 0
    for name, tensor in state.items():
        if type(tensor) not in (Tensor, nn.Parameter):
            raise TypeError(
                f"tensor {name} is a {type(tensor).__name__}; save whole tensors (of a sharded "
                "network: gather them first)"
            )
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"tensor {name} has dtype {tensor.dtype}, which cannot be saved")
        flat = tensor.detach().cpu().contiguous()
        end = start + flat.nbytes
        chunks.append(ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b"")
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *chunks])


def from_safetensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise FileError(str(error)) from error


# ---- arrays with a header ----


class StoredArray(NamedTuple):
    """An array as it is stored in a file."""

    dtype: str  # as safetensors names it, such as F32
    shape: list[int]
    data: bytes


def pack_arrays(key: str, header: Header, arrays: Mapping[str, Any]) -> tuple[bytes, str]:
    """The bytes of a file with numpy arrays and a header, to which a `sha256` is added; and that
    hash.
    """
    from safetensors.numpy import save

    stored = {name: StoredArray("", list(x.shape), x.tobytes()) for name, x in arrays.items()}
    digest = header_digest(header, stored)
    text = json.dumps({**header, "sha256": digest}, sort_keys=True)
    # A single entry, because the library does not write several in a fixed order.
    return save(dict(arrays), {key: text}), digest


def unpack_arrays(
    content: bytes, key: str, version: int, kinds: Mapping[str, type]
) -> tuple[Header, dict[str, StoredArray]]:
    """The header (see `parse_header`) and the arrays of a file; the hash is not checked yet."""
    from safetensors import SafetensorError, deserialize

    try:
        found = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise FileError(str(error)) from error
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size].decode()).get("__metadata__")
    arrays = {name: StoredArray(x["dtype"], x["shape"], x["data"]) for name, x in found}
    return parse_header(metadata, key, version, kinds), arrays


def parse_header(
    metadata: Mapping[str, str] | None, key: str, version: int, kinds: Mapping[str, type]
) -> Header:
    """The header in the metadata of a file under `key`; {} if there is none.

    Its `format` must be `version`, and it must have the values named in `kinds`, of those types.
    """
    if not metadata or key not in metadata:
        return {}
    header = json.loads(metadata[key])
    if not isinstance(header, dict) or "format" not in header:
        raise FileError(
            f"it does not say how it was made: its format is None, this version reads {version}"
        )
    if header["format"] != version:
        raise FileError(f"its format is {header['format']!r}, this version reads {version}")
    for name, kind in {**kinds, "sha256": str}.items():
        if not isinstance(header.get(name), kind):
            raise FileError(f"it does not say its {name}")
    return header


def require_digest(header: Header, arrays: Mapping[str, StoredArray]) -> None:
    """Compare the hash in a header with that of its content. The order of the arrays matters."""
    if not header:
        raise FileError("it does not say how it was made")
    found = header_digest(header, arrays)
    if found != header["sha256"]:
        raise FileError(f"its SHA-256 is {found[:12]}…, expected {header['sha256'][:12]}…")


def float64_array(name: str, stored: StoredArray, shape: tuple[int, ...]) -> Any:
    """A numpy array of this shape, with at least one sample and finite entries, or an error."""
    import numpy as np

    if stored.dtype != "F64":
        raise FileError(f"{name} has dtype {stored.dtype}, expected F64")
    if tuple(stored.shape) != shape or not shape[0]:
        raise FileError(f"{name} has shape {tuple(stored.shape)}, expected {shape}")
    x = np.frombuffer(stored.data, dtype="<f8").reshape(shape)
    if not np.isfinite(x).all():
        raise FileError(f"{name} has entries that are not finite")
    return x


def header_digest(header: Header, arrays: Mapping[str, StoredArray]) -> str:
    """SHA-256 of a header without its `sha256`, and of the names, shapes and bytes of arrays."""
    plain = {name: value for name, value in header.items() if name != "sha256"}
    chunks = [json.dumps(plain, sort_keys=True).encode()]
    for name, array in arrays.items():
        chunks += [f"{name}{list(array.shape)}".encode(), array.data]
    return sha256(*chunks)
