"""The report: the generic one, then predictions without a network and published results."""

from __future__ import annotations

from dataclasses import replace

from ..nbody.metrics import system_errors
from ..report import generic, markup
from ..report.protocol import BAD_INPUT, Collected, Contents, Report, Run, Section
from .data import load
from .linear import predictions
from .options import Options
from .simulate import STEP_SIZE

PUBLISHED = {
    "SE(3)-Transformer, TFN, GNN": "0.0248, 0.0154, 0.0108",
    "EGNN": "0.0070",
    "SEGNN, SEGNO, PONITA": "0.0043",
    "CGENN": "0.0039",
    "Multivector Neurons": "0.0035",
}
"""Mean squared errors on the standard data: forces clipped per coordinate, 1,000 steps.
docs/charges.md gives the sources."""
STANDARD_DATA = ("charges", 1000)
NOTE = """<p>Published results are for the standard data: charges, forces clipped per coordinate,
1,000 steps. Predictions without a network use the positions and velocities of single bodies; the
last two are fitted to the training systems of a run.</p>"""


def compose(collected: Collected) -> Contents:
    """The report on these runs."""
    contents = generic.compose(collected)
    rows = []
    for (data, horizon), run in _by_data(collected.runs).items():
        try:
            errors = _errors(run, data, horizon)
        except BAD_INPUT as error:
            collected.notes.append(f"no predictions without a network for {data}: {error}")
            continue
        rows += [[data, f"{horizon:,}", name, f"{value:.4f}"] for name, value in errors.items()]
    published = [
        [STANDARD_DATA[0], f"{STANDARD_DATA[1]:,}", f"published: {name}", values]
        for name, values in PUBLISHED.items()
        if STANDARD_DATA in _by_data(collected.runs)
    ]
    if not rows and not published:
        return contents
    table = markup.table(["data", "steps ahead", "prediction", "mse on test"], rows, published)
    return replace(
        contents, sections=[*contents.sections, Section("Other predictions", NOTE + table)]
    )


REPORT = Report(compose)


def _by_data(runs: list[Run]) -> dict[tuple[str, int], Run]:
    """The first run on every kind of data and horizon."""
    found: dict[tuple[str, int], Run] = {}
    for run in runs:
        options = Options.read(run.config.data.options)
        found.setdefault((options.data, options.horizon), run)
    return found


def _errors(run: Run, data: str, horizon: int) -> dict[str, float]:
    """Mean squared errors of predictions without a network on the data of a run."""
    folder, limit = run.config.data.folder, run.config.data.train_samples or None
    train = load(folder, data, "train", horizon, limit)
    test = load(folder, data, "test", horizon)
    found = predictions(train, test, horizon * STEP_SIZE)
    return {name: system_errors(x, test["target"]).mean().item() for name, x in found.items()}
