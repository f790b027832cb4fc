"""data.options of the experiment: how to train, and how to evaluate planning."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from ...train.settings import ConfigError, suggest
from .diffusion import Schedule
from .sampling import Plan, ancestral, ddim, dpm_solver
from .world import physics

_LEAST = {"held_out": 2, "scenes": 0}
"""The smallest value of an integer, where it is not 1."""


@dataclass(frozen=True)
class Sampler:
    """How plans are drawn: "ancestral" takes every diffusion step, the others `steps` of them."""

    name: str
    steps: int

    def plan(self, schedule: Schedule) -> Plan:
        """The table of coefficients that `sampling.sample` runs."""
        if self.name == "ancestral":
            return ancestral(schedule)
        return (ddim if self.name == "ddim" else dpm_solver)(schedule, self.steps)

    @property
    def facts(self) -> dict[str, Any]:
        """What results say about it."""
        steps = Schedule.cosine().steps if self.name == "ancestral" else self.steps
        return {"sampler": self.name, "sampling_steps": steps}


@dataclass(frozen=True)
class Options:
    """data.options of the experiment.

    loss: "l2" (mean squared error) or "l1" (mean absolute error)
    clamps: which frames are clamped in training: the "first", or at random the first, the last or
        both ("ends", as Diffuser was trained)
    release: networks are never told which block is held in a clamped frame, in training as in
        planning; the original evaluation clears this after each phase
    augment: every training window is turned about the vertical by a random angle in every step
    held_out: the last demonstrations of the folder, one half for validation, one for the test
    validation_windows, test_windows: number of windows, evenly spaced over the demonstrations
    scenes: number of scenes in which a trained run plans; 0: none
    scene_set: "validation" (50 scenes, to choose settings by) or "test" (200, for reported results)
    turned: plan in the same scenes turned about the vertical as well
    engine: "mujoco", "bullet", "both"; "auto" takes MuJoCo if it is installed, and otherwise none
    sampler, sampling_steps: see `Sampler`
    """

    loss: Literal["l2", "l1"] = "l2"
    clamps: Literal["first", "ends"] = "first"
    release: bool = True
    augment: bool = False
    held_out: int = 200
    validation_windows: int = 512
    test_windows: int = 2048
    scenes: int = 50
    scene_set: Literal["validation", "test"] = "validation"
    turned: bool = False
    engine: Literal["auto", "mujoco", "bullet", "both"] = "auto"
    sampler: Literal["dpm_solver", "ddim", "ancestral"] = "dpm_solver"
    sampling_steps: int = 20

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                hint = suggest(f"data.options.{name}", [f"data.options.{key}" for key in known])
                raise ConfigError(f"unknown key data.options.{name}; {hint}")
        return cls(**values)

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, choices = getattr(self, name), get_args(hint)
            if choices:
                fits, expected = value in choices, f"one of {', '.join(map(repr, choices))}"
            elif hint is bool:
                fits, expected = isinstance(value, bool), "true or false"
            else:
                least = _LEAST.get(name, 1)
                fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
                expected = f"an integer of at least {least}"
            if not fits:
                raise ConfigError(f"data.options.{name} must be {expected}, got {value!r}")
        most = Schedule.cosine().steps
        if self.sampling_steps > most:
            raise ConfigError(
                f"data.options.sampling_steps must be at most {most}, got {self.sampling_steps}"
            )

    @property
    def draws(self) -> Sampler:
        """How plans are drawn."""
        return Sampler(self.sampler, self.sampling_steps)

    def engines(self) -> tuple[str, ...]:
        """The engines to plan in; an error if one that is asked for is not installed."""
        if self.scenes == 0:
            return ()
        if self.engine == "auto":
            return ("mujoco",) if physics.installed("mujoco") else ()
        wanted = tuple(physics.ENGINES) if self.engine == "both" else (self.engine,)
        for name in wanted:
            physics.require(name)
        return wanted
