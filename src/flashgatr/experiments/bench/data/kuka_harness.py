"""What the planning loop of the robotics experiment scores without any network.

The expert must score nearly 100, and doing nothing 0; random plans show how much of a reward is
luck. Every installed engine runs the scenes of the test set, as they are and turned.
"""

from __future__ import annotations

import time

from ...console import show_table
from ...results import record
from ...robotics import planning
from ...robotics.evaluation import draw
from ...robotics.world import physics

PLANNERS = {"expert": planning.expert, "do nothing": planning.rest, "noise": planning.noise}
SCENES = 200


def run(scenes: int = SCENES, *, keep: bool = True) -> None:
    """Measure, print and, with `keep`, record."""
    lines = []
    for engine in filter(physics.installed, physics.ENGINES):
        for turned in (False, True):
            start = draw("test", scenes, "turned" if turned else "")
            for name, planner in PLANNERS.items():
                begin = time.monotonic()
                found = planning.summarise(planning.run(planner, start, engine=engine, workers=0))
                lines.append([name, engine, "yes" if turned else "no"])
                for kind, key in (("original", "reward"), ("strict", "strict")):
                    value, error = found[key], found[f"{key}_error"]
                    lines[-1].append(f"{value:.1f} ± {error:.1f}")
                    about = dict(engine=engine, turned=turned, scenes=scenes, reward=kind)
                    if keep:
                        record("kuka-reward", name, "reward", value, "%", about)
                        record("kuka-reward", name, "standard error", error, "%", about)
                lines[-1].append(f"{time.monotonic() - begin:.0f}")
    if not lines:
        print('no engine is installed: pip install "flashgatr[robotics]"')
        return
    show_table(
        f"{scenes} scenes",
        ["planner", "engine", "turned", "original reward", "standing tower", "seconds"],
        lines,
    )
