"""Demonstrations as transitions (s, a, r, s'), as offline reinforcement learning needs them.

    observation (39)   a state in the joint layout; quaternions have w >= 0
    action (11)        what is added to the joint angles and flags, from -1 to 1: an angle changes
                       by at most `JOINT_STEP` per frame, a flag by at most 1
    reward             1 in the frame in which the tower grows, and 0 otherwise

Every frame begins a transition to the next one. The last frame of a demonstration leads to itself
with action 0, as the export of Janner et al. (2022) has it. No transition is terminal: a
demonstration ends because its time is over, and the value of what follows counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import layouts
from ..demonstrations.stream import Demonstration
from ..layouts import BLOCKS, JOINT, JOINTS
from ..world import rewards
from ..world.arrays import Array, Floats, namespace

OBSERVATION, ACTION = JOINT, JOINTS + BLOCKS
JOINT_STEP = 0.3
"""Radians per frame that an action of 1 means; the expert's fastest motions need 0.25."""


class TransitionBatch(NamedTuple):
    """Some transitions."""

    observation: Tensor  # (B, 39)
    action: Tensor  # (B, 11)
    reward: Tensor  # (B)
    following: Tensor  # (B, 39), the next observation


@dataclass(frozen=True)
class Transitions:
    """The transitions of a set of demonstrations, on any device."""

    states: Tensor  # (F, 39)
    reward: Tensor  # (F)
    last: Tensor  # (F), whether a demonstration ends with this frame

    @classmethod
    def of(cls, demonstrations: Sequence[Demonstration]) -> Transitions:
        """The transitions of demonstrations, which must not be empty."""
        states = [np.asarray(observed(d.states), dtype=np.float32) for d in demonstrations]
        heights = [rewards.heights(d.states.astype(np.float64)) for d in demonstrations]
        reward = [np.diff(height, append=height[-1]) for height in heights]
        last = [np.arange(len(s)) == len(s) - 1 for s in states]
        found = (np.concatenate(x) for x in (states, reward, last))
        state, gain, end = (torch.from_numpy(x) for x in found)
        return cls(state, gain.float(), end)

    def __len__(self) -> int:
        """The number of transitions."""
        return len(self.last)

    @property
    def demonstrations(self) -> int:
        """The number of demonstrations."""
        return int(self.last.sum())

    def batch(self, numbers: Tensor) -> TransitionBatch:
        """The transitions of these numbers (B), each from 0 to their number - 1."""
        now = self.states[numbers]
        after = self.states[numbers + (~self.last[numbers]).long()]
        return TransitionBatch(now, action_between(now, after), self.reward[numbers], after)

    def to(self, device: torch.device | str) -> Transitions:
        """The same on another device."""
        moved = (x.to(device) for x in (self.states, self.reward, self.last))
        return replace(self, **dict(zip(("states", "reward", "last"), moved, strict=True)))


def observed(state: Array) -> Array:
    """What a policy sees of joint states (..., 39): quaternions q and -q are the same rotation."""
    xp = namespace(state)
    q, blocks = layouts.split(state)
    turned = blocks.quaternion
    upper = xp.where(turned[..., 3:] < 0, -turned, turned)
    return layouts.join(q, blocks._replace(quaternion=upper))


def action_between(state: Tensor, following: Tensor) -> Tensor:
    """The actions (..., 11) that lead from joint states (..., 39) to others."""
    (q, blocks), (next_q, next_blocks) = layouts.split(state), layouts.split(following)
    change = torch.cat([(next_q - q) / JOINT_STEP, next_blocks.held - blocks.held], dim=-1)
    return change.clamp(-1, 1)


def change_of(action: Floats) -> Floats:
    """What actions (..., 11) add to joint angles, in radians, and to flags."""
    scale = np.array([JOINT_STEP] * JOINTS + [1.0] * BLOCKS)
    return np.asarray(np.clip(action, -1, 1) * scale)
