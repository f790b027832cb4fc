"""Jobs in parallel processes, each with one BLAS thread; their results do not depend on how many.

A job that fails with an ArteryError is reported, and the others go on. Workers end with the process
that started them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeAlias

from ..data.mesh import ArteryError

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Say: TypeAlias = Callable[[str], object]


@dataclass
class GenerationResult:
    """The names of the samples made and kept, and the errors of those that failed."""

    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def run_jobs(
    job: Callable[..., str],
    arguments: Mapping[str, tuple[Any, ...]],
    workers: int | None,
    result: GenerationResult,
    say: Say,
) -> None:
    """Call `job` with the arguments of each sample, by name, and note the outcome in `result`.

    `job` returns a line that is passed to `say`. `workers` is the number of processes (default: one
    per core).
    """
    if not arguments:
        return
    workers = min(workers or os.cpu_count() or 1, len(arguments))
    with (
        _one_thread(),
        ProcessPoolExecutor(workers, get_context("spawn"), initializer=_end_with_parent) as pool,
    ):
        jobs = {pool.submit(job, *given): name for name, given in arguments.items()}
        try:
            for done, future in enumerate(as_completed(jobs), 1):
                name = jobs[future]
                try:
                    told = future.result()
                except ArteryError as error:
                    result.failed[name] = told = f"{name} failed: {error}"
                else:
                    result.made.append(name)
                say(f"[{done}/{len(arguments)}] {told}")
        except BrokenProcessPool as error:
            raise ArteryError(
                f"a worker was killed, perhaps for lack of memory, after {len(result.made)} "
                f"samples; run the command again with fewer than {workers} workers: finished "
                "samples are kept"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    result.made.sort()


def require_integer(what: str, number: int | None, least: int) -> None:
    """Refuse what is neither None nor an integer of at least `least`."""
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"{what} must be an integer, got {number!r}")
    if number < least:
        raise ValueError(f"{what} must be at least {least}, got {number}")


def require_same(
    file: os.PathLike[str], found: Mapping[str, Any], asked: Mapping[str, Any]
) -> None:
    """Refuse a file that was made with other settings."""
    differ = [f"{k} {found.get(k)!r}, not {v!r}" for k, v in asked.items() if found.get(k) != v]
    if differ:
        raise ArteryError(
            f"{os.fspath(file)} was made with other settings ({'; '.join(differ)}); choose another "
            "folder or delete the file"
        )


def _end_with_parent() -> None:
    """End this worker when its parent dies; otherwise it would wait for work forever."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within: new processes use one thread, which is faster and gives the same result
    everywhere.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
