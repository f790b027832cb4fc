"""How far are trained runs from the symmetry of their experiments, in every dtype?

`flashgatr sweep --record` measures the runs of a recipe; this benchmark measures any others. They
are named in FLASHGATR_RUNS, separated by spaces: folders or pretrained:NAME. The default is all
runs that come with the package. Vessels are those in FLASHGATR_ARTERIES (default data/arteries).
Demonstrations of the robot are made, if the folder of the run's settings is not there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...train import RunConfig
from ...train.settings import override
from .. import equivariance, recording, runs, shipped
from ..console import show_table
from ..results import record

COLUMNS = tuple(equivariance.DTYPES)
DEMONSTRATIONS, HELD_OUT = 8, 4
SEED = 1
"""Of the demonstrations. Networks were trained on those of seed 0."""


def run() -> None:
    names = os.environ.get("FLASHGATR_RUNS", "").split()
    if not names:
        names = [f"{shipped.TRAINED}:{name}" for name in shipped.known(shipped.TRAINED)]
    with tempfile.TemporaryDirectory() as aside:
        rows = []
        for name in names:
            found = measured(name, Path(aside))
            rows.append([name, *(f"{found[x]:.1e}" if x in found else "" for x in COLUMNS)])
    show_table("equivariance error", ["run", *COLUMNS], rows)


def measured(name: str, aside: Path) -> dict[str, float]:
    """Record the errors of a run and return them by dtype. Data that have to be made go to the
    folder `aside`.
    """
    folder = shipped.find(Path(name))
    config = runs.load_config(runs.require_run(folder))
    results = (runs.read_results(folder) or {}).get("results", {})
    about = recording.facts(config, next(reversed(results.values()), {}), name, {})
    lines = [record(*line) for line in equivariance.lines(with_data(config, aside), about)]
    return {line["settings"]["dtype"]: line["value"] for line in lines}


def with_data(config: RunConfig, aside: Path) -> RunConfig:
    """The settings of a run with the data that are on this machine."""
    if config.experiment == "arteries":
        data = os.environ.get("FLASHGATR_ARTERIES", config.data.folder)
        return override(config, [f"data.folder={data!r}"])
    if config.experiment != "kuka":
        return config
    config = override(config, ["data.options.scenes=0"])  # needs no physics engine
    if Path(config.data.folder).exists():
        return config
    from ..robotics.demonstrations import shards
    from ..robotics.demonstrations.stream import Recipe

    shards.generate(aside, DEMONSTRATIONS, Recipe(SEED), workers=1)
    few = f"data.folder={str(aside)!r}", "data.train_samples=0"
    return override(config, [*few, f"data.options.held_out={HELD_OUT}"])
