"""Many worlds that advance together, frame by frame, in this process or in worker processes.

A policy sees all states before it says what each arm does next. Worlds stay in their process; only
states and commands go back and forth. Each episode has a world of its own, so the result does not
depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np

from .. import layouts
from . import physics
from .arrays import Floats
from .physics import World

Command: TypeAlias = tuple[str, tuple[Any, ...]]
"""What to do, "place" or "settle", and the arguments of all worlds of a part."""


class Lockstep:
    """Worlds that begin in the states `start` (E, 39), until they are closed.

    workers: the number of processes; 0 takes all cores.
    """

    def __init__(self, engine: str, start: Floats, *, workers: int = 1) -> None:
        physics.require(engine)
        states = [physics.require_state(state) for state in start]
        self._numbers = physics.shares(len(states), workers)
        kind = _Worlds if len(self._numbers) <= 1 else _Remote
        self._parts = [kind(engine, [states[k] for k in part]) for part in self._numbers]

    def close(self) -> None:
        """Free what the engine holds, and end the processes."""
        for part in self._parts:
            part.close()

    def place(self, q: Floats, attach: Floats) -> Floats:
        """Advance one frame with `World.place`, and return the states (E, 39)."""
        return self._all("place", ((q[some], attach[some]) for some in self._numbers))

    def settle(self, frames: int) -> Floats:
        """Release all blocks, let physics run, and return the states (E, 39)."""
        return self._all("settle", ((frames,) for _ in self._numbers))

    def _all(self, name: str, arguments: Iterable[tuple[Any, ...]]) -> Floats:
        """The states after a command to every part; processes work at the same time."""
        for part, own in zip(self._parts, arguments, strict=True):
            part.send((name, own))
        found = [part.receive() for part in self._parts]
        return np.concatenate([np.zeros((0, layouts.JOINT)), *found])


class _Worlds:
    """Some worlds in this process."""

    def __init__(self, engine: str, start: Sequence[Floats]) -> None:
        self._worlds: list[World] = [physics.make(engine) for _ in start]
        for world, state in zip(self._worlds, start, strict=True):
            world.reset(state)

    def send(self, command: Command) -> None:
        """Execute a command."""
        name, arguments = command
        getattr(self, f"_{name}")(*arguments)

    def receive(self) -> Floats:
        """The states."""
        return np.stack([world.state() for world in self._worlds])

    def _place(self, q: Floats, attach: Floats) -> None:
        for world, angles, flags in zip(self._worlds, q, attach, strict=True):
            world.place(angles, flags)

    def _settle(self, frames: int) -> None:
        for world in self._worlds:
            world.settle(frames)

    def close(self) -> None:
        for world in self._worlds:
            world.close()


class _Remote:
    """The same in a process of its own. `send` returns at once, and `receive` waits."""

    def __init__(self, engine: str, start: Sequence[Floats]) -> None:
        context = get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, engine, start), daemon=True)
        self._process.start()
        other.close()

    def send(self, command: Command) -> None:
        self._line.send(command)

    def receive(self) -> Floats:
        """The states after the last command, or the error that it raised."""
        try:
            answer: Floats | Exception = self._line.recv()
        except EOFError as error:
            raise RuntimeError(
                "a process of the physics engine ended unexpectedly; evaluate again, with fewer "
                "scenes if memory is short"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._line.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()


def _serve(line: Connection, engine: str, start: Sequence[Floats]) -> None:
    """The worker process: executes commands until the other end of the line is closed."""
    worlds = None
    try:
        worlds = _Worlds(engine, start)
        while True:
            worlds.send(line.recv())
            line.send(worlds.receive())
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    except Exception as error:
        line.send(error)
    finally:
        if worlds is not None:
            worlds.close()
