"""Files of named arrays with a header, read with every check: dtypes, finite numbers, SHA-256.

Shapes are left to the caller. All errors that a damaged file can raise become an ArteryError with
the file's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from ....io import files
from ....io.files import Header, StoredArray
from .mesh import Array, ArteryError

PathLike: TypeAlias = str | os.PathLike[str]
NUMPY = {"I32": "<i4", "I64": "<i8", "F64": "<f8", "F32": "<f4", "F16": "<f2", "U16": "<u2"}


class ArrayFile(NamedTuple):
    """A kind of file: what it is in words, its key in the metadata, its header and its arrays."""

    what: str
    key: str
    format: int
    header: Mapping[str, type]
    dtypes: Mapping[str, str]  # as safetensors names them; in the order of the hash

    def write(self, path: PathLike, header: Header, arrays: Mapping[str, Array]) -> None:
        """Write the file atomically."""
        ready = {
            name: np.ascontiguousarray(arrays[name], dtype=NUMPY[dtype])
            for name, dtype in self.dtypes.items()
        }
        header = {**header, "format": self.format}
        files.write(Path(path), files.pack_arrays(self.key, header, ready)[0])

    def read(self, path: PathLike) -> tuple[Header, dict[str, Array]]:
        """The header and the arrays, after all checks but those of shapes and of the header."""
        with readable(path, self.what):
            content = files.read(Path(path))
            header, stored = files.unpack_arrays(content, self.key, self.format, self.header)
            if stored.keys() != self.dtypes.keys():
                raise ArteryError(
                    f"its tensors are {sorted(stored)}, expected {sorted(self.dtypes)}"
                )
            files.require_digest(header, {name: stored[name] for name in self.dtypes})
            return header, to_numpy(stored, self.dtypes)

    def read_header(self, path: PathLike) -> Header:
        """The header alone; the arrays are neither read nor checked."""
        from safetensors import safe_open

        with (
            readable(path, self.what),
            safe_open(os.fspath(path), framework="numpy") as file,
        ):
            header = files.parse_header(file.metadata(), self.key, self.format, self.header)
            if not header:
                raise ArteryError("it does not say how it was made")
            return header


def to_numpy(stored: Mapping[str, StoredArray], dtypes: Mapping[str, str]) -> dict[str, Array]:
    """The stored arrays, which must have these dtypes and finite numbers."""
    arrays = {}
    for name, x in stored.items():
        if x.dtype != dtypes[name]:
            raise ArteryError(f"{name} has dtype {x.dtype}, expected {dtypes[name]}")
        arrays[name] = np.frombuffer(x.data, NUMPY[x.dtype]).reshape(x.shape)
        if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            raise ArteryError(f"{name} has entries that are not finite")
    return arrays


@contextmanager
def readable(path: PathLike, what: str) -> Iterator[None]:
    """Turn all errors that a damaged file can raise into an ArteryError with its name."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise ArteryError(f"cannot read {path}: {error.strerror or error}") from error
    except (
        SafetensorError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ArteryError(
            f"{path} is damaged or not {what}: {error}; delete it and make or copy it again"
        ) from error
