"""Replay plans in physics: many episodes at once, in this process or in worker processes.

An episode is a state, joint angles and flags of its frames. Each one gets a world that is put into
its state, so the result does not depend on the number of workers or on earlier episodes.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple, TypeAlias

import numpy as np

from .. import layouts
from ..layouts import BLOCKS, JOINT, JOINTS
from . import physics
from .arrays import Floats

Job: TypeAlias = tuple[str, Floats, Floats, Floats, int]
SETTLE = 24
"""Frames after which a tower that stands counts as standing."""


class Rollout(NamedTuple):
    """States of episodes: after each frame, and after the blocks had time to settle."""

    states: Floats  # (E, T, 39)
    settled: Floats  # (E, 39)


def replay(
    start: Floats,
    q: Floats,
    attach: Floats,
    *,
    engine: str = "mujoco",
    workers: int = 1,
    settle: int = SETTLE,
) -> Rollout:
    """Execute plans: joint angles (E, T, 7) and flags (E, T, 4), from the states `start` (E, 39).

    After the last frame all blocks are released and physics runs for `settle` frames, with the arm
    at rest; this does not change `states`. `workers` is the number of processes; 0 takes all cores.
    """
    start, q, attach = (np.asarray(x, dtype=np.float64) for x in (start, q, attach))
    count, frames = len(start), q.shape[1] if q.ndim == 3 else -1
    shapes = (start.shape, q.shape, attach.shape)
    if shapes != ((count, JOINT), (count, frames, JOINTS), (count, frames, BLOCKS)):
        raise ValueError(
            f"got states, joint angles and flags of shapes {', '.join(map(str, shapes))}; "
            f"expected (E, {JOINT}), (E, T, {JOINTS}) and (E, T, {BLOCKS})"
        )
    physics.require(engine)
    for k in range(count):
        try:
            physics.require_state(start[k])
            if not (np.isfinite(q[k]).all() and np.isfinite(attach[k]).all()):
                raise ValueError("its plan has entries that are not finite; the arm needs numbers")
        except ValueError as error:
            raise ValueError(f"episode {k} cannot be replayed: {error}") from error
    parts = physics.shares(count, workers)
    jobs = [(engine, start[part], q[part], attach[part], settle) for part in parts]
    if len(jobs) <= 1:
        done = [_replay(job) for job in jobs]
    else:
        with ProcessPoolExecutor(len(jobs), mp_context=get_context("spawn")) as pool:
            done = list(pool.map(_replay, jobs))
    empty = Rollout(np.zeros((0, max(frames, 0), JOINT)), np.zeros((0, JOINT)))
    return Rollout(*(np.concatenate(x) for x in zip(empty, *done, strict=True)))


def plan_of(states: Floats) -> tuple[Floats, Floats]:
    """Joint angles and flags of states (..., 39), as `replay` takes them."""
    q, blocks = layouts.split(states)
    return q, blocks.held


def _replay(job: Job) -> Rollout:
    engine, start, q, attach, settle = job
    world = physics.make(engine)
    states, settled = np.zeros((*q.shape[:2], JOINT)), np.zeros((len(q), JOINT))
    try:
        for episode in range(len(q)):
            world.reset(start[episode])
            for frame in range(q.shape[1]):
                world.step(q[episode, frame], attach[episode, frame])
                states[episode, frame] = world.state()
            world.settle(settle)
            settled[episode] = world.state()
    finally:
        world.close()
    return Rollout(states, settled)
