"""How reliable is the scripted expert whose demonstrations train the robotics networks?

It plans demonstrations of the default recipe, from number 0 on: how many have no plan, and how many
frames a stack takes. Every installed engine replays the first of them: how many end with a tower.
"""

from __future__ import annotations

import numpy as np

from ...console import say, show_table
from ...results import record
from ...robotics.demonstrations.expert import PlanError
from ...robotics.demonstrations.stream import Demonstration, Recipe, demonstration, failures
from ...robotics.world import physics

PLANS, REPLAYS = 2000, 300


def planned(recipe: Recipe, count: int) -> list[Demonstration | None]:
    """The first demonstrations of a stream; None where the expert finds no plan."""
    found: list[Demonstration | None] = []
    for number in range(count):
        try:
            found.append(demonstration(recipe, number))
        except PlanError:
            found.append(None)
    return found


def stack_lengths(demonstrations: list[Demonstration]) -> list[int]:
    """The number of frames of every stack."""
    return [int(n) for made in demonstrations for n in np.diff(made.ends, prepend=0)]


def run(plans: int = PLANS, replays: int = REPLAYS) -> None:
    """Measure, print and record."""
    recipe = Recipe()
    every = planned(recipe, plans)
    made = [x for x in every if x is not None]
    lengths = stack_lengths(made)
    about = dict(diversity=recipe.diversity, seed=recipe.seed)
    measured: list[tuple[str, float, str, dict[str, object]]] = [
        ("failures", plans - len(made), "1", dict(plans=plans)),
        ("mean frames of a stack", float(np.mean(lengths)), "frames", dict(plans=plans)),
        ("most frames of a stack", max(lengths), "frames", dict(plans=plans)),
    ]
    engines = [engine for engine in physics.ENGINES if physics.installed(engine)]
    if not engines:
        say('no engine is installed, so nothing is replayed: pip install "flashgatr[robotics]"')
    for engine in engines:
        replayed = made[:replays]
        fallen = len(failures(replayed, engine, workers=0))
        share = 100 * (1 - fallen / len(replayed))
        measured.append(("towers", share, "%", dict(replays=len(replayed), engine=engine)))
    for metric, value, unit, settings in measured:
        record("kuka-expert", "expert", metric, value, unit, {**about, **settings})
    show_table(
        f"{plans:,} plans of diversity {recipe.diversity}",
        ["metric", "value", "unit", "engine"],
        [[m, f"{v:.5g}", unit, str(s.get("engine", ""))] for m, v, unit, s in measured],
    )
