"""Shared by all benchmarks: time, peak memory, CUDA graphs, cases that may fail, the final table.

A step is called once to compile its kernels and once more to estimate its time; then it is warmed
up and repeated, less often if it is slow. Times are medians: of the clock on a CPU, of CUDA events
on a GPU. Memory is the peak of `torch.cuda.max_memory_allocated` in warm steps, or while a graph is
captured (a replay allocates nothing).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ...kernels.cuda.side_stream import beside
from ...train.precision import precision as precision
from .. import results

Step = Callable[[], object]
T = TypeVar("T")

UNITS = {
    "time": "ms",
    "memory": "MiB",
    "largest": "items",
    "first_call": "s",
    "ratio": "1",
    "time per 1,000 items": "ms",
    "host time per 1,000 items": "ms",
    "slow steps": "steps",
    "processor time": "s",
    "difference": "cm",
    "forward error": "1",
    "gradient error": "1",
    "worth": "1",
    "epsilon_mean": "%",
}
"""Unit of every metric."""
WARMUP, REPEATS, FEWEST = 3, 15, 3
PATIENCE = 2000.0
"""Milliseconds for which a case is repeated; a step that takes over half of it is timed once."""


@dataclass(frozen=True)
class Found:
    """Result of one case: values by metric, and settings that are known only afterwards. Integers
    are recorded with all digits.
    """

    metrics: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)


_before = 0  # bytes that earlier cases left allocated: cached tables, workspaces of libraries

# ---- measuring ----


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def once(step: Step, device: torch.device) -> float:
    """Milliseconds of one call; the device is idle before and after."""
    if device.type != "cuda":
        begin = time.perf_counter()
        step()
        return 1000 * (time.perf_counter() - begin)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def in_a_row(steps: Sequence[Step], device: torch.device) -> tuple[list[float], float]:
    """Milliseconds of each of several steps without a pause between them, and the host's mean time
    to issue a step.

    If the host takes less time than the device, building batches and launching kernels are no
    bottleneck. The host's time is measured with an idle device: when the device's queue is full,
    the host waits.
    """
    if device.type != "cuda":
        times = [once(step, device) for step in steps]
        return times, statistics.mean(times)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for step, event in zip(steps, events[1:], strict=True):
        step()
        event.record()
    host = 0.0
    for step in steps:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        host += 1000 * (time.perf_counter() - begin)
    torch.cuda.synchronize()
    times = [float(a.elapsed_time(b)) for a, b in itertools.pairwise(events)]
    return times, host / len(steps)


def in_turn(
    steps: Sequence[Step],
    device: torch.device,
    *,
    repeats: int = REPEATS,
    patience: float = PATIENCE,
) -> list[list[float]]:
    """Milliseconds of every call of each step, after warm-up.

    The steps take turns, so that other load on the machine affects all of them.
    """
    for step in steps:
        once(step, device)
    reset_peak(device)
    first = [once(step, device) for step in steps]
    if sum(first) > patience / 2:
        return [[t] for t in first]
    rounds = max(FEWEST, min(repeats, int(patience / max(sum(first), 1e-3))))
    every = [[once(step, device) for step in steps] for _ in range(WARMUP - 2 + rounds)]
    return [list(times) for times in zip(*every[WARMUP - 2 :], strict=True)]


def measure(
    step: Step,
    device: torch.device,
    *,
    graph: bool = False,
    overlap: bool = False,
    repeats: int = REPEATS,
) -> Found:
    """Median time and, on a GPU, peak memory of a step.

    graph: replay the step as one CUDA graph.
    overlap: in the graph, compute weight gradients on a side stream, as the engine does.
    """
    memory = None
    if graph:
        step, memory = capture(step, device, overlap)
    (times,) = in_turn([step], device, repeats=repeats)
    metrics = {"time": statistics.median(times)}
    if device.type == "cuda":
        metrics["memory"] = peak(device) if memory is None else memory
    return Found(metrics)


def capture(step: Step, device: torch.device, overlap: bool = False) -> tuple[Step, float]:
    """The step as one CUDA graph, warmed up on a side stream, and the peak memory of its capture in
    MiB.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    _drop_workspaces()
    reset_peak(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if overlap:
            with beside() as side:
                step()
                side.join()
        else:
            step()
    return graph.replay, peak(device)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> float:
    """Largest number of MiB allocated since `reset_peak`, minus those allocated before the case."""
    return (torch.cuda.max_memory_allocated(device) - _before) / 2**20


def release() -> None:
    """Free the memory of the last case, so that it does not count in the next one's peak."""
    global _before
    gc.collect()
    if torch.cuda.is_available():
        _drop_workspaces()
        torch.cuda.empty_cache()
        _before = torch.cuda.memory_allocated()


def _drop_workspaces() -> None:
    """Free cuBLAS's workspaces (32 MiB per stream that used it), so that only those that a case
    needs count.
    """
    drop = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # has no public name
    if drop is not None:
        drop()


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """A context in which torch uses this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- reporting ----


class CaseReport:
    """The cases of one benchmark: recorded one by one (if `keep`), printed as a table at the end.

    For a case that fails, a line gives the reason; the other cases still run.
    """

    def __init__(self, benchmark: str, *, keep: bool, **common: Any) -> None:
        self.benchmark, self.keep, self.common = benchmark, keep, common
        self.rows: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def run(self, model: str, settings: dict[str, Any], case: Callable[[], Found]) -> Found | None:
        """Measure a case and add its result."""
        found = self.attempt(model, settings, case)
        if found is not None:
            self.add(model, settings, found)
        return found

    def attempt(self, model: str, settings: dict[str, Any], case: Callable[[], T]) -> T | None:
        """The result of a case, which is not added yet; None, and a printed line, if it failed."""
        release()
        try:
            return case()
        except Exception as error:
            # An error during a capture makes the end of the capture fail as well, which hides it.
            reasons = [_reason(x) for x in dict.fromkeys([error, _first(error)])]
            self.failures.append(f"{_title(model, settings)} failed: {'; first '.join(reasons)}")
            print(f"{self.benchmark}: {self.failures[-1]}", flush=True)
            return None

    def add(self, model: str, settings: dict[str, Any], found: Found) -> None:
        recorded = {**self.common, **settings, **found.settings}
        values = {
            metric: value if isinstance(value, int) else float(f"{value:.5g}")
            for metric, value in found.metrics.items()
        }
        for metric, value in values.items():
            if self.keep:
                results.record(self.benchmark, model, metric, value, UNITS[metric], recorded)
        self.rows.append({"model": model, **settings, **found.settings, **values})
        text = ", ".join(f"{metric} {x:g} {UNITS[metric]}" for metric, x in values.items())
        print(f"{self.benchmark}: {_title(model, settings | found.settings)}: {text}", flush=True)

    def show(self) -> None:
        """Print all cases as a table, then those that failed."""
        where = "recorded" if self.keep else "not recorded: this benchmark is meant for a GPU"
        common = ", ".join(f"{key} {value}" for key, value in self.common.items())
        print(f"\n{self.benchmark} on {results.machine()} ({where})")
        if common:
            print(common)
        print(table(self.rows) if self.rows else "no case was measured")
        for line in self.failures:
            print(line)
        print(flush=True)


def _reason(error: BaseException) -> str:
    """An error in one line, with the place where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    reason = (str(error).splitlines() or [""])[0][:160]
    return f"{type(error).__name__}: {reason} ({where.filename.rpartition('/')[2]}:{where.lineno})"


def _first(error: BaseException) -> BaseException:
    """The first error of the chain that led to this one."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _title(model: str, settings: dict[str, Any]) -> str:
    return " ".join([model, *(f"{key}={value}" for key, value in settings.items())])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as aligned text, settings before metrics; the column heads give the metrics' units.

    >>> rows = [{"model": "gatr", "time": 1.5}, {"model": "mlp", "graph": True, "time": 12.25}]
    >>> print(table(rows))
    model  graph  time (ms)
    gatr                1.5
    mlp     True      12.25
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    columns.sort(key=lambda key: key in UNITS)  # settings first
    heads = [f"{key} ({UNITS[key]})" if key in UNITS else key for key in columns]
    lines = [heads, *([_shown(row.get(key)) for key in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
