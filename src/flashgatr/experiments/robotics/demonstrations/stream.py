"""An endless stream of demonstrations, of which a data set is the beginning.

Demonstration k depends on (recipe, k) alone: neither on the number of demonstrations nor on that of
the processes that make them. This file and what it imports need numpy only, so worker processes
start quickly. `workers > 1` starts processes that import the main program, as `multiprocessing`
does everywhere, so a script needs `if __name__ == "__main__":`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..layouts import BLOCKS, HORIZON
from ..world import rewards, rollout, scenes
from ..world.arrays import Floats
from ..world.scenes import Setting
from .expert import PlanError, demonstrate

GENERATOR = 1
"""Changes when the same recipe gives other demonstrations."""
CHUNK = 50  # demonstrations per job of a worker, about 1.3 s on a Xeon core
REPLAYED = 500  # demonstrations that are replayed at a time, 100 MB of states
STACKS = BLOCKS - 1

Singles: TypeAlias = npt.NDArray[np.float32]
Progress: TypeAlias = Callable[[int, int], None]


class Demonstration(NamedTuple):
    """States in the joint layout, and the last frame of each of the three stacks."""

    states: Singles  # (T, 39)
    ends: npt.NDArray[np.int64]  # (3)


@dataclass(frozen=True)
class Recipe:
    """What a stream of demonstrations is made from."""

    seed: int = 0
    diversity: float = 0.5
    setting: Setting = field(default_factory=Setting)

    def __post_init__(self) -> None:
        scenes.require_seed(self.seed)
        number = isinstance(self.diversity, int | float) and not isinstance(self.diversity, bool)
        if not number or not 0 <= self.diversity <= 1:
            raise ValueError(f"diversity must be a number from 0 to 1, got {self.diversity!r}")

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """The inverse of `to_dict`."""
        return cls(**{**values, "setting": Setting(**values["setting"])})


def demonstration(recipe: Recipe, number: int) -> Demonstration:
    """Demonstration `number` of a stream."""
    chance = scenes.random_stream("train", recipe.seed, number)
    states, ends = demonstrate(scenes.draw(chance, recipe.setting), chance, recipe.diversity)
    return Demonstration(states.astype(np.float32), np.array(ends))


def stream(
    recipe: Recipe, count: int, *, first: int = 0, workers: int | None = None
) -> Iterator[Demonstration]:
    """Demonstrations `first` to `first + count - 1`, in order.

    `workers` is the number of processes (default: as many as pay off).
    """
    jobs = [
        (recipe, start, min(start + CHUNK, first + count))
        for start in range(first, first + count, CHUNK)
    ]
    processes = worker_count(workers, len(jobs))
    if processes == 1:
        for job in jobs:
            yield from _chunk(job)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(_chunk, jobs):
            yield from part


def worker_count(asked: int | None, jobs: int) -> int:
    """Number of processes: as asked, or one per two jobs, up to the number of cores."""
    if asked is None:
        return max(1, min(os.cpu_count() or 1, jobs // 2))
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ValueError(f"workers must be an integer of at least 1, got {asked!r}")
    return max(1, min(asked, jobs))


def _chunk(job: tuple[Recipe, int, int]) -> list[Demonstration]:
    recipe, start, end = job
    return [demonstration(recipe, number) for number in range(start, end)]


def failures(
    demonstrations: list[Demonstration],
    engine: str,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[int]:
    """Numbers of the demonstrations that do not end with a tower of four in a physics engine.

    progress: called with the numbers of demonstrations that are replayed, and of all.
    """
    found: list[int] = []
    for start in range(0, len(demonstrations), REPLAYED):
        part = demonstrations[start : start + REPLAYED]
        longest = max(len(d.states) for d in part)
        padded = np.stack([held(d.states, longest) for d in part]).astype(np.float64)
        q, attach = rollout.plan_of(padded[:, 1:])
        done = rollout.replay(padded[:, 0], q, attach, engine=engine, workers=workers)
        wrong = (rewards.strict(state) < rewards.FULL for state in done.settled)
        found += [start + k for k, is_wrong in enumerate(wrong) if is_wrong]
        if progress:
            progress(start + len(part), len(demonstrations))
    return found


def held(states: npt.NDArray[Any], frames: int) -> npt.NDArray[Any]:
    """States (T, ...) cut or continued to `frames` frames; the last state is held."""
    return states[np.minimum(np.arange(frames), len(states) - 1)]


def oracle(states: Floats, seed: int = 0, diversity: float = 0.0, frames: int = HORIZON) -> Floats:
    """Plans (E, frames, 39) of the expert from states (E, 39): an upper bound for learned planners.

    Each plan starts with its state and is cut or held as a window of a demonstration is. Where the
    expert finds no plan, the arm stays.
    """
    plans = []
    for number, state in enumerate(states):
        path = state[None]
        if rewards.strict(state) < rewards.FULL:
            with suppress(PlanError):
                path, _ = demonstrate(state, np.random.default_rng([seed, number]), diversity)
        plans.append(held(path, frames))
    return np.stack(plans)
