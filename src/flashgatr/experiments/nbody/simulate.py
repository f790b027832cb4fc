"""Random star systems and their motion under Newtonian gravity (G = 1), as in the paper's appendix
C.1.

Steps: 1 masses; 2 positions on a disc around the star; 3 velocities of circular orbits with noise;
4 random order, rotation and shift; 5 evolution; 6 rejection of systems in which a body travels too
far.

Public arrays are (N systems, n bodies[, 3]). The integrator puts systems last, (n, 3, N) and
(pairs, 3, N), so that every numpy call runs along contiguous memory, and handles them in blocks
that fit into the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

INTEGRATORS = ("semi_implicit_euler", "euler", "leapfrog")
BLOCK = 2048  # systems integrated together: with 4 bodies their arrays take 1.5 MB
CLOSEST = 1e-9  # smaller distances are replaced by this one, as in the released generator


@dataclass(frozen=True, kw_only=True)
class Gravity:
    """How systems are drawn and evolved. Defaults are those of the authors' released generator.

    star_mass, planet_mass: ranges of log-uniform distributions.
    radius: range of the planets' distances from the star; positions are uniform on the disc.
    velocity_noise: standard deviation of the noise on each component of a planet's velocity.
    shift_mean, shift_std: normal distribution of the system's shift from the origin.
    max_travel: a system is rejected if a body ends farther than this from its initial position.
    """

    bodies: int = 4
    steps: int = 100
    step_size: float = 1e-3
    integrator: str = "semi_implicit_euler"
    star_mass: tuple[float, float] = (1.0, 10.0)
    planet_mass: tuple[float, float] = (0.01, 0.1)
    radius: tuple[float, float] = (0.1, 1.0)
    velocity_noise: float = 0.01
    shift_std: float = 20.0
    shift_mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    max_travel: float = 2.0

    def __post_init__(self) -> None:
        for name in ("bodies", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.integrator not in INTEGRATORS:
            raise ValueError(
                f"unknown integrator {self.integrator!r}; expected one of {', '.join(INTEGRATORS)}"
            )
        for name in ("step_size", "max_travel"):
            if self._number(name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        for name in ("velocity_noise", "shift_std"):
            if self._number(name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")
        for name in ("star_mass", "planet_mass", "radius"):
            low, high = self._numbers(name, 2)
            if not 0 < low <= high:
                raise ValueError(
                    f"{name} must be a range (low, high) with 0 < low <= high, got {(low, high)}"
                )
        self._numbers("shift_mean", 3)

    @property
    def time(self) -> float:
        """Time between the initial and the final state."""
        return self.steps * self.step_size

    def _number(self, name: str) -> float:
        value = _as_number(name, getattr(self, name))
        object.__setattr__(self, name, value)
        return value

    def _numbers(self, name: str, count: int) -> tuple[float, ...]:
        """Convert a field to a tuple of floats (JSON and TOML give lists) and return it."""
        values = getattr(self, name)
        if not isinstance(values, (list, tuple)) or len(values) != count:
            raise ValueError(f"{name} must be {count} numbers, got {values!r}")
        numbers = tuple(_as_number(name, value) for value in values)
        object.__setattr__(self, name, numbers)
        return numbers


PRESETS: dict[str, dict[str, Any]] = {
    "released": dict(steps=100, step_size=1e-3, integrator="semi_implicit_euler"),
    "appendix": dict(steps=100, step_size=1e-4, integrator="euler"),
    "main_text": dict(steps=1000, step_size=1e-4, integrator="euler"),
}
"""The authors' released generator, and the paper's two descriptions. The appendix describes a tenth
of the time; the main text states 1000 steps without a step size, and 1e-4 gives the released
generator's time of 0.1."""


