"""Evaluation of a trained network in physics: rewards in fixed scenes, per engine.

`Planning` is the way of a denoiser, whose episodes share one sampler call per phase; policies have
their own in `offline_rl.acting`. Physics runs in as many processes as there are cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from ..console import say
from . import layouts, planning
from .demonstrations import sets
from .diffusion import Schedule
from .options import Options
from .planning import DiffusionPlanner, Episodes, Planner
from .world import scenes as places
from .world.arrays import Floats
from .world.scenes import Setting

EVERY = 20.0
"""Seconds between two messages."""
PICTURES = 7
"""States of one episode that results keep, from the scene to the end."""


class Messages:
    """Says now and then how far an episode is, which has this many phases, or other work is."""

    def __init__(
        self,
        title: str,
        tell: Callable[[str], None] = say,
        phases: int = planning.PHASES,
        unit: str = "step",
    ) -> None:
        self.title, self.tell, self.phases, self.unit = title, tell, phases, unit
        self.phase, self.last = 1, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last > EVERY:
            phase = f", phase {self.phase} of {self.phases}" if self.phases > 1 else ""
            self.tell(f"{self.title}{phase}: {self.unit} {done:,} of {total:,}")
            self.last = now
        self.phase += done == total


class Clock:
    """Adds up the seconds that a planner takes; its plans are on the CPU, so a GPU has finished."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, planner: Planner) -> Planner:
        """The same planner, on this clock."""

        def plan(states: Floats, seeds: Sequence[int]) -> Floats:
            start = time.monotonic()
            plans = planner(states, seeds)
            self.seconds += time.monotonic() - start
            return plans

        return plan


class Way(Protocol):
    """How a trained network moves the arm in episodes."""

    @property
    def clock(self) -> Clock | None:
        """How long plans took to draw, if that can be told apart from their execution."""

    @property
    def facts(self) -> dict[str, Any]:
        """What results say about it."""

    def __call__(
        self, scenes: Floats, *, engine: str, title: str, seed: int = 0, workers: int = 0
    ) -> Episodes:
        """Episodes from scenes (E, 39); messages begin with the title."""


@dataclass(frozen=True)
class Planning:
    """A denoiser plans. precision, compiled: as train.precision and train.compile."""

    model: nn.Module
    options: Options
    precision: str = "float32"
    compiled: bool = False
    clock: Clock = field(default_factory=Clock)

    @property
    def facts(self) -> dict[str, Any]:
        return self.options.draws.facts

    def __call__(
        self, scenes: Floats, *, engine: str, title: str, seed: int = 0, workers: int = 0
    ) -> Episodes:
        planner = DiffusionPlanner(
            self.model,
            self.options.draws.plan(Schedule.cosine()),
            precision=self.precision,
            compiled=self.compiled,
            progress=Messages(title),
        )
        return planning.run(
            self.clock.timed(planner),
            scenes,
            seed=seed,
            engine=engine,
            workers=workers,
            clear_flags=self.options.release,
        )


def rewards(way: Way, options: Options) -> dict[str, dict[str, Any]]:
    """Results in physics, by engine and kind of scenes.

    An engine that is asked for and not installed is an error; if none is asked for by name and none
    is installed, there are no results, and a message says so.
    """
    engines = options.engines()
    if options.scenes and not engines:
        say(
            "planning is not evaluated, because MuJoCo is not installed: "
            'pip install "flashgatr[robotics]"'
        )
    found: dict[str, dict[str, Any]] = {}
    for engine in engines:
        for kind in options.kinds:
            name = f"plan_{engine}" + f"_{kind}" * bool(kind)
            scenes = draw(options.scene_set, options.scenes, kind)
            before, start = way.clock.seconds if way.clock else 0.0, time.monotonic()
            episodes = way(scenes, engine=engine, title=name)
            seconds = time.monotonic() - start
            result = planning.summarise(episodes)
            if way.clock:
                drawing = way.clock.seconds - before
                result |= {"drawing_seconds": drawing, "execution_seconds": seconds - drawing}
            say(
                f"{name}: reward {result['reward']:.1f} ± {result['reward_error']:.1f}, tower "
                f"{result['strict']:.1f} ± {result['strict_error']:.1f}, {len(scenes)} "
                f"scenes, {seconds:.0f} s"
            )
            facts = {
                "engine": engine, "scene_set": options.scene_set, "turned": kind == "turned",
                **({"mirrored": True} if kind == "mirrored" else {}),
            }  # fmt: skip
            found[name] = {**result, **facts, **way.facts, **details(episodes)}
    return found


def details(episodes: Episodes) -> dict[str, Any]:
    """Rewards of every scene, and pictures' states of the first scene, for reports."""
    every = np.linspace(0, episodes.states.shape[1] - 1, PICTURES).round().astype(int)
    return {
        "per_scene": {
            "reward": episodes.reward[:, -1].round(2).tolist(),
            "strict": episodes.strict.round(2).tolist(),
        },
        "strip": episodes.states[0, every].round(4).tolist(),
    }


def can_measure_errors(folder: Path, options: Options) -> bool:
    """Whether a folder has demonstrations, on which errors are measured.

    Without them, a message says that only rewards are; if there are no rewards either, missing
    demonstrations are an error.
    """
    if sets.exist(folder):
        return True
    if not options.engines():
        sets.require_enough(folder, options.held_out)
    say(f"there are no demonstrations in {folder}: rewards are measured, errors are left out")
    return False


def with_demonstrations(
    found: dict[str, dict[str, Any]], count: int | None
) -> dict[str, dict[str, Any]]:
    """Results that say on how many demonstrations the run was trained, where that is known."""
    about = {} if count is None else {"demonstrations": count}
    return {name: {**numbers, **about} for name, numbers in found.items()}


def require_scenes(options: Options) -> None:
    """Refuse more scenes than there are, and engines that are not installed, before training."""
    if options.engines():
        draw(options.scene_set, options.scenes)


def draw(name: str, count: int, kind: str = "") -> Any:
    """The first scenes of a set, (count, 39); an error if the set has fewer.

    kind: "turned" about the vertical, "mirrored" in a vertical plane, or neither.
    """
    most = places.SETS.get(name)
    if most is not None and count > most:
        raise ValueError(f"the set {name!r} has {most} scenes, got {count}; ask for fewer")
    found = places.scenes(name, count, setting=Setting(turned=kind == "turned"))
    return layouts.mirrored(found) if kind == "mirrored" else found
