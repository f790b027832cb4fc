"""The task as a gymnasium environment.

    import flashgatr.experiments.robotics.world.env  # registers it
    env = gymnasium.make("KukaStack-v0", engine="mujoco", observation="geometric")

    observation   "joint" (39) or "geometric" (49); modes with a goal append the lower block of the
                  next pair as four numbers 0 or 1
    action (11)   joint angles and flags: "absolute" ones to drive to, or "delta", at most 1 each,
                  to add to the present ones; the arm is then there at once, as in the original
    mode          "unconditional" (any tower), "conditional" (a given tower) or "rearrangement"
    reward        what `rewards.Original` or `rewards.strict` gains in a frame, 0 to 100 in all

An episode has 3 phases of 128 frames, as in the original, after which it is truncated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import layouts
from ..layouts import BLOCKS, HORIZON, JOINTS
from . import kinematics, physics, rewards, scenes
from .arrays import Floats
from .rewards import Original
from .scenes import Setting

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise ImportError(
        'the environment needs gymnasium: pip install "flashgatr[robotics]"'
    ) from error

NAME = "KukaStack-v0"
FRAMES = 3 * HORIZON
_GOALS = {
    "unconditional": None,
    "conditional": rewards.conditional_goal,
    "rearrangement": rewards.rearrangement_goal,
}
OBSERVATIONS = {"joint": layouts.JOINT, "geometric": layouts.GEOMETRIC}
ACTIONS = ("absolute", "delta")
REWARDS = ("original", "strict")


class KukaStack(gymnasium.Env[npt.NDArray[np.float32], npt.NDArray[np.float32]]):  # type: ignore[misc]
    """An arm that stacks four blocks."""

    def __init__(
        self,
        engine: str = "mujoco",
        observation: str = "joint",
        action: str = "absolute",
        mode: str = "unconditional",
        reward: str = "original",
        setting: Setting = Setting(),  # noqa: B008 (frozen)
        render_mode: str | None = None,
    ) -> None:
        for name, value, known in (
            ("observation", observation, OBSERVATIONS),
            ("action", action, ACTIONS),
            ("mode", mode, _GOALS),
            ("reward", reward, REWARDS),
            ("render_mode", render_mode, (None, "rgb_array")),
        ):
            if value not in known:
                raise ValueError(
                    f"unknown {name} {value!r}; expected one of {', '.join(map(str, known))}"
                )
        self.render_mode = render_mode
        self._layout, self._action, self._mode, self._kind = observation, action, mode, reward
        self._setting, self._world = setting, physics.make(engine)
        goal = 0 if mode == "unconditional" else BLOCKS
        size = OBSERVATIONS[observation] + goal
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        limits = (
            [*kinematics.LIMITS, *[1.0] * BLOCKS] if action == "absolute" else [1.0] * (JOINTS + 4)
        )
        high = np.array(limits, dtype=np.float32)
        low = -high
        if action == "absolute":
            low[JOINTS:] = 0
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self._score, self._original, self._frame = 0.0, Original(), 0
        self._flags = np.zeros(BLOCKS)
        self._has_scene, self._is_closed = False, False

    metadata = {"render_modes": ["rgb_array"], "render_fps": 24}  # noqa: RUF012 (gymnasium's)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode with a random scene, or with `options["state"]` (39)."""
        gymnasium.Env.reset(self, seed=seed)
        self._require_open()
        chance = self.np_random
        if not isinstance(options, Mapping | None):
            raise ValueError(f"options must be a dictionary {{'state': …}}, got {options!r}")
        unknown = set(options or {}) - {"state"}
        if unknown:
            raise ValueError(f"unknown options {sorted(unknown)}; expected 'state'")
        given = (options or {}).get("state")
        drawn = scenes.draw(chance, self._setting)
        state = drawn if given is None else physics.require_scene(given)
        draw_goal = _GOALS[self._mode]
        self._original, self._frame = Original(draw_goal(chance) if draw_goal else None), 0
        self._world.reset(state)
        self._has_scene = True
        self._flags = np.array(layouts.split(state)[1].held)
        self._score = self._worth(state)
        return self._observe(), self._info()

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Advance one frame."""
        self._require_scene()
        x = physics.as_numbers(action, "an action")
        if x.shape != (JOINTS + BLOCKS,) or not np.isfinite(x).all():
            raise ValueError(f"an action has {JOINTS + BLOCKS} finite numbers, got {action!r}")
        if self._action == "delta":
            q, self._flags = physics.added(self._world.state()[:JOINTS], self._flags, x)
            self._world.place(q, self._flags)
        else:
            self._world.step(x[:JOINTS], x[JOINTS:])
        self._frame += 1
        state = self._world.state()
        before = self._score
        self._score = self._worth(state)
        ended = self._frame >= FRAMES
        return self._observe(), self._score - before, False, ended, self._info()

    def render(self) -> npt.NDArray[np.uint8] | None:
        """A picture of the world, if the environment was made with render_mode="rgb_array"."""
        if self.render_mode is None:
            return None
        self._require_scene()
        from .render import picture

        return picture(self._world.state())

    def close(self) -> None:
        self._world.close()
        self._is_closed = True

    def _require_open(self) -> None:
        if self._is_closed:
            raise gymnasium.error.ClosedEnvironmentError(
                "this environment is closed; make another one"
            )

    def _require_scene(self) -> None:
        self._require_open()
        if not self._has_scene:
            raise gymnasium.error.ResetNeeded("there is no scene yet; call reset() first")

    def _worth(self, state: Floats) -> float:
        self._original.update(state)
        if self._kind == "original":
            if self._frame and self._frame % HORIZON == 0:
                self._original.end_phase(state)
            return self._original.score
        return rewards.strict(state)

    def _observe(self) -> npt.NDArray[np.float32]:
        state = self._world.state()
        if self._layout == "geometric":
            state = layouts.to_geometric(state)
        pair = self._original.next_pair
        if pair is not None:
            state = np.concatenate([state, np.eye(BLOCKS)[pair[1]]])
        return np.asarray(state, dtype=np.float32)

    def _info(self) -> dict[str, Any]:
        """The state in full precision, the score so far, and the goal where there is one."""
        return {
            "state": self._world.state(),
            "score": self._score,
            "goal": self._original.goal,
        }


if NAME not in gymnasium.registry:
    gymnasium.register(NAME, entry_point=f"{__name__}:KukaStack")
