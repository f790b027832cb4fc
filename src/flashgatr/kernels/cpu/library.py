"""C kernels on rows, compiled at the first use.

The source is rows.c; constants and products come from the algebra's tables. It includes no
headers of torch, so a C compiler builds it in a few seconds. The result is stored in the user's
cache folder (~/.cache/flashgatr) and called through ctypes, which releases Python's lock. Without
a compiler, `library` returns None, and the plain layers are used.

Every kernel works on units t0 to t1: items, unless its comment says otherwise. The threads of a
call take a few units at a time. The result for a unit does not depend on which thread computes
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...algebra import BLADES, PGA
from ...functional.linear import SCALES
from ...user_cache import cache_folder
from ..codegen import INTEGERS, REALS, sums
from ..rows import ORDER

BLOCK = 32
"""Items that a thread processes at a time."""
PANEL = 32
"""Outputs of a product whose weights are packed together."""
OUTPUTS = 64
"""Outputs of a map whose scalar weights' gradients are one unit of `linear_weights`."""
MOST_FEATURES = 768
"""Width of the widest query: 64 channels of twelve features."""
SMALL_SET = 32
"""Largest set of the attention kernels."""

_FLAGS = (
    # as fast as -O3 here, and compiled in half the time
    "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic",
    "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_X86_FLAGS = ("-mprefer-vector-width=512",)  # otherwise gcc uses only half of a vector register
_TIMEOUT = 120
_MOST_THREADS, _MOST_JOBS = 256, 8
_HEAD = struct.Struct("qqq")
_SERIAL = 1 << 14
"""A call on fewer numbers runs in one thread, because waking the others takes microseconds."""

_KERNEL = re.compile(r"^KERNEL (\w+)\(n t0, n t1, (.*?)\) \{", re.MULTILINE | re.DOTALL)


def _form(form: str, slot: int) -> str:
    """C function that computes one slot of a form from the others; joins are multiplied by r."""
    loads = "\n".join(
        f"  const vec {x}{k} = *(const vec_at *)({x} + {k} * {x}s);"
        for x in "xy"
        for k in range(BLADES)
    )
    factor = "r * " if form == "join" else ""
    stores = "\n".join(
        f"  *(vec_at *)(o + {k} * os) = {factor}({value});"
        for k, value in enumerate(sums(form, slot, "x", "y"))
    )
    arguments = (
        "const real *restrict x, n xs, const real *restrict y, n ys, real *restrict o, n os, real r"
    )
    return f"static void {form}_{slot}({arguments}) {{\n  (void)r;\n{loads}\n{stores}\n}}"


@functools.cache
def _text() -> str:
    return Path(__file__).with_name("rows.c").read_text()


@functools.cache
def _signatures() -> dict[str, list[str]]:
    """For every kernel, the member of the C union `value` that holds each argument: i, d or p."""

    def member(text: str) -> str:
        return "p" if "*" in text else "d" if text.startswith("double") else "i"

    return {
        name: [member(argument.strip()) for argument in arguments.split(",")]
        for name, arguments in _KERNEL.findall(_text())
    }


def _source(real: str) -> str:
    suffix = "f" if real == "float" else ""
    grades = [PGA.grades[blade] for blade in ORDER]
    head = [
        f"#define real {real}",
        f"#define word {'int' if real == 'float' else 'long long'}",
        f"#define SQRT sqrt{suffix}",
        f"#define IS_FLOAT {int(real == 'float')}",
        f"#define BLOCK {BLOCK}",
        f"#define WIDE {PANEL}",
        f"#define OUTPUTS {OUTPUTS}",
        f"#define MOST {SMALL_SET}",
        f"#define MOST_FEATURES {MOST_FEATURES}",
        f"#define MOST_THREADS {_MOST_THREADS}",
        f"#define MOST_JOBS {_MOST_JOBS}",
        *(f"#define {name} {value}" for name, value in INTEGERS.items()),
        *(f"#define {name} ((real){value!r})" for name, value in REALS.items()),
        f"static const int GRADE[] = {{{', '.join(map(str, grades))}}};",
        f"static const real SCALE[] = {{{', '.join(map(repr, SCALES))}}};",
    ]
    forms = "\n".join(_form(form, slot) for form in ("product", "join") for slot in range(3))
    calls = [
        f"void flashgatr_{name}(n t0, n t1, const value *a) {{ {name}(t0, t1, "
        + ", ".join(f"a[{i}].{member}" for i, member in enumerate(members))
        + "); }"
        for name, members in _signatures().items()
    ]
    return "\n".join([*head, _text().replace("\nFORMS\n", f"\n{forms}\n"), *calls, ""])


class Job(NamedTuple):
    """Kernels to run one after the other on units 0 to `units`, `step` units at a time."""

    kernels: bytes
    """The packed kernels: see `Library.packed`."""
    units: int
    step: int
    cost: int
    """Numbers that the kernels process per unit, to decide about threads."""


class Library:
    """The kernels of one dtype."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._run = self._library.flashgatr_run
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._run.argtypes = (ctypes.c_char_p, size, ctypes.c_int, pointer, pointer)
        self._run.restype = None
        self._kernels = {
            name: (
                self._address(f"flashgatr_{name}"),
                struct.Struct("Pq" + "".join(map(_FORMAT.__getitem__, members))),
            )
            for name, members in _signatures().items()
        }

    def _address(self, name: str) -> int | None:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value

    def packed(self, name: str, arguments: tuple[Any, ...]) -> bytes:
        """Pack a kernel with its arguments; of tensors it holds only the addresses."""
        address, layout = self._kernels[name]
        numbers = [x.data_ptr() if isinstance(x, Tensor) else x or 0 for x in arguments]
        return layout.pack(address, len(numbers), *numbers)

    def run(self, jobs: list[Job]) -> None:
        """Run independent jobs, in several threads if they are large enough."""
        parallel, me = _openmp()
        is_shared = parallel and any(
            job.units > job.step and job.units * job.cost > _SERIAL for job in jobs
        )
        threads = torch.get_num_threads() if is_shared else 1
        for start in range(0, len(jobs), _MOST_JOBS):
            program = b"".join(
                _HEAD.pack(3 + len(job.kernels) // 8, job.units, job.step) + job.kernels
                for job in jobs[start : start + _MOST_JOBS]
            )
            self._run(program, len(program) // 8, threads, parallel, me)


_FORMAT = {"i": "q", "d": "d", "p": "P"}


@functools.cache
def _openmp() -> tuple[int | None, int | None]:
    """Functions of the OpenMP library that torch uses, or None.

    Its threads are awake already, and a second pool of threads would compete with them for the
    cores.
    """
    loaded = ctypes.CDLL(None)
    if not hasattr(loaded, "GOMP_parallel"):
        return None, None
    functions = loaded.GOMP_parallel, loaded.omp_get_thread_num
    parallel, me = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return parallel, me


def _keep_freed_memory() -> None:
    """Allocate and free 31 MiB, once.

    glibc returns freed blocks of more than 128 KiB to the system, so every step would have to
    request its memory again, page by page: 3,000 page faults and 7 to 10 ms per step of the
    n-body network on two Xeon cores. Freeing one larger block raises this limit permanently, up
    to 32 MiB.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


@functools.cache
def library() -> dict[torch.dtype, Library] | None:
    """The compiled kernels by dtype, or None if they cannot be compiled."""
    _keep_freed_memory()
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if compiler is None:
        return None
    flags = _FLAGS + (_X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ())
    command = [*compiler.split(), *flags, "-shared", "-fPIC"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        sources = {torch.float32: _source("float"), torch.float64: _source("double")}
        kept = _cache(command, sources)
        if kept is not None and not all(_is_whole(path) for path in kept.values()):
            with tempfile.TemporaryDirectory(prefix="build-", dir=cache_folder()) as folder:
                for dtype, built in _build(command, sources, Path(folder)).items():
                    built.with_suffix(".sha256").write_text(_hash(built))
                    os.replace(built.with_suffix(".sha256"), kept[dtype].with_suffix(".sha256"))
                    os.replace(built, kept[dtype])
        if kept is not None:
            return {dtype: Library(path) for dtype, path in kept.items()}
        with tempfile.TemporaryDirectory(prefix="flashgatr-") as folder:
            built_here = _build(command, sources, Path(folder))
            return {dtype: Library(path) for dtype, path in built_here.items()}
    return None


def _build(
    command: list[str], sources: dict[torch.dtype, str], folder: Path
) -> dict[torch.dtype, Path]:
    """Compile all sources, in parallel."""
    targets, running = {}, []
    try:
        for dtype, text in sources.items():
            source = folder / f"{str(dtype).removeprefix('torch.')}.c"
            targets[dtype] = source.with_suffix(".so")
            source.write_text(text)
            files = str(source), "-o", str(targets[dtype]), "-lm"
            quiet = subprocess.DEVNULL
            running.append(subprocess.Popen([*command, *files], stdout=quiet, stderr=quiet))
        for process in running:
            if process.wait(_TIMEOUT):
                raise subprocess.CalledProcessError(process.returncode, command)
        return targets
    finally:
        for process in running:
            process.kill()
            process.wait()


def _cache(command: list[str], sources: dict[torch.dtype, str]) -> dict[torch.dtype, Path] | None:
    """The files for this source, compiler and processor; None if there is no safe folder."""
    folder = cache_folder()
    if folder is None:
        return None
    version = subprocess.run(
        [command[0], "--version"], capture_output=True, timeout=_TIMEOUT
    ).stdout
    about = Path("/proc/cpuinfo")
    processor = (
        re.findall(r"^(?:flags|Features)\s*:.*", about.read_text(), re.M) if about.exists() else []
    )
    same = repr((command, version, platform.platform(), processor[:1]))
    names = {
        d: hashlib.sha256((same + text).encode()).hexdigest()[:32] for d, text in sources.items()
    }
    return {dtype: folder / f"{name}.so" for dtype, name in names.items()}


def _is_whole(path: Path) -> bool:
    """Whether a file in the cache exists and is unchanged."""
    try:
        return path.with_suffix(".sha256").read_text() == _hash(path)
    except (OSError, ValueError):
        return False


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
