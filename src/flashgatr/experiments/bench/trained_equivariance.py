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
from typing import Any

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
    folders = {name: runs.require_run(shipped.find(Path(name))) for name in names}
    with tempfile.TemporaryDirectory() as aside:
        rows = []
        for name, folder in folders.items():
            found = measured(name, folder, Path(aside))
            rows.append([name, *(f"{found[x]:.1e}" if x in found else "" for x in COLUMNS)])
    show_table("equivariance error", ["run", *COLUMNS], rows)


def measured(name: str, folder: Path, aside: Path) -> dict[str, float]:
    """Record the errors of a run and return them by dtype. Data that have to be made go to the
    folder `aside`, and what is recorded says so.
    """
    config = runs.load_config(folder)
    results = (runs.read_results(folder) or {}).get("results", {})
    metrics: dict[str, Any] = next(reversed(results.values()), {})
    about = recording.facts(config, metrics, recording.name_of(Path(name)), {})
    config = with_data(config, aside)
    if config.data.folder == str(aside):
        about["measured_on"] = f"{DEMONSTRATIONS} demonstrations of seed {SEED}"
    lines = [record(*line) for line in equivariance.lines(config, about)]
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
