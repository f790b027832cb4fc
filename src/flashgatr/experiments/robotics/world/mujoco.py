"""The world in MuJoCo. Its model is text that is built here from the lengths of the arm's links.

Only the last link collides, as in the original environment. Joints are driven by position
actuators; within a frame the target moves steadily from the last one to the next, and its speed is
fed forward, so the arm follows without delay. Attachments are weld constraints.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from .. import layouts
from ..layouts import BLOCKS, JOINTS, Blocks
from . import kinematics, physics
from .arrays import Floats
from .kinematics import FORE, LIMITS, SHOULDER, TOOL, UPPER
from .physics import BOX, STEPS

STIFFNESS = (4000.0, 4000.0, 2000.0, 2000.0, 600.0, 600.0, 300.0)  # N m / rad
DELAY = 0.05  # seconds: damping over stiffness, the same for all joints
TORQUE = 300.0  # N m; stiffer light joints would reach it at once and swing
_LEAD = DELAY / (STEPS * physics.STEP_SIZE)  # frames
_MASSES = (4.0, 4.0, 3.0, 2.7, 1.7, 1.8, 0.3)
_PLACES = (SHOULDER, 0, 0, UPPER, 0, FORE, 0)  # of the joints, above the last one
_AXES = ("0 0 1", "0 1 0", "0 0 1", "0 -1 0", "0 0 1", "0 1 0", "0 0 1")
_RODS = ((0, 0.1), (0.1, 0.2), (0.2, UPPER), (0, 0.2), (0.2, FORE), (0, 0.05), (0.06, TOOL))


def model_text() -> str:
    """The model in MuJoCo's XML format."""
    links = "".join(_link(k) for k in range(JOINTS)) + "</body>" * JOINTS
    size = " ".join(map(str, BOX))
    blocks = "".join(
        f'<body name="block{k}" pos="{k + 2} 0 1"><freejoint/>'
        f'<geom type="box" size="{size}" mass="{physics.BLOCK_MASS}"/></body>'
        for k in range(BLOCKS)
    )
    joints = "".join(
        f'<position joint="joint{k}" kp="{STIFFNESS[k]}" kv="{DELAY * STIFFNESS[k]}" '
        f'forcerange="-{TORQUE} {TORQUE}"/>'
        for k in range(JOINTS)
    )
    welds = "".join(
        f'<weld body1="link{JOINTS - 1}" body2="block{k}" active="false" '
        'solref="0.01 1" solimp="0.95 0.99 0.001"/>'
        for k in range(BLOCKS)
    )
    table = physics.TABLE
    return f"""<mujoco>
  <compiler angle="radian"/>
  <option timestep="{physics.STEP_SIZE}" integrator="implicitfast"
    gravity="0 0 -{physics.GRAVITY}"/>
  <default><geom condim="4" friction="{physics.FRICTION} 0.01 0.001"/></default>
  <worldbody>
    <geom type="box" size="{table} {table} 0.05" pos="0 0 -0.05"/>
    {links}{blocks}
  </worldbody>
  <actuator>{joints}</actuator>
  <equality>{welds}</equality>
</mujoco>"""


def _link(k: int) -> str:
    """A link, which stays open for the next one."""
    start, end = _RODS[k]
    last = k == JOINTS - 1
    shape = (
        f'type="cylinder" size="{physics.TOOL_RADIUS}"'
        if last
        else 'type="capsule" size="0.06" contype="0" conaffinity="0"'
    )
    return (
        f'<body name="link{k}" pos="0 0 {_PLACES[k]}" gravcomp="1">'
        f'<joint name="joint{k}" axis="{_AXES[k]}" range="-{LIMITS[k]} {LIMITS[k]}" '
        'limited="true" armature="0.1" damping="1"/>'
        f'<geom {shape} fromto="0 0 {start} 0 0 {end}" mass="{_MASSES[k]}"/>'
    )


def _ignore(message: str) -> None:
    """Takes MuJoCo's warnings."""