def preset(name: str, **changes: Any) -> Gravity:
    """One of the three descriptions of the data, with some fields changed.

    >>> preset("main_text").time == preset("released").time == 0.1
    True
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; expected one of {', '.join(PRESETS)}")
    return Gravity(**{**PRESETS[name], **changes})


class State(NamedTuple):
    """Star systems at one time."""

    mass: Array  # (N, n)
    position: Array  # (N, n, 3)
    velocity: Array  # (N, n, 3)


class Systems(NamedTuple):
    """Star systems at the initial time, and the final positions of their bodies."""

    mass: Array  # (N, n)
    position: Array  # (N, n, 3)
    velocity: Array  # (N, n, 3)
    target: Array  # (N, n, 3)


def sample(settings: Gravity, count: int, rng: np.random.Generator) -> State:
    """Steps 1 to 4: initial states, before any are rejected."""
    state, shift = _draw(settings, count, rng)
    return state._replace(position=state.position + shift)


@overload
def evolve(state: State, settings: Gravity, keep: None = None) -> Array: ...
@overload
def evolve(state: State, settings: Gravity, keep: int) -> tuple[Array, Array]: ...
def evolve(state: State, settings: Gravity, keep: int | None = None) -> Array | tuple[Array, Array]:
    """Step 5: the final positions, (N, n, 3).

    With `keep`, also the trajectory (N, 1 + steps / keep, n, 3): the initial positions and those
    after every `keep`-th step. Each system is integrated relative to its own centre, so that
    systems far from the origin lose no precision.
    """
    mass, position, velocity = _checked(state)
    if keep is not None and (keep < 1 or settings.steps % keep):
        raise ValueError(f"keep must divide the number of steps, {settings.steps}; got {keep}")
    every = keep or settings.steps
    centre = position.mean(axis=1, keepdims=True)
    frames = np.empty((len(mass), 1 + settings.steps // every, *mass.shape[1:], 3))
    for start in range(0, len(mass), BLOCK):
        block = slice(start, start + BLOCK)
        moves = _integrate(
            _systems_last(mass[block, :, None]),
            _systems_last(position[block] - centre[block]),
            _systems_last(velocity[block]),
            settings,
        )
        for step, x in enumerate(moves):
            if step % every == 0:
                frames[block, step // every] = x.transpose(2, 0, 1)
    frames += centre[:, None]
    frames[:, 0] = position
    return frames[:, -1] if keep is None else (frames[:, -1], frames)


def simulate(settings: Gravity, count: int, rng: np.random.Generator) -> Systems:
    """All six steps: `count` accepted systems, determined by the state of `rng`.

    >>> systems = simulate(Gravity(bodies=3), 10, np.random.default_rng(0))
    >>> systems.target.shape
    (10, 3, 3)
    """
    parts: list[Systems] = []
    accepted = drawn = 0
    while accepted < count or not parts:
        # A few more than needed, because a second round for two or three systems would take a fifth
        # of the time of the first.
        missing = count - accepted
        batch = missing + missing // 50 + 8
        state, shift = _draw(settings, batch, rng)
        target = evolve(state, settings)
        travel = np.linalg.norm(target - state.position, axis=-1).max(axis=-1)
        good = np.flatnonzero(travel <= settings.max_travel)[:missing]
        # The shift is added last: it does not affect gravity, and adding it earlier would round.
        mass, position, velocity = (x[good] for x in state)
        parts.append(Systems(mass, position + shift[good], velocity, target[good] + shift[good]))
        accepted += len(good)
        drawn += batch
        if drawn > 1000 * (accepted + 1):
            raise ValueError(
                f"of {drawn} systems only {accepted} had no body travel farther than max_travel = "
                f"{settings.max_travel}; raise it, or shorten the time {settings.time:g}"
            )
    return Systems(*(np.ascontiguousarray(np.concatenate(x)) for x in zip(*parts, strict=True)))


def _draw(settings: Gravity, count: int, rng: np.random.Generator) -> tuple[State, Array]:
    """Initial states around the origin, and the shifts (count, 1, 3) to be added."""
    n, planets = settings.bodies, (settings.bodies - 1, count)
    mass = np.empty((n, count))
    for rows, (low, high) in (mass[:1], settings.star_mass), (mass[1:], settings.planet_mass):
        rows[:] = np.exp(rng.uniform(math.log(low), math.log(high), rows.shape))

    inner, outer = settings.radius
    radius = np.sqrt(rng.uniform(inner**2, outer**2, planets))  # uniform in the area
    angle = rng.uniform(0, 2 * math.pi, planets)
    direction = np.stack([np.cos(angle), np.sin(angle)])
    position = np.zeros((3, n, count))
    position[:2, 1:] = radius * direction

    speed = np.sqrt(mass[0] / radius) * rng.choice([-1.0, 1.0], planets)
    velocity = np.zeros((3, n, count))
    velocity[:, 1:] = rng.normal(scale=settings.velocity_noise, size=(3, *planets))
    velocity[0, 1:] -= speed * direction[1]
    velocity[1, 1:] += speed * direction[0]

    order = rng.permuted(np.repeat(np.arange(n)[:, None], count, axis=1), axis=0)
    mass = np.take_along_axis(mass, order, axis=0)
    turn = _rotations(count, rng)
    position, velocity = (
        (turn[:, :, None] * np.take_along_axis(x, order[None], axis=1)).sum(axis=1)
        for x in (position, velocity)
    )
    shift = rng.normal(settings.shift_mean, settings.shift_std, (count, 1, 3))
    return State(mass.T, position.transpose(2, 1, 0), velocity.transpose(2, 1, 0)), shift


def _rotations(count: int, rng: np.random.Generator) -> Array:
    """Matrices (3, 3, count) of uniformly random rotations, from uniform unit quaternions."""
    q = rng.normal(size=(4, count))
    w, x, y, z = q / np.sqrt((q * q).sum(axis=0))
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _systems_last(x: Array) -> Array:
    """(N, n, 3) to (n, 3, N)."""
    return np.ascontiguousarray(x.transpose(1, 2, 0))


def _integrate(mass: Array, x: Array, velocity: Array, settings: Gravity) -> Iterator[Array]:
    """Positions (n, 3, N) before the first and after every step, always in the memory of `x`.

    The integrator works with momenta: a pair's impulse h m_i m_j d / |d|³ is computed once, added
    to one body and subtracted from the other. Leapfrog (kick, drift, kick) is semi-implicit Euler
    with the first kick halved.
    """
    n, _, count = x.shape
    drift = settings.step_size / mass
    momentum = mass * velocity
    move = np.empty_like(x)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    impulse, squares = np.empty((2, len(pairs), 3, count))
    cubed, distance, strength = np.empty((3, len(pairs), 1, count))
    for k, (i, j) in enumerate(pairs):
        strength[k] = settings.step_size * mass[i] * mass[j]
    # Views, created once instead of in every step.
    ends = [(x[i], x[j], impulse[k]) for k, (i, j) in enumerate(pairs)]
    kicks = [(momentum[i], momentum[j], impulse[k]) for k, (i, j) in enumerate(pairs)]
    yield x
    for step in range(settings.steps):
        for first, second, d in ends:
            np.subtract(second, first, out=d)
        np.multiply(impulse, impulse, out=squares)
        np.add.reduce(squares, axis=1, out=cubed, keepdims=True)
        np.maximum(cubed, CLOSEST**2, out=cubed)
        np.sqrt(cubed, out=distance)
        np.multiply(cubed, distance, out=cubed)
        np.divide(strength, cubed, out=cubed)
        np.multiply(impulse, cubed, out=impulse)
        if step == 0 and settings.integrator == "leapfrog":
            impulse *= 0.5
        if settings.integrator == "euler":  # positions change with the old velocity
            x += np.multiply(momentum, drift, out=move)
        for first, second, kick in kicks:
            np.add(first, kick, out=first)
            np.subtract(second, kick, out=second)
        if settings.integrator != "euler":
            x += np.multiply(momentum, drift, out=move)
        yield x


def _checked(state: State) -> State:
    mass, position, velocity = (np.asarray(x, dtype=np.float64) for x in state)
    if mass.ndim != 2 or not position.shape == velocity.shape == (*mass.shape, 3):
        raise ValueError(
            "a state needs mass (N, n), position and velocity (N, n, 3), got "
            f"{mass.shape}, {position.shape} and {velocity.shape}"
        )
    if not (mass > 0).all():
        raise ValueError("masses must be positive")
    return State(mass, position, velocity)


def _as_number(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        number = math.inf
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{name} must consist of finite numbers, got {value!r}")
    return number
