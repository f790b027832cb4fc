"""A trained policy in closed loop: it sees the state of every frame and says how the arm moves.

    observation -> action -> joint angles and flags -> one frame of physics -> observation

An episode has 3 phases of 128 frames, as long as those of planning, and is scored in the same way.
The arm is where its joint angles say at once, as in the environment of Janner et al. (2022). All
episodes share one call of the policy per frame.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ....precision import full_precision
from ....train.order import mix
from .. import layouts
from ..evaluation import Messages
from ..layouts import HORIZON, JOINTS
from ..planning import PHASES, Episodes, score_phase
from ..sampling import SeededNoise
from ..world import kinematics, physics, rewards
from ..world.arrays import Floats
from ..world.lockstep import Lockstep
from ..world.rollout import SETTLE
from .learner import Learner
from .transitions import ACTION, change_of, observed


@dataclass(frozen=True)
class Acting:
    """A policy acts: see `evaluation.Way`."""

    learner: Learner
    clock: None = None

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    def __call__(
        self, scenes: Floats, *, engine: str, title: str, seed: int = 0, workers: int = 0
    ) -> Episodes:
        policy = LearnedPolicy(self.learner, len(scenes), seed)
        messages = Messages(title, phases=1)
        return run(policy, scenes, engine=engine, workers=workers, progress=messages)


class Policy(Protocol):
    """Chooses actions; one may depend on the observations and the number of its episode only."""

    def __call__(self, observations: Floats) -> Floats:
        """Observations (E, 39) of the next frame of all episodes: actions (E, 11)."""


class LearnedPolicy:
    """The policy of a learner. Every episode has its own random numbers."""

    def __init__(self, learner: Learner, episodes: int, seed: int = 0) -> None:
        self._learner = learner
        self._weight = next(learner.parameters())
        seeds = [mix(seed, number) for number in range(episodes)]
        self._noise = SeededNoise(seeds, learner.noise_shape, self._weight)

    @torch.no_grad()
    def __call__(self, observations: Floats) -> Floats:
        seen = torch.from_numpy(observations).to(self._weight)
        with full_precision(seen.device):
            action = self._learner.act(seen, self._noise(0))
        return np.asarray(action.double().cpu().numpy())


def run(
    policy: Policy,
    scenes: Floats,
    *,
    engine: str = "mujoco",
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Episodes:
    """Let a policy act from scenes (E, 39). workers: processes of the engine; 0: all cores.

    `reached` is the share of the frames whose joint angles are within the arm's limits.
    """
    now = np.asarray(scenes, dtype=np.float64)
    flags = layouts.split(now)[1].held
    states, actions, inside = [now], [], []
    with closing(Lockstep(engine, now, workers=workers)) as worlds:
        for frame in range(PHASES * HORIZON):
            actions.append(_checked(policy(observed(now)), len(now)))
            q, flags = physics.added(now[:, :JOINTS], flags, change_of(actions[-1]))
            inside.append(kinematics.within_limits(q))
            now = worlds.place(q, flags)
            states.append(now)
            if progress:
                progress(frame + 1, PHASES * HORIZON)
        settled = worlds.settle(SETTLE)
    path = np.stack(states[1:], axis=1).reshape(len(now), PHASES, HORIZON, -1)
    scores = [rewards.Original() for _ in now]
    reward = [score_phase(scores, path[:, phase]) for phase in range(PHASES)]
    return Episodes(
        np.array(reward).T,
        np.array([rewards.strict(state) for state in settled]),
        np.stack(inside, axis=1).reshape(len(now), PHASES, HORIZON).mean(-1),
        np.stack(actions, axis=1).reshape(len(now), PHASES, HORIZON, ACTION),
        np.stack(states, axis=1),
        settled,
    )


def _checked(actions: Floats, episodes: int) -> Floats:
    if actions.shape != (episodes, ACTION):
        raise ValueError(f"got actions of shape {actions.shape}, expected ({episodes}, {ACTION})")
    bad = np.flatnonzero(~np.isfinite(actions).all(-1))
    if len(bad):
        raise ValueError(
            f"the action of episode {bad[0]} has entries that are not finite; the network "
            "diverged, or its weights are damaged"
        )
    return actions