class MujocoWorld:
    """A `physics.World` in MuJoCo."""

    def __init__(self) -> None:
        # By default MuJoCo writes warnings into a file in the working folder. The only one that
        # wild plans raise, of numbers too large, is dealt with in `_run`.
        mujoco.set_mju_user_warning(_ignore)
        self._model: Any = mujoco.MjModel.from_xml_string(model_text())
        self._data: Any = mujoco.MjData(self._model)
        self._target = np.zeros(JOINTS)
        self._last = np.zeros(layouts.JOINT)

    def reset(self, state: Floats) -> None:
        state = physics.require_state(state)
        q, blocks = layouts.split(state)
        mujoco.mj_resetData(self._model, self._data)
        self._target = kinematics.clip(q)
        self._data.qpos[:JOINTS] = self._target
        for k in range(BLOCKS):
            x, y, z, w = blocks.quaternion[k] / np.linalg.norm(blocks.quaternion[k])
            self._data.qpos[7 + 7 * k : 14 + 7 * k] = (*blocks.position[k], w, x, y, z)
        self._data.eq_active[:] = 0
        mujoco.mj_forward(self._model, self._data)
        self._attach(blocks.held)
        self._last = self.state()

    def step(self, q: Floats, attach: Floats) -> None:
        q, attach = physics.require_action(q, attach)
        self._attach(attach)
        for k in np.flatnonzero(self._data.eq_active[:BLOCKS] == 0):
            self._data.qvel[7 + 6 * k : 13 + 6 * k] = 0
        self._run(kinematics.clip(q))

    def place(self, q: Floats, attach: Floats) -> None:
        q, attach = physics.require_action(q, attach)
        self._attach(attach)
        self._target = kinematics.clip(q)
        self._data.qpos[:JOINTS], self._data.qvel[:JOINTS] = self._target, 0
        self._run(self._target)

    def settle(self, frames: int) -> None:
        self._attach(np.zeros(BLOCKS))
        for _ in range(frames):
            self._run(self._target)

    def state(self) -> Floats:
        qpos = np.array(self._data.qpos)
        rows = qpos[JOINTS:].reshape(BLOCKS, 7)
        quaternion = rows[:, [4, 5, 6, 3]]
        held = np.array(self._data.eq_active[:BLOCKS], dtype=float)
        state: Floats = layouts.join(qpos[:JOINTS], Blocks(rows[:, :3], quaternion, held))
        return state

    def close(self) -> None:
        pass

    def _run(self, target: Floats) -> None:
        move = target - self._target
        for step in range(1, STEPS + 1):
            self._data.ctrl[:] = self._target + (step / STEPS + _LEAD) * move
            mujoco.mj_step(self._model, self._data)
        self._target = target
        names = ("mjWARN_BADQPOS", "mjWARN_BADQVEL", "mjWARN_BADQACC")
        kinds = [getattr(mujoco.mjtWarning, name) for name in names]
        if any(self._data.warning[kind].number for kind in kinds):  # MuJoCo started anew
            self.reset(self._last)
        self._last = self.state()

    def _attach(self, flags: Floats) -> None:
        """Weld newly held blocks at their present place relative to the last link."""
        for k in range(BLOCKS):
            wanted = bool(flags[k] > 0.5)
            if wanted and not self._data.eq_active[k]:
                link, block = (self._data.body(name) for name in (f"link{JOINTS - 1}", f"block{k}"))
                back, turn, shift = np.zeros(4), np.zeros(4), np.zeros(3)
                mujoco.mju_negQuat(back, link.xquat)
                mujoco.mju_mulQuat(turn, back, block.xquat)
                mujoco.mju_rotVecQuat(shift, block.xpos - link.xpos, back)
                self._model.eq_data[k, :3] = 0
                self._model.eq_data[k, 3:6] = shift
                self._model.eq_data[k, 6:10] = turn
            self._data.eq_active[k] = wanted
