"""The lock of a run's folder: one process (of torchrun: one group of processes) trains in it.

The lock is a property of the process, which may take it several times. The operating system
releases it when the process ends, however it ends.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO, Self

from .distributed import World
from .toml import ConfigError

FILE = ".lock"


class FolderLock:
    """Locks a folder against other processes, from its construction to the end of its `with`."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self._path: Path | None = None
        self.acquire()

    def acquire(self) -> None:
        """Take the lock, or raise an error in all processes of the group."""
        refused = False
        if self.world.is_main and self._path is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = (self.folder / FILE).resolve()
            refused = not _take(path)
            self._path = None if refused else path
        if self.world.max(int(refused)):
            raise ConfigError(
                f"another process is training in {self.folder}; wait for it to end, or choose "
                "another folder"
            )

    def release(self) -> None:
        if self._path is not None:
            _give_back(self._path)
            self._path = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


_held: dict[Path, tuple[IO[str], int]] = {}
"""The lock files of this process, and how often each is taken."""


def _take(path: Path) -> bool:
    """Lock a file for this process; false if another process has locked it."""
    if path in _held:
        file, times = _held[path]
        _held[path] = file, times + 1
        return True
    file = path.open("w")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    except (ImportError, OSError):
        pass  # a system or a file system without such locks
    _held[path] = file, 1
    return True


def _give_back(path: Path) -> None:
    file, times = _held.pop(path)
    if times > 1:
        _held[path] = file, times - 1
    else:
        file.close()
