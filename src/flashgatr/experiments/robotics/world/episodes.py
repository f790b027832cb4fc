"""Evaluation of a planner: episodes of three phases, all episodes at once.

In each phase the planner sees the present states and returns plans of 128 frames, whose first frame
is the state. The other 127 are executed open loop in physics. Rewards count every executed frame,
the original one also the end of each phase; the strict one judges the blocks after they settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from .. import layouts
from ..layouts import BLOCKS, GEOMETRIC, HORIZON, JOINT
from . import rewards, rollout
from .arrays import Floats
from .rewards import Original
from .rollout import Rollout

PHASES = 3
Planner: TypeAlias = Callable[[Floats, int], Floats]
"""From states (E, 39) and the number of the phase to plans (E, 128, 49) or (E, 128, 39)."""


class Scores(NamedTuple):
    """Scores of episodes from 0 to 100, and what happened in them."""

    original: Floats  # (E)
    strict: Floats  # (E)
    phases: Floats  # (E, 3), the original score after each phase
    states: Floats  # (E, 1 + 3 * 127, 39)
    reached: Floats  # (E), share of frames whose pose the arm attained


def evaluate(
    planner: Planner,
    scenes: Floats,
    *,
    engine: str = "mujoco",
    workers: int = 1,
    clear_flags: bool = False,
) -> Scores:
    """Run episodes from scenes (E, 39).

    The original evaluation clears the flags of the state that the next phase starts from, though
    the block stays in hand. With `clear_flags` the planner sees such states; the default shows what
    is true.
    """
    state = np.asarray(scenes, dtype=np.float64)
    scores = [Original() for _ in state]
    after, seen, shares = [], [state[:, None]], []
    done = Rollout(state[:, None], state)
    for phase in range(PHASES):
        shown = state
        if clear_flags:
            q, blocks = layouts.split(state)
            shown = layouts.join(q, blocks._replace(held=np.zeros((len(state), BLOCKS))))
        plans = np.asarray(planner(shown, phase), dtype=np.float64)
        done, reached = execute(state, plans, engine=engine, workers=workers)
        for score, frames in zip(scores, done.states, strict=True):
            for frame in frames:
                score.update(frame)
            score.end_phase(frames[-1])
        after.append([score.score for score in scores])
        seen.append(done.states)
        shares.append(reached)
        state = done.states[:, -1]
    strict = np.array([rewards.strict(x) for x in done.settled])
    phases = np.array(after).T.reshape(len(state), PHASES)
    return Scores(
        phases[:, -1], strict, phases, np.concatenate(seen, axis=1), np.mean(shares, axis=0)
    )


def execute(
    state: Floats, plans: Floats, *, engine: str = "mujoco", workers: int = 1
) -> tuple[Rollout, Floats]:
    """Execute the frames of plans (E, 128, 49 or 39) after the first, from states (E, 39).

    Also returned: the share (E) of frames whose pose the arm attains.
    """
    known = (len(state), HORIZON, GEOMETRIC), (len(state), HORIZON, JOINT)
    if plans.shape not in known:
        raise ValueError(f"got plans of shape {plans.shape}, expected {known[0]} or {known[1]}")
    bad = np.flatnonzero(~np.isfinite(plans).all((1, 2)))
    if len(bad):
        raise ValueError(f"the plan of episode {bad[0]} has entries that are not finite")
    frames, reached = plans[:, 1:], np.ones(len(state))
    if plans.shape[-1] == GEOMETRIC:
        frames, hit = layouts.to_joint(frames, state[:, : layouts.JOINTS])
        reached = hit.mean(-1)
    q, attach = rollout.plan_of(frames)
    return rollout.replay(state, q, attach, engine=engine, workers=workers), reached
