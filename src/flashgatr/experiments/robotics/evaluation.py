"""Evaluation of a trained denoiser by planning: rewards in fixed scenes, per engine.

All episodes share one sampler call per phase; physics runs in as many processes as there are cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from ..console import say
from . import planning
from .diffusion import Schedule
from .options import Options
from .planning import DiffusionPlanner, Episodes
from .world import scenes as places
from .world.scenes import Setting

EVERY = 20.0
"""Seconds between two messages."""
PICTURES = 7
"""States of one episode that results keep, from the scene to the end."""


class Messages:
    """Says now and then how far sampling is."""

    def __init__(self, title: str, tell: Callable[[str], None] = say) -> None:
        self.title, self.tell = title, tell
        self.phase, self.last = 1, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last > EVERY:
            self.tell(
                f"{self.title}, phase {self.phase} of {planning.PHASES}: step {done} of {total}"
            )
            self.last = now
        self.phase += done == total


def rewards(
    model: nn.Module, options: Options, *, precision: str = "float32", seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Results of planning, by engine and kind of scenes.

    precision: as in train.precision. An engine that is asked for and not installed is an error; if
    none is asked for by name and none is installed, there are no results, and a message says so.
    """
    engines = options.engines()
    if options.scenes and not engines:
        say(
            "planning is not evaluated, because MuJoCo is not installed: "
            'pip install "flashgatr[robotics]"'
        )
    found: dict[str, dict[str, Any]] = {}
    for engine in engines:
        for turned in (False, True) if options.turned else (False,):
            name = f"plan_{engine}" + "_turned" * turned
            start = time.monotonic()
            messages = Messages(name)
            planner = DiffusionPlanner(
                model, options.draws.plan(Schedule.cosine()), precision=precision, progress=messages
            )
            episodes = planning.run(
                planner,
                draw(options.scene_set, options.scenes, turned=turned),
                seed=seed,
                engine=engine,
                workers=0,
                clear_flags=options.release,
            )
            result = planning.summarise(episodes)
            seconds = time.monotonic() - start
            say(
                f"{name}: reward {result['reward']:.1f} ± {result['reward_error']:.1f}, tower "
                f"{result['strict']:.1f} ± {result['strict_error']:.1f}, {len(episodes.strict)} "
                f"scenes, {seconds:.0f} s"
            )
            facts = {"engine": engine, "scene_set": options.scene_set, "turned": turned}
            found[name] = {**result, **facts, **options.draws.facts, **details(episodes)}
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


def draw(name: str, count: int, *, turned: bool = False) -> Any:
    """The first scenes of a set, (count, 39); an error if the set has fewer."""
    most = places.SETS.get(name)
    if most is not None and count > most:
        raise ValueError(f"the set {name!r} has {most} scenes, got {count}; ask for fewer")
    return places.scenes(name, count, setting=Setting(turned=turned))
