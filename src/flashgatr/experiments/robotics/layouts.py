"""The two layouts of a state, their parts, and the maps between them.

    joint (39)      7 joint angles; for each of 4 blocks: position (3), quaternion x y z w (4), flag
    geometric (49)  for the endeffector and the 4 blocks: position (3), first and second column of
                    the rotation (3 + 3); then the 4 flags

A flag is 1 while the endeffector holds the block, and 0 otherwise. From joint to geometric is
forward kinematics. Back, directions are made orthonormal, flags above 0.5 become 1, and inverse
kinematics finds joint angles along the path. Functions take numpy arrays or torch tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .world import kinematics, rotations, tracking
from .world.arrays import Array, Floats, namespace

JOINTS, BLOCKS, OBJECTS = 7, 4, 5
PER_BLOCK, PER_OBJECT = 8, 9
JOINT, GEOMETRIC = JOINTS + BLOCKS * PER_BLOCK, OBJECTS * PER_OBJECT + BLOCKS
HORIZON = 128
"""Frames of a plan; its first frame is the state from which it starts."""


class Blocks(NamedTuple):
    """The four blocks of a state."""

    position: Array  # (..., 4, 3)
    quaternion: Array  # (..., 4, 4), x y z w
    held: Array  # (..., 4), 0 or 1


class Objects(NamedTuple):
    """The endeffector and the four blocks of a geometric state."""

    position: Array  # (..., 5, 3)
    directions: Array  # (..., 5, 2, 3)
    flags: Array  # (..., 4)


class Path(NamedTuple):
    """States in the joint layout, and in which frames the arm attains the poses asked for."""

    state: Array  # (E, T, 39)
    reached: Array  # (E, T)


def split(state: Array) -> tuple[Array, Blocks]:
    """Joint angles (..., 7) and blocks of a state in the joint layout."""
    _require(state, JOINT, "joint")
    rows = state[..., JOINTS:].reshape(*state.shape[:-1], BLOCKS, PER_BLOCK)
    return state[..., :JOINTS], Blocks(rows[..., :3], rows[..., 3:7], rows[..., 7])


def join(q: Array, blocks: Blocks) -> Array:
    """The inverse of `split`."""
    xp = namespace(q)
    rows = xp.concatenate([blocks.position, blocks.quaternion, blocks.held[..., None]], axis=-1)
    return xp.concatenate([q, rows.reshape(*q.shape[:-1], BLOCKS * PER_BLOCK)], axis=-1)


def to_geometric(state: Array) -> Array:
    """States (..., 39) in the geometric layout (..., 49)."""
    xp = namespace(state)
    q, blocks = split(state)
    position, rotation = kinematics.forward(q)
    position = xp.concatenate([position[..., None, :], blocks.position], axis=-2)
    turned = rotations.from_quaternion(blocks.quaternion)
    rotation = xp.concatenate([rotation[..., None, :, :], turned], axis=-3)
    directions = xp.stack([rotation[..., 0], rotation[..., 1]], axis=-2)
    return from_objects(position, directions, blocks.held)


def objects(state: Array) -> Objects:
    """The parts of states (..., 49) in the geometric layout, in metres or normalised."""
    _require(state, GEOMETRIC, "geometric")
    count = OBJECTS * PER_OBJECT
    rows = state[..., :count].reshape(*state.shape[:-1], OBJECTS, 3, 3)
    return Objects(rows[..., 0, :], rows[..., 1:, :], state[..., count:])


def from_objects(position: Array, directions: Array, flags: Array) -> Array:
    """The inverse of `objects`."""
    xp = namespace(position)
    rows = xp.concatenate([position[..., None, :], directions], axis=-2)
    flat = rows.reshape(*flags.shape[:-1], OBJECTS * PER_OBJECT)
    return xp.concatenate([flat, flags], axis=-1)


def to_joint(state: Array, start: Array) -> Path:
    """Paths (E, T, 49) in the joint layout, for arms that have the joint angles `start` (E, 7).

    If an arm has to go round a joint limit, the rest of its path comes later; see `tracking`.
    """
    if len(state.shape) != 3 or tuple(start.shape) != (state.shape[0], JOINTS):
        raise ValueError(
            f"got paths of shape {tuple(state.shape)} and joint angles of shape "
            f"{tuple(start.shape)}; expected (E, T, {GEOMETRIC}) and (E, {JOINTS})"
        )
    if namespace(state) is not np:  # tracking is a loop over frames: quickest on the CPU
        numbers, angles = (x.detach().cpu().double().numpy() for x in (state, start))
        found = to_joint(numbers, angles)
        xp = namespace(state)
        return Path(
            xp.as_tensor(found.state, dtype=state.dtype, device=state.device),
            xp.as_tensor(found.reached, device=state.device),
        )
    position, directions, flags = objects(state)
    rotation = rotations.orthonormal(directions[..., 0, :], directions[..., 1, :])
    q, frame, reached = tracking.track(position[..., 0, :], rotation[..., 0, :, :], start)
    rows = np.arange(len(state))[:, None]
    quaternion = rotations.to_quaternion(rotation[rows, frame, 1:])
    held = np.where(flags[rows, frame] > 0.5, 1.0, 0.0)
    return Path(join(q, Blocks(position[rows, frame, 1:], quaternion, held)), reached)


def released(state: Array) -> Array:
    """Joint states (..., 39) in which no block is held."""
    q, blocks = split(state)
    return join(q, blocks._replace(held=namespace(state).zeros_like(blocks.held)))


def rotated(state: Floats, angle: float) -> Floats:
    """A joint state (..., 39) with the whole world turned about the vertical axis.

    The arm turns with joint 1, so the angle added must keep it within its limits.
    """
    q, blocks = split(state)
    turn = rotations.about_z(np.asarray(angle, dtype=state.dtype))
    rotation = turn @ rotations.from_quaternion(blocks.quaternion)
    q = np.concatenate([q[..., :1] + angle, q[..., 1:]], axis=-1)
    if not kinematics.within_limits(q).all():
        raise ValueError(f"joint 1 cannot turn by {angle:.3f} rad from {state[..., 0]}")
    position = rotations.apply(turn, blocks.position)
    turned: Floats = join(q, Blocks(position, rotations.to_quaternion(rotation), blocks.held))
    return turned


def mirrored(state: Floats) -> Floats:
    """A joint state (..., 39) with the whole world mirrored in the plane y = 0.

    The arm is its own mirror image with every other joint reversed. Its frame R becomes M R M; the
    same is done to blocks, so that frames stay right-handed.
    """
    q, blocks = split(state)
    mirror = np.diag([1.0, -1.0, 1.0]).astype(state.dtype)
    signs = np.where(np.arange(JOINTS) % 2, 1.0, -1.0).astype(state.dtype)
    rotation = mirror @ rotations.from_quaternion(blocks.quaternion) @ mirror
    position, quaternion = blocks.position @ mirror, rotations.to_quaternion(rotation)
    found: Floats = join(q * signs, Blocks(position, quaternion, blocks.held))
    return found


def _require(state: Array, size: int, name: str) -> None:
    if not state.shape or state.shape[-1] != size:
        raise ValueError(
            f"got a state of shape {tuple(state.shape)}; the {name} layout has {size} numbers"
        )
