"""Rewards: what a state of the blocks is worth, from 0 to 100.

`original` is the reward of Janner et al. (2022). Block i counts as on block j if their horizontal
distance is below 0.2 m, i is more than 0.05 m higher, and i is not held. A pair once seen stays for
the whole episode. The score is the largest number of blocks that one block was ever seen on, of 3.
It is lenient on purpose of comparison: a tower that falls later keeps its score, one block carried
over three others scores 3, and after each phase flags are cleared, so a block still held counts.

`strict` is the height of the tower that stands: blocks that lie flat, centred and in contact on one
another, the lowest on the table, none of them held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .. import layouts
from ..layouts import BLOCKS
from . import rotations
from .arrays import Floats
from .scenes import SIDE, THICKNESS

NEAR, ABOVE = 0.2, 0.05
"""Of the original reward, in metres."""
CENTRED = SIDE / 2
"""Largest horizontal distance between the centres of blocks in a standing tower."""
CONTACT = 0.01
"""Largest deviation of a block's height from that of a perfect tower, in metres."""
UPRIGHT = 0.985
"""Smallest cosine of a block's tilt."""
FULL = 100.0

Flags: TypeAlias = npt.NDArray[np.bool_]


def pairs(state: Floats) -> Flags:
    """Which block is on which: (..., 4, 4), 1 where block i of a state (..., 39) counts as on j."""
    _, blocks = layouts.split(state)
    apart = blocks.position[..., :, None, :] - blocks.position[..., None, :, :]
    near = np.hypot(apart[..., 0], apart[..., 1]) < NEAR
    free = ~(blocks.held > 0.5)[..., :, None]
    return np.asarray(near & (apart[..., 2] > ABOVE) & free & ~np.eye(BLOCKS, dtype=bool))


@dataclass
class Original:
    """The original reward of one episode, for each of its modes.

    `goal` is None for the unconditional mode, in which any tower counts. Otherwise it lists pairs
    (top, bottom) that have to be made in this order, each worth an equal share.
    """

    goal: tuple[tuple[int, int], ...] | None = None
    seen: Flags = field(default_factory=lambda: np.zeros((BLOCKS, BLOCKS), dtype=bool))
    progress: int = 0

    def update(self, state: Floats) -> float:
        """The reward gained by a state (39), from 0 to 100."""
        before = self.score
        now = pairs(state)
        if self.goal is None:
            self.seen = self.seen | now
        else:
            self._advance(now)
        return self.score - before

    def end_phase(self, state: Floats) -> float:
        """The reward gained at the end of a phase, at which the original clears the flags."""
        return self.update(layouts.released(state))

    @property
    def score(self) -> float:
        """The reward so far."""
        if self.goal is not None:
            return FULL * self.progress / len(self.goal)
        return FULL * int(self.seen.sum(-1).max()) / (BLOCKS - 1)

    @property
    def next_pair(self) -> tuple[int, int] | None:
        """The pair to make next; at the end, the last one."""
        return None if self.goal is None else self.goal[min(self.progress, len(self.goal) - 1)]

    def _advance(self, now: Flags) -> None:
        """One pass over the pairs in the order of the original: several may count in one state."""
        assert self.goal is not None
        for top in range(BLOCKS):
            for bottom in range(BLOCKS):
                done = self.progress == len(self.goal)
                if not done and now[top, bottom] and self.goal[self.progress] == (top, bottom):
                    self.progress += 1


def original(states: Floats, phases: int = 1) -> float:
    """The original score of an episode (T, 39) that consists of `phases` phases of equal length."""
    reward = Original()
    for phase in np.array_split(states, phases):
        for state in phase:
            reward.update(state)
        if len(phase):
            reward.end_phase(phase[-1])
    return reward.score


def heights(states: Floats) -> npt.NDArray[np.int64]:
    """The original score of an episode (T, 39) after each of its frames, in blocks: 0 to 3."""
    seen = np.logical_or.accumulate(pairs(states), axis=0)
    return np.asarray(seen.sum(-1).max(-1), dtype=np.int64)


def towers(state: Floats) -> list[list[int]]:
    """The standing towers of a state (39), each from its lowest block up, the highest tower first.

    Blocks that do not stand as part of a tower, such as held or tilted ones, are left out.
    """
    _, blocks = layouts.split(state)
    up = rotations.from_quaternion(blocks.quaternion)[..., 2, 2]
    free = (abs(up) > UPRIGHT) & ~(blocks.held > 0.5)
    height = blocks.position[:, 2] - THICKNESS / 2
    found: list[list[int]] = []
    left = [int(k) for k in np.argsort(height, kind="stable") if free[k]]
    for block in left:
        below = [tower for tower in found if _rests(blocks.position, block, tower)]
        if below:
            below[0].append(block)
        elif abs(height[block]) < CONTACT:
            found.append([block])
    return sorted(found, key=len, reverse=True)


def _rests(position: Floats, block: int, tower: list[int]) -> bool:
    """Whether a block rests on the top of a tower."""
    apart = position[block] - position[tower[-1]]
    return bool(np.hypot(*apart[:2]) < CENTRED and abs(apart[2] - THICKNESS) < CONTACT)


def strict(state: Floats) -> float:
    """The score of the highest standing tower: 0 for single blocks, 100 for all four."""
    found = towers(state)
    return FULL * (len(found[0]) - 1) / (BLOCKS - 1) if found else 0.0


def conditional_goal(chance: np.random.Generator) -> tuple[tuple[int, int], ...]:
    """A random tower of all blocks, as pairs (top, bottom) from the lowest up."""
    order = [int(k) for k in chance.permutation(BLOCKS)]
    return tuple(zip(order[1:], order[:-1], strict=True))


def rearrangement_goal(chance: np.random.Generator) -> tuple[tuple[int, int], ...]:
    """Two or three random pairs (top, bottom): no block is moved twice or after one is on it."""
    movable, bases = list(range(BLOCKS)), list(range(BLOCKS))
    goal: list[tuple[int, int]] = []
    while movable:
        bottom, top = int(chance.choice(bases)), int(chance.choice(movable))
        if bottom == top:
            continue
        goal.append((top, bottom))
        bases.remove(bottom)
        movable = [k for k in movable if k not in (top, bottom)]
    return tuple(goal)
