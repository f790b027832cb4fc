"""Planning: three phases of 128 frames, many episodes at once, as Janner et al. (2022) evaluate.

    plan from the current state -> joint angles -> open loop in a physics engine -> new state

A planner gets the states of all episodes and returns a plan for each. The endeffector's path
becomes joint angles by inverse kinematics; physics executes them without looking at the plan again.
The state after a phase is the start of the next one. `DiffusionPlanner` samples plans from a
denoiser; `expert` and `rest` are bounds that check the loop itself.
Shapes: E episodes, H = 128 frames of a plan, whose first one is the current state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from ...train.order import mix
from . import layouts
from .demonstrations.stream import oracle
from .layouts import GEOMETRIC, HORIZON, JOINTS, Scale
from .sampling import Plan, Progress, SeededNoise, condition, sample
from .state import bounded, released
from .world import rewards, rollout
from .world.arrays import Floats

PHASES = 3


class Planner(Protocol):
    """Plans for states; a plan may depend on its state and its seed only."""

    def __call__(self, states: Floats, seeds: Sequence[int]) -> Floats:
        """States (E, 39) in the joint layout, a seed for each: plans (E, 128, 49) in metres."""


def expert(states: Floats, seeds: Sequence[int]) -> Floats:
    """The plans of the scripted expert: the loop scores nearly 100 with them."""
    pairs = zip(states, seeds, strict=True)
    plans = [oracle(state[None], seed=seed) for state, seed in pairs]
    return np.asarray(layouts.to_geometric(np.concatenate(plans)))


def rest(states: Floats, seeds: Sequence[int]) -> Floats:
    """Plans in which nothing moves: the loop scores 0 with them."""
    return np.repeat(layouts.to_geometric(states)[:, None], HORIZON, axis=1)


@dataclass(frozen=True)
class DiffusionPlanner:
    """Samples plans from a denoiser, conditioned on the current state.

    release: the denoiser is not told which blocks are held, as in the original evaluation; it was
        to be trained with the same `data.options.release`.
    batch: number of plans that are sampled together.
    """

    denoiser: nn.Module
    plan: Plan
    release: bool = True
    batch: int = 256
    progress: Progress | None = None

    def __call__(self, states: Floats, seeds: Sequence[int]) -> Floats:
        weight = next(self.denoiser.parameters())
        geometric = torch.from_numpy(np.asarray(layouts.to_geometric(states)))
        first = Scale().normalize(geometric).to(weight.device, weight.dtype)
        first = released(first) if self.release else first
        plans = []
        for start in range(0, len(first), self.batch):
            part = slice(start, start + self.batch)
            known, clamp = condition(first[part], HORIZON)
            noise = SeededNoise(seeds[part], (HORIZON, GEOMETRIC), first)
            plans.append(
                sample(
                    self.denoiser,
                    self.plan,
                    known,
                    clamp,
                    noise,
                    bound=bounded,
                    progress=self.progress,
                )
            )
        found = Scale().restore(torch.cat(plans).double())
        return np.asarray(found.cpu().numpy())


class Episodes(NamedTuple):
    """What happened in episodes of P phases."""

    reward: Floats  # (E, P), the original score after each phase, 0 to 100
    strict: Floats  # (E), the score of the tower that stands in the end, 0 to 100
    reached: Floats  # (E, P), share of the frames whose planned pose the arm can attain
    states: Floats  # (E, P * 127, 39), after every frame


def run(
    planner: Planner,
    scenes: Floats,
    *,
    seed: int = 0,
    phases: int = PHASES,
    engine: str = "mujoco",
    workers: int = 1,
) -> Episodes:
    """Plan and execute episodes from scenes (E, 39).

    workers: processes of the physics engine; 0 takes all cores. Episode e depends on the scene, e
    and the seed, and not on the other scenes.
    """
    start = np.asarray(scenes, dtype=np.float64)
    scores = [rewards.Original() for _ in start]
    reward, reached, states, settled = [], [], [], start
    for phase in range(phases):
        plans = planner(start, [mix(seed, phase, number) for number in range(len(start))])
        if plans.shape != (len(start), HORIZON, GEOMETRIC):
            raise ValueError(
                f"a planner must return plans of shape {(len(start), HORIZON, GEOMETRIC)}, got "
                f"{plans.shape}"
            )
        path = layouts.to_joint(plans[:, 1:], start[:, :JOINTS])
        q, attach = rollout.plan_of(path.state)
        done = rollout.replay(start, q, attach, engine=engine, workers=workers)
        for score, episode in zip(scores, done.states, strict=True):
            for state in episode:
                score.update(state)
            score.end_phase(episode[-1])
        start, settled = done.states[:, -1], done.settled
        reward.append([score.score for score in scores])
        reached.append(path.reached.mean(-1))
        states.append(done.states)
    strict = np.array([rewards.strict(state) for state in settled])
    return Episodes(
        np.array(reward).T, strict, np.stack(reached, axis=1), np.concatenate(states, axis=1)
    )


def summarise(episodes: Episodes) -> dict[str, float]:
    """Means over episodes, and the standard errors of the two rewards."""
    final = episodes.reward[:, -1]
    found = {f"reward_phase_{k + 1}": float(x) for k, x in enumerate(episodes.reward.mean(0))}
    several = len(final) > 1
    for name, values in (("reward", final), ("strict", episodes.strict)):
        found[name] = float(values.mean())
        found[f"{name}_error"] = float(values.std(ddof=1) / len(values) ** 0.5) if several else 0.0
    found["success"] = float((episodes.strict >= rewards.FULL).mean())
    found["reached"] = float(episodes.reached.mean())
    return {**found, "episodes": len(final)}
