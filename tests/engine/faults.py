"""Accidents before, during and after every file operation: a killed process, or a full disk."""

import errno
import os
import pathlib
import signal
import traceback
import warnings
from contextlib import ExitStack, contextmanager
from unittest import mock

OPERATIONS = ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Points:
    """Counts the points at which an accident can happen and calls `strike` at one of them."""

    def __init__(self, number, strike):
        self.number, self.strike, self.passed = number, strike, 0

    def touch(self):
        self.passed += 1
        if self.passed == self.number:
            self.strike()

    @contextmanager
    def counted(self):
        """Within: every file operation is a point."""
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(pathlib.Path, "open", self._open))
            for name in OPERATIONS:
                stack.enter_context(mock.patch.object(os, name, self._around(getattr(os, name))))
            yield self

    def _around(self, function):
        def wrapped(*args, **kwargs):
            self.touch()
            result = function(*args, **kwargs)
            self.touch()
            return result

        return wrapped

    @property
    def _open(self):
        original = pathlib.Path.open

        def opened(path, mode="r", *args, **kwargs):
            self.touch()
            file = original(path, mode, *args, **kwargs)
            return file if "r" in mode else _File(file, self)

        return opened


class _File:
    """An open file whose writes have a point halfway."""

    def __init__(self, file, points):
        self._file, self._points = file, points

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def write(self, content):
        self._points.touch()
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._points.touch()
        self._file.write(content[half:])


def accident(number, strike):
    """Within: `strike` is called at the file operation of this number."""
    return Points(number, strike).counted()


def in_child(body, seconds=30):
    """Run a function in a forked process; its exit code, negative if a signal ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(seconds)
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
