"""data.options of the experiment: how to train, and how to evaluate planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...train.settings import ConfigError, check_options, read_options
from .diffusion import Schedule
from .sampling import Plan, ancestral, ddim, dpm_solver
from .world import physics


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
    validation_windows, test_windows: number of windows, evenly spaced over the demonstrations (of
        transitions, if the model is one of `offline_rl`)
    scenes: number of scenes in which a trained run plans; 0: none
    scene_set: "validation" (50 scenes, to choose settings by) or "test" (200, for reported results)
    turned: plan in the same scenes turned about the vertical as well
    mirrored: plan in the same scenes mirrored in a vertical plane as well
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
    mirrored: bool = False
    engine: Literal["auto", "mujoco", "bullet", "both"] = "auto"
    sampler: Literal["dpm_solver", "ddim", "ancestral"] = "dpm_solver"
    sampling_steps: int = 20

    @classmethod
    def read(cls, values: dict[str, Any]) -> Options:
        return read_options(cls, values)

    def __post_init__(self) -> None:
        check_options(self, held_out=2, validation_windows=1, test_windows=1, sampling_steps=1)
        most = Schedule.cosine().steps
        if self.sampling_steps > most:
            raise ConfigError(
                f"data.options.sampling_steps must be at most {most}, got {self.sampling_steps}"
            )

    @property
    def draws(self) -> Sampler:
        """How plans are drawn."""
        return Sampler(self.sampler, self.sampling_steps)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of scenes to plan in: "" for scenes as they are drawn."""
        return ("", *(kind for kind in ("turned", "mirrored") if getattr(self, kind)))

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
