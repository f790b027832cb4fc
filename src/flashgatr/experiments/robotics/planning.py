"""Planning: three phases of 128 frames, many episodes at once, as Janner et al. (2022) evaluate.

    plan from the current state -> joint angles -> open loop in a physics engine -> new state

A planner gets the states of all episodes and returns a plan for each. The endeffector's path
becomes joint angles by inverse kinematics; physics executes them without looking at the plan again.
The state after a phase is the start of the next one. `DiffusionPlanner` samples plans from a
denoiser; `expert`, `rest` and `noise` check the loop itself.
Shapes: E episodes, P phases, H = 128 frames of a plan, whose first one is the current state.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from ...train.compiled import compiled_copy
from ...train.order import mix
from . import layouts
from .demonstrations.stream import oracle
from .layouts import GEOMETRIC, HORIZON, JOINT, JOINTS
from .normalised import Scale, bounded
from .sampling import Plan, Progress, SeededNoise, condition, sample
from .world import rewards, rollout
from .world.arrays import Floats
from .world.rollout import Rollout

PHASES = 3
WORTH_COMPILING = 200
"""Denoising steps; with fewer, compilation takes longer than it saves."""


class Planner(Protocol):
    """Plans for states; a plan may depend on its state and its seed only."""

    def __call__(self, states: Floats, seeds: Sequence[int]) -> Floats:
        """States (E, 39) in the joint layout, their seeds: plans (E, 128, 49 or 39) in metres."""


def expert(states: Floats, seeds: Sequence[int]) -> Floats:
    """The plans of the scripted expert: the loop scores nearly 100 with them."""
    pairs = zip(states, seeds, strict=True)
    plans = [oracle(state[None], seed=seed) for state, seed in pairs]
    return np.asarray(layouts.to_geometric(np.concatenate(plans)))


def rest(states: Floats, seeds: Sequence[int]) -> Floats:
    """Plans in which nothing moves: the loop scores 0 with them."""
    return np.repeat(layouts.to_geometric(states)[:, None], HORIZON, axis=1)


def noise(states: Floats, seeds: Sequence[int]) -> Floats:
    """Random plans, as those of an untrained network: what the loop scores with them is luck."""
    shape = (HORIZON, GEOMETRIC)
    drawn = np.stack([np.random.default_rng(seed).normal(size=shape) for seed in seeds])
    return np.asarray(Scale().restore(bounded(torch.from_numpy(drawn))).numpy())


@dataclass(frozen=True)
class DiffusionPlanner:
    """Samples plans from a denoiser, conditioned on the current state.

    batch: number of plans that are sampled together.
    precision: as in train.precision; with "bfloat16", a GPU computes under autocast.
    compiled: as train.compile; on a GPU, plans of many steps compile the denoiser's blocks.
    """

    denoiser: nn.Module
    plan: Plan
    batch: int = 256
    precision: str = "float32"
    compiled: bool = False
    progress: Progress | None = None

    def __call__(self, states: Floats, seeds: Sequence[int]) -> Floats:
        weight = next(self.denoiser.parameters())
        geometric = torch.from_numpy(np.asarray(layouts.to_geometric(states)))
        first = Scale().normalize(geometric).to(weight.device, weight.dtype)
        compiles, plans = self.compiles_on(weight.device), []
        denoiser = self._compiled_denoiser if compiles else self.denoiser
        for start in range(0, len(first), self.batch):
            part = slice(start, start + self.batch)
            known, clamp = condition(first[part], HORIZON)
            noise = SeededNoise(seeds[part], (HORIZON, GEOMETRIC), first)
            with self._autocast(weight.device), _compilation(compiles):
                plans.append(
                    sample(
                        denoiser,
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

    def _autocast(self, device: torch.device) -> torch.autocast:
        """On a GPU only; without a cache of weights, which would belong to a captured graph."""
        wanted = self.precision == "bfloat16" and device.type == "cuda"
        return torch.autocast(device.type, torch.bfloat16, enabled=wanted, cache_enabled=False)

    def compiles_on(self, device: torch.device) -> bool:
        """Whether plans are sampled with compiled blocks on this device."""
        return self.compiled and device.type == "cuda" and len(self.plan) >= WORTH_COMPILING

    @cached_property
    def _compiled_denoiser(self) -> nn.Module:
        return compiled_copy(self.denoiser)


def _compilation(wanted: bool) -> AbstractContextManager[object]:
    """A context in which compiled blocks run as such, even where a trainer lets them run
    eagerly.
    """
    return torch.compiler.set_stance("default") if wanted else nullcontext()


class Episodes(NamedTuple):
    """What happened in episodes of P phases."""

    reward: Floats  # (E, P), the original score after each phase, 0 to 100
    strict: Floats  # (E), the score of the tower that stands in the end, 0 to 100
    reached: Floats  # (E, P), share of the frames whose planned pose the arm can attain
    plans: Floats  # (E, P, 128, 49 or 39); of a policy, the actions (E, P, 128, 11)
    states: Floats  # (E, 1 + P * 127, 39), the scene, and the state after every frame; of a policy,
    # which also acts in the first frame of a phase, (E, 1 + P * 128, 39)
    settled: Floats  # (E, 39), after the blocks were released and had time to settle


def run(
    planner: Planner,
    scenes: Floats,
    *,
    seed: int = 0,
    phases: int = PHASES,
    engine: str = "mujoco",
    workers: int = 1,
    clear_flags: bool = False,
) -> Episodes:
    """Plan and execute episodes from scenes (E, 39).

    workers: processes of the physics engine; 0 takes all cores. Episode e depends on the scene, e
    and the seed, and not on the other scenes.
    clear_flags: the planner is not told which blocks are held. The original evaluation does so: it
    clears the flags after each phase, though a block may still be in hand.
    """
    start = np.asarray(scenes, dtype=np.float64)
    scores = [rewards.Original() for _ in start]
    reward, reached, plans = [], [], []
    done, states = Rollout(start[:, None], start), [start[:, None]]
    for phase in range(phases):
        seeds = [mix(seed, phase, number) for number in range(len(start))]
        shown = layouts.released(start) if clear_flags else start
        plans.append(np.asarray(planner(shown, seeds), dtype=np.float64))
        done, hit = execute(start, plans[-1], engine=engine, workers=workers)
        reward.append(score_phase(scores, done.states))
        start = done.states[:, -1]
        reached.append(hit)
        states.append(done.states)
    strict = np.array([rewards.strict(state) for state in done.settled])
    return Episodes(
        np.array(reward).T,
        strict,
        np.stack(reached, axis=1),
        np.stack(plans, axis=1),
        np.concatenate(states, axis=1),
        done.settled,
    )


def score_phase(scores: Sequence[rewards.Original], states: Floats) -> list[float]:
    """The original score of every episode after a phase with the states (E, T, 39)."""
    for score, episode in zip(scores, states, strict=True):
        for state in episode:
            score.update(state)
        score.end_phase(episode[-1])
    return [score.score for score in scores]


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
        raise ValueError(
            f"the plan of episode {bad[0]} has entries that are not finite; the network diverged, "
            "or its weights are damaged"
        )
    frames, reached = plans[:, 1:], np.ones(len(state))
    if plans.shape[-1] == GEOMETRIC:
        frames, hit = layouts.to_joint(frames, state[:, :JOINTS])
        reached = hit.mean(-1)
    q, attach = rollout.plan_of(frames)
    return rollout.replay(state, q, attach, engine=engine, workers=workers), reached


def summarise(episodes: Episodes) -> dict[str, float]:
    """Means over episodes, and the standard errors of the two rewards."""
    final = episodes.reward[:, -1]
    found = {f"reward_phase_{k + 1}": float(x) for k, x in enumerate(episodes.reward.mean(0))}
    several = len(final) > 1
    for name, values in (("reward", final), ("strict", episodes.strict)):
        found[name] = float(values.mean())
        found[f"{name}_error"] = float(values.std(ddof=1) / len(values) ** 0.5) if several else 0.0
    found["success"] = 100 * float((episodes.strict >= rewards.FULL).mean())
    found["reached"] = 100 * float(episodes.reached.mean())
    return {**found, "scenes": len(final), "cases": len(final)}
