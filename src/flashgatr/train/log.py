"""The log of a run: JSON lines in a file; a progress bar on a terminal, plain lines elsewhere.

If TensorBoard is installed, the numbers are also written there.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import settings

FILE = "log.jsonl"
EARLY = 10.0
"""Seconds after which a run without a terminal tells the time left, if it has no record yet."""


class Log:
    """The log of one run. It is `quiet` in all processes but the main one."""

    def __init__(self, folder: Path, steps: int, *, start: int = 0, quiet: bool = False) -> None:
        self.folder, self.steps, self.quiet = folder, steps, quiet
        self._began, self._first = time.monotonic(), start
        self._clock: tuple[float, int] | None = None
        """When the first step of this process ended, which may have compiled, and its number."""
        self._shown = 0.0
        """When progress was last shown."""
        self._bar: Any = None
        self._task: Any = None
        self._board: Any = None
        if quiet:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _forget_after(folder / FILE, start)
        self._began -= seconds(folder)  # the training time of earlier processes
        self._file = (folder / FILE).open("a")
        self._board = _tensorboard(folder, start)

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.fields[text]}", markup=False),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self.steps, completed=self._first, text="", left=""
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()
        if not self.quiet:
            with suppress(OSError):  # the disk is full, which record() has reported
                self._file.close()

    def record(self, step: int, kind: str, values: dict[str, float], show: bool = True) -> None:
        """Write numbers of one step; those that are not finite become null in JSON."""
        if self.quiet:
            return
        spent = round(time.monotonic() - self._began, 3)
        finite = {name: x if math.isfinite(x) else None for name, x in values.items()}
        line = {"step": step, "kind": kind, **finite, "seconds": spent}
        self._write(json.dumps(line) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)
        text = f"{kind} " + "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._bar is not None:
            shown = {"text": text} if kind == "train" else {}
            self._bar.update(self._task, completed=step, **shown)
            if show and kind != "train":
                self.say(f"step {step}: {text}")
        elif show:
            left = self._left(step)
            self.say(f"step {step:>7}/{self.steps}  {text}  ({spent:.0f} s{left and ', '}{left})")
            self._shown = time.monotonic()

    def show_progress(self, step: int) -> None:
        """Called after every step: show the time left from the second step on.

        A progress bar is updated ten times a second at most. Elsewhere, a long run whose first
        record is far away prints one line.
        """
        now = time.monotonic()
        if self._clock is None:
            self._clock = now, step
        elif self._bar is not None and now > self._shown + 0.1:
            self._bar.update(self._task, completed=step, left=self._left(step))
            self._shown = now
        elif self._bar is None and not self._shown and now > self._clock[0] + EARLY:
            self.say(
                f"step {step:>7}/{self.steps}  ({now - self._began:.0f} s, {self._left(step)})"
            )
            self._shown = now

    def _left(self, step: int) -> str:
        """The time left, in words, from the steps of this process after its first one."""
        if self._clock is None or step <= self._clock[1] or step >= self.steps:
            return ""
        began, first = self._clock
        rate = (time.monotonic() - began) / (step - first)
        return f"{_duration(rate * (self.steps - step))} left"

    def _write(self, text: str, *, sync: bool = False) -> None:
        try:
            self._file.write(text)
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(
                f"cannot write {self.folder / FILE}: {error.strerror or error}; the checkpoints "
                "are intact; free some space and resume"
            ) from error

    def sync(self) -> None:
        """Flush the log to disk, so that it survives a power failure."""
        if not self.quiet:
            self._write("", sync=True)

    def say(self, text: str) -> None:
        """Print a sentence on the terminal; a closed terminal is ignored."""
        if self.quiet:
            return
        with suppress(OSError):
            if self._bar is not None:
                self._bar.console.print(text, markup=False)
            else:
                print(text, file=sys.stderr, flush=True)


def read(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's log; damaged ones, such as one truncated by a crash, are skipped."""
    lines = []
    if (folder / FILE).exists():
        for text in (folder / FILE).read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
    return lines


def seconds(folder: Path) -> float:
    """The training time of a run over all its processes, according to its log."""
    found = (line.get("seconds") for line in read(folder))
    return max((x for x in found if isinstance(x, int | float)), default=0.0)


def _duration(seconds: float) -> str:
    """A duration in its largest fitting unit.

    >>> [_duration(x) for x in (5, 200, 5000, 200_000)]
    ['5 s', '3 min', '1.4 h', '2.3 days']
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _forget_after(path: Path, step: int) -> None:
    """Remove the lines of steps that will run again."""
    if path.exists():
        kept = [line for line in read(path.parent) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        settings.write_atomically(path, text)


def _tensorboard(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
