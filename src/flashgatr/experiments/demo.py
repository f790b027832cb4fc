"""The demonstration behind `make demo`: from data to a report, in minutes on a CPU.

A small GATr and a Transformer of about the same cost learn to predict positions of bodies from the
same thousand systems.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..train import RunConfig

SYSTEMS = 1000
STEPS = 1500
MODELS: dict[str, dict[str, Any]] = {
    "gatr": dict(hidden_mv_channels=8, hidden_s_channels=16, num_blocks=2, num_heads=4),
    "transformer": dict(hidden_channels=256, num_blocks=4, num_heads=8),
}
"""Options of the two models, whose training steps take about the same time."""


def settings(name: str, folder: Path, steps: int = STEPS) -> RunConfig:
    """The settings of one of the two runs."""
    from .runs import make_settings

    values = {
        "experiment": "nbody",
        "folder": str(folder / name),
        "model": {"name": name, "options": MODELS[name]},
        "data": {"folder": str(folder / "data")},
        "train": dict(
            steps=steps,
            lr=2e-3,
            lr_final=2e-5,
            decay_every=1,
            log_every=max(steps // 15, 1),
            validate_every=max(steps // 5, 1),
            checkpoint_every=max(steps // 5, 1),
        ),
    }
    return make_settings(values)


def run(folder: Path, steps: int = STEPS) -> dict[str, dict[str, dict[str, float]]]:
    """Generate data, train both models (or resume), and evaluate the straight-line guess: results
    by model and set.
    """
    from ..train import fingerprint
    from . import runs
    from .nbody import data
    from .nbody.metrics import summarise
    from .nbody.simulate import Gravity
    from .nbody.task import SETS, straight_line

    data.generate(folder / "data", train=SYSTEMS, others=SYSTEMS)
    results = {}
    for name in MODELS:
        config = settings(name, folder, steps)
        found = runs.read_results(Path(config.folder))
        if found is None or found.get("run") != fingerprint(config):
            found = runs.train(config, resume=True)
        results[name] = found["results"]
    time = Gravity().time
    results["straight line"] = {
        name: summarise(straight_line(data.load(folder / "data", name), time)) for name in SETS
    }
    return results


def demo(
    folder: Annotated[Path, typer.Option("--folder", "-f", help="Where the files go.")] = Path(
        "runs/demo"
    ),
    steps: Annotated[int, typer.Option(help="Training steps of each model.")] = 0,
) -> None:
    """Train a small GATr and a Transformer on the n-body task, compare them, write a report."""
    from . import console
    from .nbody import EXPERIMENT
    from .nbody.task import SETS
    from .report import write

    results = run(folder, steps or STEPS)
    for where in SETS:
        found = {name: sets[where] for name, sets in results.items()}
        console.show_results(EXPERIMENT, found, f"squared error on {where}", of="model")
    typer.echo(f"report: {write([folder], folder / 'report')}")
