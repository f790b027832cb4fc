"""The world in PyBullet, the engine of the paper, with the arm that comes with `pybullet_data`.

That arm has the links and limits of the original one. Only its last link collides, as in the
original environment. A reset rebuilds the whole world: otherwise PyBullet keeps contacts, and a
replay is not repeated exactly. Position control with gain 1 is the original's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from .. import layouts
from ..layouts import BLOCKS, JOINTS, Blocks
from . import kinematics, physics
from .arrays import Floats
from .physics import BOX, STEPS


@contextmanager
def _quiet() -> Iterator[None]:
    """PyBullet prints its build time when it is imported, past Python's own streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(stream) for stream in (1, 2)]
    with open(os.devnull, "wb") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    try:
        yield
    finally:
        with suppress(Exception):  # C's own buffers, where there is a C library to ask
            ctypes.CDLL(None).fflush(None)
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)


with _quiet():
    import pybullet
    import pybullet_data


class BulletWorld:
    """A `physics.World` in PyBullet."""

    def __init__(self) -> None:
        self._client: int = pybullet.connect(pybullet.DIRECT)
        self._robot = -1
        self._blocks: list[int] = []
        self._welds: list[int | None] = [None] * BLOCKS
        self._target = np.zeros(JOINTS)
        self._last = np.zeros(layouts.JOINT)

    def reset(self, state: Floats) -> None:
        state = physics.require_state(state)
        q, blocks = layouts.split(state)
        self._call("resetSimulation")
        self._call("setGravity", 0, 0, -physics.GRAVITY)
        self._call("setTimeStep", physics.STEP_SIZE)
        self._call("setAdditionalSearchPath", pybullet_data.getDataPath())
        self._robot = self._call("loadURDF", "kuka_iiwa/model.urdf", useFixedBase=True)
        for link in range(-1, JOINTS - 1):
            self._call("setCollisionFilterGroupMask", self._robot, link, 0, 0)
        self._put_arm(kinematics.clip(q))
        table = [physics.TABLE, physics.TABLE, 0.05]
        self._box(table, 0.0, [0, 0, -0.05], [0, 0, 0, 1])
        self._blocks = [
            self._box(list(BOX), physics.BLOCK_MASS, list(position), list(quaternion))
            for position, quaternion in zip(blocks.position, blocks.quaternion, strict=True)
        ]
        self._welds = [None] * BLOCKS
        self._attach(blocks.held)
        self._last = self.state()

    def step(self, q: Floats, attach: Floats) -> None:
        q, attach = physics.require_action(q, attach)
        self._require_scene()
        self._attach(attach)
        for block, weld in zip(self._blocks, self._welds, strict=True):
            if weld is None:
                self._call("resetBaseVelocity", block, [0, 0, 0], [0, 0, 0])
        self._run(kinematics.clip(q))

    def place(self, q: Floats, attach: Floats) -> None:
        q, attach = physics.require_action(q, attach)
        self._require_scene()
        self._attach(attach)
        self._put_arm(kinematics.clip(q))
        self._run(self._target)

    def settle(self, frames: int) -> None:
        self._require_scene()
        self._attach(np.zeros(BLOCKS))
        for _ in range(frames):
            self._run(self._target)

    def state(self) -> Floats:
        self._require_scene()
        joints = self._call("getJointStates", self._robot, list(range(JOINTS)))
        poses = [self._call("getBasePositionAndOrientation", block) for block in self._blocks]
        held = np.array([float(weld is not None) for weld in self._welds])
        state: Floats = layouts.join(
            np.array([joint[0] for joint in joints]),
            Blocks(np.array([p for p, _ in poses]), np.array([r for _, r in poses]), held),
        )
        return state

    def close(self) -> None:
        if self._client >= 0:
            pybullet.disconnect(self._client)
            self._client = -1

    def _require_scene(self) -> None:
        if not self._blocks:
            raise RuntimeError("this world has no scene yet; call reset with a state first")

    def _put_arm(self, q: Floats) -> None:
        self._target = q
        for joint, angle in enumerate(q):
            self._call("resetJointState", self._robot, joint, angle)

    def _run(self, target: Floats) -> None:
        self._target = target
        self._call(
            "setJointMotorControlArray",
            self._robot,
            list(range(JOINTS)),
            pybullet.POSITION_CONTROL,
            targetPositions=list(target),
            positionGains=[1.0] * JOINTS,
        )
        for _ in range(STEPS):
            self._call("stepSimulation")
        now = self.state()
        if np.isfinite(now).all():
            self._last = now
        else:
            self.reset(self._last)

    def _attach(self, flags: Floats) -> None:
        """Weld newly held blocks at their present place relative to the last link."""
        for k, block in enumerate(self._blocks):
            weld, wanted = self._welds[k], bool(flags[k] > 0.5)
            if weld is not None and not wanted:
                self._call("removeConstraint", weld)
                self._welds[k] = None
            elif weld is None and wanted:
                link = self._call("getLinkState", self._robot, JOINTS - 1)[:2]
                back = pybullet.invertTransform(*link)
                pose = self._call("getBasePositionAndOrientation", block)
                position, rotation = pybullet.multiplyTransforms(*back, *pose)
                fixed = (pybullet.JOINT_FIXED, [0, 0, 0], position, [0, 0, 0], rotation)
                ends = (self._robot, JOINTS - 1, block, -1)
                self._welds[k] = self._call("createConstraint", *ends, *fixed)

    def _box(self, half: list[float], mass: float, place: list[float], turn: list[float]) -> int:
        shape = self._call("createCollisionShape", pybullet.GEOM_BOX, halfExtents=half)
        made: int = self._call(
            "createMultiBody", mass, shape, basePosition=place, baseOrientation=turn
        )
        self._call("changeDynamics", made, -1, lateralFriction=physics.FRICTION)
        return made

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if self._client < 0:
            raise RuntimeError("this world is closed; make another one")
        return getattr(pybullet, name)(*args, physicsClientId=self._client, **options)
