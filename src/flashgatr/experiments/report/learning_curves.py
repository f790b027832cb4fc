"""Learning curves: validation scores during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...train import log
from . import plots
from .protocol import Run

FILE = "curves.png"
_PLAIN = 0.1, 1000  # scores between these are written without exponents


@dataclass(frozen=True)
class Curve:
    """Validation scores of one run: (step, score)."""

    label: str
    samples: int | None
    points: list[tuple[int, float]]


def read(run: Run) -> Curve:
    """The validation scores in the log of a run that a logarithmic axis can show."""
    lines = [line for line in log.read(run.folder) if line.get("kind") == "validation"]
    scores = [(line["step"], line.get("score")) for line in lines]
    good = [(k, float(x)) for k, x in scores if isinstance(x, float | int) and 0 < x < math.inf]
    return Curve(run.label, run.samples, good)


def draw(curves: Sequence[Curve], labels: Sequence[str], count: str, score: str) -> bytes:
    """A panel per number of training samples, a line per run.

    count: what samples are called.  score: what is measured.
    """
    shown = [curve for curve in curves if curve.points]
    if not shown:
        raise ValueError("no run has a log with validation scores")
    with plots.style():
        samples = sorted({curve.samples or math.inf for curve in shown})
        width = min(max(plots.MOST_WIDE / len(samples), 2.6), 5.2)
        figure, axes = plots.panels(len(samples), (width, 3.2), sharey=True)
        looks = plots.looks(labels)
        for ax, number in zip(axes, samples, strict=True):
            title = "all" if number == math.inf else f"{number:,}"
            ax.set(yscale="log", title=f"{title} training {count}", xlabel="step")
            ax.grid(visible=True, axis="y")
            for curve in shown:
                if (curve.samples or math.inf) == number:
                    marker = "." if len(curve.points) < 30 else ""
                    look = {**looks[curve.label], "marker": marker}
                    ax.plot(*zip(*curve.points, strict=True), linewidth=1.1, alpha=0.85, **look)
            ax.set_xlim(left=0)
        low, high = axes[0].get_ylim()
        if _PLAIN[0] < low and high < _PLAIN[1]:
            plots.plain_ticks(axes[0])
        axes[0].set_ylabel(score)
        plots.legend(figure, [dict(label=label, color=looks[label]["color"]) for label in labels])
        return plots.png(figure)
