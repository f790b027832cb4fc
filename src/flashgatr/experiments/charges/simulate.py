"""Five charged particles, or five masses: the published simulators, for many systems at once.

    charges   F_i = Σ_j q_i q_j (x_i - x_j) / |x_i - x_j|³, clipped;  v += dt F;  x += dt v
    gravity   a_i = Σ_j (x_j - x_i) / (|x_j - x_i|² + ε²)^(3/2);      velocity Verlet

All masses are 1 and dt = 0.001; there are no walls. With charges, the state after a step has the
velocity that led to its position. Going on from any state repeats the original motion exactly.

Random numbers are those of the published generators: NumPy's legacy stream, in the same order, with
the numbers that they draw for noise of amplitude zero.

Public arrays are (N systems, n bodies[, 3]). The integrators put systems last, (n, 3, N), so that
every numpy call runs along contiguous memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

BODIES = 5
STEP_SIZE = 1e-3
CLIPS = {"charges": ("coordinate", "norm"), "gravity": ("none",)}
"""The forces, and how each can be clipped."""
LARGEST_FORCE = 0.1 / STEP_SIZE
SPEED = 0.5  # of charged particles at first
BOX = 5.0  # initial positions of charged particles beyond this are reflected
SOFTENING = 0.1  # ε of gravity
CLOSEST_SQUARE = 1e-30  # smaller squared distances count as this: two particles in one place
RECORDS = {"charges": 49, "gravity": 50}
NOISE = {"charges": 2, "gravity": 3}  # arrays of noise per system, one number per record and entry
BLOCK = 1024  # systems integrated together: their arrays take 2 MB


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """How systems interact and which steps are kept.

    clip: the force on a charged particle is limited to 100 per coordinate ("coordinate", as
        published; not invariant to rotations) or in size ("norm").
    input_step: step of the input.  horizons: numbers of steps between the input and its targets.
    """

    force: str = "charges"
    clip: str = "coordinate"
    input_step: int = 3100
    horizons: tuple[int, ...] = (1000, 1500, 2000)

    def __post_init__(self) -> None:
        object.__setattr__(self, "horizons", tuple(self.horizons))  # JSON has lists
        if self.force not in CLIPS:
            raise ValueError(f"force must be one of {', '.join(CLIPS)}, got {self.force!r}")
        if self.clip not in CLIPS[self.force]:
            raise ValueError(
                f"clip must be one of {', '.join(CLIPS[self.force])} for {self.force}, got "
                f"{self.clip!r}"
            )
        for step in (self.input_step, *self.horizons):
            if isinstance(step, bool) or not isinstance(step, int) or step < 0:
                raise ValueError(f"steps must be integers of at least 0, got {step!r}")
        if not self.horizons or list(self.horizons) != sorted({*self.horizons} - {0}):
            raise ValueError(f"horizons must be rising positive numbers, got {self.horizons!r}")


STANDARD = {
    "charges": Interaction(),
    "charges_norm": Interaction(clip="norm"),
    "gravity": Interaction(force="gravity", clip="none", input_step=0),
}
"""The data sets by name. Gravity begins at the initial state, charges after 3,100 steps."""


class State(NamedTuple):
    """Systems at one time."""

    charge: Array  # (N, n)
    position: Array  # (N, n, 3)
    velocity: Array  # (N, n, 3)


def draw(settings: Interaction, count: int, stream: np.random.RandomState) -> State:
    """The next `count` initial states of the published stream."""
    charges, numbers = np.ones((count, BODIES)), np.empty((count, 2, BODIES * 3))
    noise = NOISE[settings.force] * RECORDS[settings.force] * BODIES * 3
    for i in range(count):
        if settings.force == "charges":
            charges[i] = stream.choice([-1.0, 0.0, 1.0], size=BODIES, p=[0.5, 0.0, 0.5])
        numbers[i] = stream.randn(2 * BODIES * 3 + noise)[: 2 * BODIES * 3].reshape(2, -1)
    if settings.force == "gravity":
        position, velocity = numbers.reshape(count, 2, BODIES, 3).swapaxes(0, 1)
        return State(charges, position, velocity - velocity.mean(axis=1, keepdims=True))
    position, velocity = numbers.reshape(count, 2, 3, BODIES).transpose(1, 0, 3, 2)
    velocity = velocity * SPEED / np.sqrt(np.square(velocity).sum(axis=-1, keepdims=True))
    outside = np.abs(position) > BOX
    velocity = np.where(outside, -np.sign(position) * np.abs(velocity), velocity)
    return State(
        charges, np.where(outside, np.sign(position) * 2 * BOX - position, position), velocity
    )


def evolve(state: State, settings: Interaction, steps: Sequence[int]) -> list[State]:
    """The states after these numbers of steps, which must rise."""
    charge, position, velocity = (np.asarray(x, dtype=np.float64) for x in state)
    found = [State(charge, np.empty_like(position), np.empty_like(position)) for _ in steps]
    for start in range(0, len(charge), BLOCK):
        block = slice(start, start + BLOCK)
        x, v = (np.ascontiguousarray(y[block].transpose(1, 2, 0)) for y in (position, velocity))
        forces = _forces(np.ascontiguousarray(charge[block].T[:, None]), settings)
        wanted = iter(zip(steps, found, strict=True))
        step, kept = next(wanted, (-1, state))
        for done in _integrate(x, v, forces, settings, max(steps, default=0)):
            if done == step:
                kept.position[block], kept.velocity[block] = (y.transpose(2, 0, 1) for y in (x, v))
                step, kept = next(wanted, (-1, state))
    return found


Forces: TypeAlias = Callable[[Array], Array]
"""From positions (n, 3, N) to forces (n, 3, N), always in the same memory."""


def _integrate(
    x: Array, v: Array, forces: Forces, settings: Interaction, steps: int
) -> Iterator[int]:
    """The number of steps done: 0, 1, ... `steps`; positions and velocities change in place."""
    yield 0
    if settings.force == "charges":
        for step in range(steps):
            v += STEP_SIZE * forces(x)
            x += STEP_SIZE * v
            yield step + 1
        return
    acceleration = forces(x)
    for step in range(steps):
        v += STEP_SIZE / 2 * acceleration
        x += STEP_SIZE * v
        acceleration = forces(x)
        v += STEP_SIZE / 2 * acceleration
        yield step + 1


def _forces(charge: Array, settings: Interaction) -> Forces:
    """The force on every body; charges (n, 1, N). Every pair is computed once."""
    n, _, count = charge.shape
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    is_gravity = settings.force == "gravity"
    strength = np.stack([-np.ones_like(charge[i]) if is_gravity else charge[i] * charge[j]
                         for i, j in pairs])  # fmt: skip
    apart, squares = np.empty((2, len(pairs), 3, count))
    cubed, distance = np.empty((2, len(pairs), 1, count))
    total = np.empty((n, 3, count))

    def forces(x: Array) -> Array:
        for k, (i, j) in enumerate(pairs):
            np.subtract(x[i], x[j], out=apart[k])
        np.multiply(apart, apart, out=squares)
        np.add.reduce(squares, axis=1, out=cubed, keepdims=True)
        if is_gravity:
            np.add(cubed, SOFTENING**2, out=cubed)
        else:
            np.maximum(cubed, CLOSEST_SQUARE, out=cubed)
        np.sqrt(cubed, out=distance)
        np.multiply(cubed, distance, out=cubed)
        np.divide(strength, cubed, out=cubed)
        np.multiply(apart, cubed, out=apart)
        total.fill(0)
        for k, (i, j) in enumerate(pairs):
            np.add(total[i], apart[k], out=total[i])
            np.subtract(total[j], apart[k], out=total[j])
        return _clipped(total, settings.clip)

    return forces


def _clipped(forces: Array, clip: str) -> Array:
    """Forces (n, 3, N) of at most `LARGEST_FORCE`, changed in place."""
    if clip == "coordinate":
        np.clip(forces, -LARGEST_FORCE, LARGEST_FORCE, out=forces)
    elif clip == "norm":
        size = np.sqrt(np.square(forces).sum(axis=1, keepdims=True))
        forces *= LARGEST_FORCE / np.maximum(size, LARGEST_FORCE)
    return forces
