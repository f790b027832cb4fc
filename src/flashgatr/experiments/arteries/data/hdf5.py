"""HDF5 files, read by a separate process.

Damaged files can make the HDF5 library hang, crash or exhaust the memory. The reading process has
limits on time and memory; if it dies, the reader raises an ArteryError.

This file is also the program of that process, so it imports neither torch nor the rest of the
package. A request is a line of JSON, ["names" | "sample", path, group]. An answer is its length (8
bytes, little-endian) and that many bytes: the letter E and the text of an error, or the letter D
and safetensors data with the attributes as JSON in the metadata.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np

TIMEOUT = 30.0  # seconds for one answer; a mesh of 10,000 nodes takes 5 ms
MEMORY = 6 << 30  # bytes of address space of the reading process
MAX_ROWS = 4_000_000  # of a dataset; published meshes have 24,000 faces at most
MAX_GROUPS = 1_000_000
MAX_CHUNK = 1 << 28  # bytes of an uncompressed chunk
MAX_ATTRIBUTES = 1000
SAFE_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 32000: "lzf"}  # no plug-ins
NAMES: dict[str, tuple[str, ...]] = {
    "position": ("pos",),
    "face": ("face",),
    "inlet": ("inlet_idcs", "inlet_idx"),
    "wss": ("wss",),
    "pressure": ("pressure",),
}
"""For each quantity, the possible names of its dataset."""
REQUIRED = ("position", "face", "inlet")
HINT = 'HDF5 files need h5py: pip install "flashgatr[experiments]"'


class _Odd(Exception):
    """The file contains something that is not supported; the text says what."""


class Reader:
    """The reading process. It is started when needed, and again if it died. One request at a
    time.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def names(self, path: str) -> list[str]:
        """The groups of a file, or [""] for a file that is one sample itself."""
        _, header = self._ask(["names", path, ""])
        found = header["names"]
        assert isinstance(found, list)
        return found

    def sample(self, path: str, group: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays of a sample, by the names in NAMES, and its attributes."""
        arrays, header = self._ask(["sample", path, group])
        return arrays, header["attributes"]

    def close(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _ask(self, request: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        from safetensors.numpy import load

        with self._lock:
            used = self._process is not None
            answer = self._answer(request)
            if answer is None and used:  # the previous file may have killed it
                answer = self._answer(request)
        if answer is None:
            raise _died()
        if answer[:1] == b"E":
            raise _error(answer[1:].decode())
        size = int.from_bytes(answer[1:9], "little")
        header = json.loads(json.loads(answer[9 : 9 + size])["__metadata__"]["header"])
        return load(answer[1:]), header

    def _answer(self, request: list[str]) -> bytes | None:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(TIMEOUT, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            size = process.stdout.read(8)
            content = process.stdout.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
        except OSError:  # it died before it could read the request
            content = b""
        except BaseException:  # after ctrl-C, the next request must not get this answer
            self.close()
            raise
        finally:
            timer.cancel()
        if not content or len(content) != int.from_bytes(size, "little"):
            self.close()
            return None
        return content

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            # -P: modules in this folder must not shadow others of the same name
            command = [sys.executable, "-P", str(Path(__file__).resolve())]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
            self._owner = os.getpid()
        return self._process


def _died() -> Exception:
    return _error(
        f"reading it crashed the HDF5 library or took more than {TIMEOUT:g} s; the file is damaged"
    )


def _error(text: str) -> Exception:
    from .mesh import ArteryError

    return ArteryError(text)


# What follows runs in the reading process.


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    for line in requests:
        kind, path, group = json.loads(line)
        try:
            answer = b"D" + (_read_names(path) if kind == "names" else _read_sample(path, group))
        except ImportError:
            answer = b"E" + HINT.encode()
        except Exception as error:  # h5py raises nearly anything on damaged files
            what = str(error) if isinstance(error, _Odd) else f"it is damaged ({_shortened(error)})"
            answer = b"E" + what.encode(errors="replace")
        answers.write(len(answer).to_bytes(8, "little") + answer)
        answers.flush()


def _shortened(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def _packed(arrays: dict[str, Any], header: dict[str, Any]) -> bytes:
    from safetensors.numpy import save

    return save(arrays, {"header": json.dumps(header)})


def _opened(path: str) -> Any:
    import h5py

    if not Path(path).is_file():
        raise _Odd("there is no such file")
    return h5py.File(path, "r", locking="best-effort")


def _read_names(path: str) -> bytes:
    import h5py

    with _opened(path) as file:
        if len(file) > MAX_GROUPS:
            raise _Odd(f"it has {len(file):,} groups, expected at most {MAX_GROUPS:,}")
        names = list(file)
        if "pos" in names:
            return _packed({}, {"names": [""]})
        for name in names:
            if not isinstance(name, str) or not isinstance(
                file.get(name, getlink=True), h5py.HardLink
            ):
                raise _Odd(f"its entry {name!r} is a link, expected a group for each sample")
    return _packed({}, {"names": names})


def _read_sample(path: str, group: str) -> bytes:
    import h5py

    with _opened(path) as file:
        sample = file
        if group:
            if group not in file:
                raise _Odd("there is no such sample in the file")
            sample = file[group] if _is_hard(file, group) else None
            if not isinstance(sample, h5py.Group):
                raise _Odd("it is not a group with datasets of its own")
        arrays = {}
        for name, choices in NAMES.items():
            there = [choice for choice in choices if choice in sample]
            if there:
                arrays[name] = _array(sample, there[0])
            elif name in REQUIRED:
                found = ", ".join(sorted(sample)[:12]) or "nothing"
                raise _Odd(f"it has no dataset {' or '.join(choices)!r} (found: {found})")
        return _packed(arrays, {"attributes": _attributes(sample)})


def _is_hard(group: Any, name: str) -> bool:
    import h5py

    return "/" not in name and isinstance(group.get(name, getlink=True), h5py.HardLink)


def _array(group: Any, name: str) -> Any:
    """The values of a dataset, if it is stored in this file and has a plausible size."""
    import h5py

    if not _is_hard(group, name):
        raise _Odd(f"{name} is a link, expected a dataset in the file itself")
    found = group[name]
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise _Odd(f"{name} is no dataset with values")
    if found.external or found.is_virtual:
        raise _Odd(f"{name} has its values in other files; copy them into this one")
    if found.dtype.kind not in "iuf" or found.dtype.itemsize > 8:
        raise _Odd(f"{name} has dtype {found.dtype}, expected numbers")
    if not 1 <= len(found.shape) <= 2 or found.size > 3 * MAX_ROWS:
        raise _Odd(f"{name} has shape {found.shape}, expected at most {MAX_ROWS:,} rows of 3")
    if found.chunks and math.prod(found.chunks) * found.dtype.itemsize > MAX_CHUNK:
        raise _Odd(f"{name} has chunks of shape {found.chunks}, which is implausibly large")
    plan = found.id.get_create_plist()
    filters = {plan.get_filter(k)[0] for k in range(plan.get_nfilters())}
    if filters - SAFE_FILTERS.keys():
        known = ", ".join(SAFE_FILTERS.values())
        raise _Odd(f"{name} is compressed with filter {max(filters)}, expected {known}")
    x = found[()]
    return np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))


def _attributes(sample: Any) -> dict[str, Any]:
    if len(sample.attrs) > MAX_ATTRIBUTES:
        raise _Odd(f"it has {len(sample.attrs)} attributes, expected at most {MAX_ATTRIBUTES}")
    return {name: _attribute(name, sample.attrs) for name in sample.attrs}


def _attribute(name: str, attributes: Any) -> Any:
    import h5py

    kind = attributes.get_id(name)
    text = h5py.check_string_dtype(kind.dtype) is not None
    if math.prod(kind.shape) > MAX_ROWS or not (text or kind.dtype.kind in "iufbS"):
        raise _Odd(f"its attribute {name!r} is neither text nor numbers")
    value = attributes[name]
    if isinstance(value, (bytes, np.bytes_)):
        return value.decode()
    if text:
        return value.tolist() if isinstance(value, np.ndarray) else str(value)
    return value.tolist()


if __name__ == "__main__":
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        _serve(sys.stdin.buffer, sys.stdout.buffer)
else:
    READER = Reader()
    atexit.register(READER.close)
