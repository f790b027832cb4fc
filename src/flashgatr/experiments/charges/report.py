"""The report: the generic one, then predictions without a network and published results."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..nbody.metrics import system_errors
from ..report import generic, markup
from ..report.protocol import BAD_INPUT, Collected, Contents, Report, Run, Section
from .data import load
from .linear import predictions
from .options import Options
from .simulate import STEP_SIZE


class Published(NamedTuple):
    """A result that others report."""

    method: str
    mse: str
    source: str


_SEGNO, _PONITA = "project page of SEGNO (`yliukj/SEGNO`), five runs", "README of `ebekkers/ponita`"
PUBLISHED = (
    Published("SE(3)-Transformer", "0.0248", _SEGNO),
    Published("TFN", "0.0154", _SEGNO),
    Published("GNN", "0.0108", _SEGNO),
    Published("EGNN", "0.0070", _PONITA),
    Published("SEGNN", "0.0043", f"{_PONITA}; 0.0045 in that of `gerkone/segnn-jax` and by SEGNO"),
    Published("SEGNO", "0.0043", _SEGNO),
    Published("PONITA", "0.0043", f"{_PONITA}, three seeds"),
    Published("CGENN", "0.0039", "Ruhe et al. (2023); not verified"),
    Published(
        "Multivector Neurons", "0.0035", "README of `congliuUvA/Multivector-Neurons`, three runs"
    ),
)
"""Mean squared errors on the standard data: forces clipped per coordinate, 1,000 steps."""
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
        [STANDARD_DATA[0], f"{STANDARD_DATA[1]:,}", f"published: {x.method}", x.mse]
        for x in PUBLISHED
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
