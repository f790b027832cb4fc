"""Scenes: where arm and blocks are when an episode begins.

Four flat blocks lie on a ring of 0.6 m about the robot. Their directions are those of points drawn
uniformly from a square, as in the environment of Janner et al. (2022). A block whose bounding box
overlaps an earlier one's is drawn again. A scene depends on (seed, set, number) alone, so the sets
are disjoint and a longer set begins with the shorter one.

The original arm starts straight up, at joint angles 0. That pose is singular: inverse kinematics
leaves three joints open there. Our scenes start from `kinematics.HOME`, a bent pose.
Demonstrations, evaluation and environment all take the start of the scene, so they agree.
`Setting(start="upright")` gives the original start everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .. import layouts
from ..layouts import BLOCKS, JOINTS, Blocks
from . import kinematics, rotations
from .arrays import Floats

RADIUS = 0.6
SIDE, THICKNESS = 0.2, 0.06
"""A block, in metres."""
SETS = {"train": None, "validation": 50, "test": 200, "predict": None}
"""Sets of scenes and their sizes; the position in this table selects the random stream."""
STARTS = {"bent": kinematics.HOME, "upright": (0.0,) * JOINTS}
TURN = math.radians(150)
"""The largest angle by which a world is turned; joint 1 stops at 170 degrees."""
MOST_SEED = 2**32 - 1
"""numpy reads a larger seed as several numbers, which may be the seed and set of other scenes."""
_TRIES = 10_000


@dataclass(frozen=True)
class Setting:
    """How scenes are drawn.

    `random_yaw` turns each block about its own axis. `turned` turns the whole world, arm included,
    about the vertical axis by an angle of up to 150 degrees.
    """

    start: str = "bent"
    random_yaw: bool = False
    turned: bool = False

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, got {self.start!r}")
        for name in ("random_yaw", "turned"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")


def require_seed(seed: object) -> None:
    """Refuse what is no seed of scenes."""
    number = isinstance(seed, int) and not isinstance(seed, bool)
    if not number or not 0 <= seed <= MOST_SEED:  # type: ignore[operator]
        raise ValueError(f"seed must be an integer from 0 to {MOST_SEED:,}, got {seed!r}")


def random_stream(name: str, seed: int, number: int) -> np.random.Generator:
    """The random numbers of scene `number` of a set."""
    require_seed(seed)
    if name not in SETS:
        raise ValueError(f"unknown set {name!r}; expected one of {', '.join(SETS)}")
    return np.random.default_rng([seed, list(SETS).index(name), number])


def draw(chance: np.random.Generator, setting: Setting = Setting()) -> Floats:  # noqa: B008
    """A random scene: a state in the joint layout (39), nothing held."""
    position, yaw = np.zeros((BLOCKS, 3)), np.zeros(BLOCKS)
    count, tries = 0, 0
    while count < BLOCKS:
        direction = chance.uniform(-1, 1, 2)
        position[count] = (*(RADIUS * direction / np.hypot(*direction)), THICKNESS / 2)
        yaw[count] = chance.uniform(-math.pi, math.pi) if setting.random_yaw else 0.0
        count += not any(_overlap(position, yaw, count, other) for other in range(count))
        tries += 1
        assert tries < _TRIES, "four blocks fit on the ring"
    quaternion = rotations.to_quaternion(rotations.about_z(yaw))
    q = np.array(STARTS[setting.start])
    state: Floats = layouts.join(q, Blocks(position, quaternion, np.zeros(BLOCKS)))
    if setting.turned:
        state = layouts.rotated(state, float(chance.uniform(-TURN, TURN)))
    return state


def scenes(
    name: str,
    count: int | None = None,
    *,
    seed: int = 0,
    setting: Setting = Setting(),  # noqa: B008 (frozen)
) -> Floats:
    """The first scenes of a set, (count, 39): by default 50 for validation and 200 for tests."""
    if name in SETS and count is None:
        count = SETS[name]
    if count is None or count < 0:
        raise ValueError(f"count must be a number of scenes, got {count!r}")
    drawn = [draw(random_stream(name, seed, k), setting) for k in range(count)]
    return np.stack(drawn) if drawn else np.zeros((0, layouts.JOINT))


def _overlap(position: Floats, yaw: Floats, a: int, b: int) -> bool:
    """Whether the bounding boxes of two blocks, along the axes, overlap."""
    half = SIDE / 2 * (abs(np.cos(yaw)) + abs(np.sin(yaw)))
    apart = abs(position[a, :2] - position[b, :2])
    return bool((apart < half[a] + half[b]).all())
