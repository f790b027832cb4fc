"""The expert: a scripted planner that stacks the blocks, with closed-form kinematics only.

For each block it moves the arm above it, goes down, attaches it, lifts it, carries it above the
tower, sets it down, releases it and goes up. Blocks follow from the attachment, so a demonstration
needs no physics. One stack takes less than 128 frames, of which 24 are a second.

`diversity` from 0 to 1 makes the task more ambiguous. At 0 the plan is a function of the scene: the
tower grows on the block with the smallest sum of distances to the others, the block nearest to the
tower comes next, the endeffector keeps its yaw towards the base. At 1, order, yaw, arm angle,
detour, height and pace are random. Where a plan would collide, another one is drawn, with more
diversity if need be. The expert starts from any state, also with a tower half built or a block in
hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .. import layouts
from ..layouts import BLOCKS, Blocks
from ..world import kinematics, physics, rewards, rotations
from ..world.arrays import Floats
from ..world.scenes import THICKNESS
from . import clearance, motion

GAP = 0.01  # metres between endeffector and a block it attaches
LIFT = 0.08  # metres between the lower side of a carried block and what it passes over
KEEP = 0.03  # metres kept between moving and resting things on the way from place to place
DWELL = 2  # frames at rest before attaching, and before releasing
ATTEMPTS, TRIES = 20, 5
TILT = 0.35  # radians by which a block may lean that the expert takes for flat
_DETOUR = np.array([0.25, 0.2, 0.25, 0.2, 0.25, 0.2, 0.25])  # radians, largest


class PlanError(RuntimeError):
    """The expert found no plan for a state."""


class _Motion(NamedTuple):
    """Some frames of a plan."""

    q: Floats  # (n, 7)
    position: Floats  # (n, 4, 3)
    rotation: Floats  # (n, 4, 3, 3)
    flags: Floats  # (n, 4)


@dataclass
class _Plan:
    """A demonstration as far as it is planned: its frames, and the state after them."""

    q: Floats  # (7)
    position: Floats  # (4, 3)
    rotation: Floats  # (4, 3, 3)
    held: int | None
    motions: list[_Motion] = field(default_factory=list)

    def copy(self) -> _Plan:
        return replace(self, motions=list(self.motions))

    def go(self, q: Floats, held: int | None, margin: float = 0.0) -> bool:
        """Add a motion (n, 7) with a block held or none; False if it would come too close."""
        tool = kinematics.forward(q)
        position = np.repeat(self.position[None], len(q), 0)
        rotation = np.repeat(self.rotation[None], len(q), 0)
        carried, rest = None, [k for k in range(BLOCKS) if k != held]
        flags = np.zeros((len(q), BLOCKS))
        if held is not None:
            at, turned = kinematics.forward(self.q)
            offset = turned.T @ (self.position[held] - at)
            position[:, held] = tool[0] + rotations.apply(tool[1], offset)
            rotation[:, held] = tool[1] @ (turned.T @ self.rotation[held])
            flags[:, held] = 1
            carried = position[:, held], rotation[:, held]
        others = self.position[rest], self.rotation[rest]
        if not clearance.clear(tool, carried, others, margin):
            return False
        self.motions.append(_Motion(q, position, rotation, flags))
        self.q, self.position, self.rotation = q[-1], position[-1], rotation[-1]
        self.held = held
        return True

    @property
    def length(self) -> int:
        """The number of frames, without the first."""
        return sum(len(motion.q) for motion in self.motions)

    def states(self) -> Floats:
        """The frames (n, 39), without the first."""
        q, position, rotation, flags = (np.concatenate(x) for x in zip(*self.motions, strict=True))
        quaternion = rotations.to_quaternion(rotation)
        found: Floats = layouts.join(q, Blocks(position, quaternion, flags))
        return found


def demonstrate(
    state: Floats, chance: np.random.Generator, diversity: float = 0.5
) -> tuple[Floats, list[int]]:
    """A demonstration (T, 39) from a state (39) to a tower of four, and where its stacks end.

    The first frame is `state`; frame `ends[k]` is the last one of stack k.
    """
    if not 0 <= diversity <= 1:
        raise ValueError(f"diversity must be from 0 to 1, got {diversity!r}")
    state = physics.require_state(state)
    _require_solvable(state)
    for attempt in range(ATTEMPTS):
        spread = diversity + (1 - diversity) * attempt / ATTEMPTS
        try:
            return _attempt(state, chance, spread)
        except PlanError as error:
            last = error
    raise PlanError(f"no plan found in {ATTEMPTS} attempts; in the last one, {last}")


def _require_solvable(state: Floats) -> None:
    """Refuse states that no plan of the expert can lead to a tower from.

    A block that the arm cannot lift may still be the lowest one, if others can be put on it.
    """
    _, blocks = layouts.split(state)
    held = blocks.held > 0.5
    if held.sum() > 1:
        numbers = " and ".join(map(str, np.flatnonzero(held)))
        raise PlanError(f"blocks {numbers} are held; the expert carries one at a time")
    upright = abs(rotations.from_quaternion(blocks.quaternion)[:, 2, 2])
    above = blocks.position + np.array([0, 0, THICKNESS / 2 + GAP])
    on_it = above + np.array([0, 0, THICKNESS])
    near = kinematics.within_reach(above, motion.DOWN)
    near |= kinematics.within_reach(on_it, motion.DOWN)
    for number in np.flatnonzero(~held):
        if upright[number] < math.cos(TILT):
            raise PlanError(
                f"block {number} is tilted by {math.degrees(math.acos(upright[number])):.0f} "
                "degrees; the expert stacks blocks that lie flat"
            )
        if not near[number]:
            raise PlanError(
                f"block {number} at {_place(blocks.position[number])} is out of the arm's reach"
            )


def _place(position: Floats) -> str:
    """A place in metres, as messages have it."""
    return "(" + ", ".join(f"{x:.3g}" for x in position) + ")"


def _attempt(state: Floats, chance: np.random.Generator, spread: float) -> tuple[Floats, list[int]]:
    """A demonstration, or a PlanError that says which block cannot be stacked."""
    q, blocks = layouts.split(state)
    carried = np.flatnonzero(blocks.held > 0.5)
    plan = _Plan(
        q,
        blocks.position,
        rotations.from_quaternion(blocks.quaternion),
        int(carried[0]) if len(carried) else None,
    )
    tower = _tower(state, plan, chance, spread)
    left = [k for k in range(BLOCKS) if k not in tower]
    ends: list[int] = []
    while left:
        block = _next(plan, tower, left, chance, spread)
        for _ in range(TRIES if spread else 1):
            trial = plan.copy()
            if _stack(trial, block, tower, chance, spread):
                break
        else:
            raise PlanError(
                f"there is no way to stack block {block} at {_place(plan.position[block])} on "
                f"block {tower[-1]} at {_place(plan.position[tower[-1]])}"
            )
        plan = trial
        tower.append(block)
        left.remove(block)
        ends.append(plan.length)
    return np.concatenate([state[None], *([plan.states()] if ends else [])]), ends


def _tower(state: Floats, plan: _Plan, chance: np.random.Generator, spread: float) -> list[int]:
    """The tower to build on, from its lowest block up: the highest one that stands, or a block."""
    free = [k for k in range(BLOCKS) if k != plan.held]
    standing = rewards.towers(state)
    if standing and len(standing[0]) > 1:
        return standing[0]
    if chance.random() < spread:
        return [int(chance.choice(free))]
    apart = np.linalg.norm(plan.position[:, None, :2] - plan.position[None, :, :2], axis=-1)
    return [min(free, key=lambda k: float(apart[k].sum()))]


def _next(
    plan: _Plan, tower: list[int], left: list[int], chance: np.random.Generator, spread: float
) -> int:
    """The block to stack next: the one in hand, a random one, or the nearest to the tower."""
    if plan.held is not None:
        return plan.held
    if chance.random() < spread:
        return int(chance.choice(left))
    base = plan.position[tower[0], :2]
    return min(left, key=lambda k: float(np.linalg.norm(plan.position[k, :2] - base)))


def _stack(
    plan: _Plan, block: int, tower: list[int], chance: np.random.Generator, spread: float
) -> bool:
    """Add the frames that put a block on the tower; False if this try finds no way."""
    top = float(plan.position[tower[-1], 2]) + THICKNESS / 2
    above = top + THICKNESS + GAP + LIFT + spread * chance.uniform(0, 0.06)
    if plan.held is None:
        place = plan.position[block] + [0, 0, THICKNESS / 2 + GAP]
        if not _reach(plan, place, above, None, block, chance, spread):
            return False
    base = plan.position[tower[-1]]
    tool, _ = kinematics.forward(plan.q)
    hang = tool[2] - plan.position[block, 2]  # endeffector above the block's centre
    place = np.array([base[0], base[1], top + THICKNESS / 2 + hang])
    return _reach(plan, place, max(above, place[2] + LIFT), block, None, chance, spread)


def _reach(
    plan: _Plan,
    place: Floats,
    above: float,
    held: int | None,
    then: int | None,
    chance: np.random.Generator,
    spread: float,
) -> bool:
    """Move above a place, go down, hold `then` instead of `held`, and go up again."""
    yaw = math.atan2(place[1], place[0]) + spread * chance.uniform(-math.pi / 2, math.pi / 2)
    angle = spread * chance.uniform(-0.8, 0.8)
    how = motion.posture(plan.q, place, above, yaw, angle, 0.4 * spread, chance)
    if how is None:
        return False
    pace = 1 + 0.25 * spread * chance.uniform(-1, 1)
    detour = spread * _DETOUR * chance.uniform(-1, 1, len(_DETOUR))
    down = motion.vertical(place, above, how)
    wait = np.repeat(down[-1:], DWELL + int(chance.integers(0, 3) * (chance.random() < spread)), 0)
    up = np.concatenate([down[-2::-1], how.above[None]])
    # A plan from the middle of things may have to start close to a block.
    ways = [(1.0, KEEP), (0.5, KEEP), (0.0, KEEP)] + [(0.0, 0.0)] * (not plan.motions)
    for share, margin in ways:
        if plan.go(motion.travel(plan.q, how.above, pace, share * detour), held, margin):
            break
    else:
        return False
    down = np.concatenate([down, wait[:-1]])
    return plan.go(down, held) and plan.go(np.concatenate([wait[-1:], up]), then)
