"""Physics engines behind one protocol, and how a world is moved.

A frame has 10 steps of 1/240 s, so there are 24 frames per second. In each frame, as in the
original evaluation, the arm is driven towards joint angles by position control, blocks are attached
or released, and every block that is not held loses its velocity. The table's top is at height 0,
the robot's base at the origin.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .. import layouts
from ..layouts import BLOCKS, JOINTS
from . import kinematics
from .arrays import Floats

STEPS, STEP_SIZE = 10, 1 / 240
"""Steps of a frame, and their length in seconds."""
GRAVITY = 9.8
TABLE = 1.0
"""Half the side of the table, in metres."""
CEILING = 2.0
"""Height below which a block may be in the beginning, in metres; the arm reaches 1.3 m."""
BLOCK_MASS, FRICTION = 0.068, 0.8
BOX = (0.0995, 0.0995, 0.03)
"""Half the sides of a block's collision box: a millimetre narrower than the block."""
TOOL_RADIUS = 0.04

ENGINES = {
    "mujoco": ("mujoco", "MujocoWorld", "robotics"),
    "bullet": ("pybullet", "BulletWorld", "bullet"),
}
"""Name of an engine: the package it needs, the class that drives it, the extra that installs it."""


NEWEST = {"pybullet": (3, 11)}
"""The last Python for which a package has wheels, if it is older than ours may be."""


class EngineMissing(ImportError, ValueError):
    """A physics engine is not installed: an error of Python, and of what the user asked for."""


class World(Protocol):
    """An arm and four blocks in a physics engine."""

    def reset(self, state: Floats) -> None:
        """Put everything where a state (39) has it, at rest; held blocks are attached."""

    def step(self, q: Floats, attach: Floats) -> None:
        """Advance one frame: drive the arm towards `q` (7); hold the blocks `attach` (4) marks."""

    def place(self, q: Floats, attach: Floats) -> None:
        """Advance one frame with the arm put at `q` (7) at once; blocks keep their velocities.

        The original environment moves its arm so when it is controlled by differences of angles.
        """

    def settle(self, frames: int) -> None:
        """Release all blocks and let physics run, without taking velocities away."""

    def state(self) -> Floats:
        """The state (39)."""

    def close(self) -> None:
        """Free what the engine holds."""


def make(engine: str) -> World:
    """A world in the named engine."""
    require(engine)
    module = importlib.import_module(f"{__package__}.{engine}")
    world: World = getattr(module, ENGINES[engine][1])()
    return world


def require(engine: str) -> None:
    """An error if the engine is unknown or not installed."""
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; expected one of {', '.join(ENGINES)}")
    if not installed(engine):
        package, _, extra = ENGINES[engine]
        command = f'pip install "flashgatr[{extra}]"'
        newest = NEWEST.get(package, sys.version_info[:2])
        if sys.version_info[:2] <= newest:
            raise EngineMissing(f"the engine {engine!r} needs the package {package}: {command}")
        ours, last = (".".join(map(str, x)) for x in (sys.version_info[:2], newest))
        raise EngineMissing(
            f"the engine {engine!r} needs the package {package}, whose wheels end at Python "
            f"{last}; this is Python {ours}, where `{command}` compiles it for a long time: use "
            f"Python {last}, or another engine"
        )


def installed(engine: str) -> bool:
    """Whether the package of an engine is installed."""
    return importlib.util.find_spec(ENGINES[engine][0]) is not None


def shares(count: int, workers: int) -> list[npt.NDArray[np.int64]]:
    """Numbers of worlds, 0 to count - 1, as processes share them.

    workers: the number of processes, at most one per world; 0 takes all cores.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ValueError(f"workers must be an integer of at least 0, got {workers!r}")
    processes = min(workers or os.cpu_count() or 1, max(count, 1))
    return [part for part in np.array_split(np.arange(count), processes) if len(part)]


def require_state(state: Floats) -> Floats:
    """A state that physics can start from; otherwise an error that says what is wrong with it."""
    x = as_numbers(state, "a state")
    if x.shape != (layouts.JOINT,):
        raise ValueError(f"got a state of shape {x.shape}, expected ({layouts.JOINT},)")
    if not np.isfinite(x).all():
        raise ValueError("the state has entries that are not finite; a world needs numbers")
    _, blocks = layouts.split(x)
    largest = abs(blocks.quaternion).max(-1)
    if (largest < 1e-6).any() or (largest > 1e6).any():
        wrong = "zero" if (largest < 1e-6).any() else "too large"
        raise ValueError(f"a block's quaternion is {wrong}; expected a rotation, of length 1")
    return x


def as_numbers(values: object, what: str) -> Floats:
    """An array in double precision; an error that says what it should be if that is impossible."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what} is an array of numbers, got {values!r:.100}") from error


def require_scene(state: Floats) -> Floats:
    """A state to begin an episode with: all blocks on the table or above it, the arm's joints
    within their limits, up to what physics overshoots them.

    Later blocks may be elsewhere, where a plan threw them.
    """
    x = require_state(state)
    q, blocks = layouts.split(x)
    beyond = np.flatnonzero(abs(q) > np.array(kinematics.LIMITS) + 0.1)
    if len(beyond):
        joint = int(beyond[0])
        raise ValueError(
            f"joint {joint} is at {q[joint]:.5g} rad, beyond its limit of "
            f"{kinematics.LIMITS[joint]:.5g}; choose a smaller angle"
        )
    outside = np.flatnonzero((abs(blocks.position[:, :2]) > TABLE).any(-1))
    if len(outside):
        place = blocks.position[outside[0], :2].round(3).tolist()
        raise ValueError(
            f"block {outside[0]} is at {place}, outside the table, which reaches "
            f"from -{TABLE} to {TABLE} m; place it on the table"
        )
    if (blocks.position[:, 2] < 0).any():
        raise ValueError(f"block {int(blocks.position[:, 2].argmin())} is below the table")
    if (blocks.position[:, 2] > CEILING).any():
        block = int(blocks.position[:, 2].argmax())
        raise ValueError(
            f"block {block} is at a height of {blocks.position[block, 2]:.5g} m; place it below "
            f"{CEILING} m"
        )
    return x


def added(q: Floats, flags: Floats, change: Floats) -> tuple[Floats, Floats]:
    """Joint angles (..., 7) and flags (..., 4) after changes (..., 11) of at most 1 each.

    A flag stays from 0 to 1. It may grow in several frames, and counts as held above a half.
    """
    limited = np.clip(change, -1, 1)
    return q + limited[..., :JOINTS], np.clip(flags + limited[..., JOINTS:], 0, 1)


def require_action(q: Floats, attach: Floats) -> tuple[Floats, Floats]:
    """Joint angles and flags of a frame; an error if they are not numbers."""
    q, attach = as_numbers(q, "an action"), as_numbers(attach, "an action")
    if q.shape != (JOINTS,) or attach.shape != (BLOCKS,):
        raise ValueError(
            f"got joint angles of shape {q.shape} and flags of shape {attach.shape}; expected "
            f"({JOINTS},) and ({BLOCKS},)"
        )
    if not (np.isfinite(q).all() and np.isfinite(attach).all()):
        raise ValueError("an action has entries that are not finite; the arm needs numbers")
    return q, attach
