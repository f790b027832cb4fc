"""The figure of error against the number of training systems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...report import plots
from ...report.plots import GREY
from .titles import CAPTIONS, DASHES, DOTS, SETS

PANELS = ("eval", "more_bodies", "translated")
_LABEL_GAP = 0.045  # smallest distance between two labels, in heights of a panel


def draw(report: dict[str, Any], labels: Sequence[str]) -> bytes:
    """A log-log panel per evaluation set, from the content of report.json.

    With a single number of training systems, means are drawn as points instead of lines.
    """
    with plots.style():
        figure, axes = plots.panels(len(PANELS), (3.9, 3.7))
        looks = plots.looks(labels)
        samples = sorted({group["samples"] for group in report["groups"]} - {None})
        for ax, name in zip(axes, PANELS, strict=True):
            ax.set(xscale="log", yscale="log", title=SETS[name][0], xlabel="training systems")
            lines = plots.means(report["groups"], name, "mse")
            for place, (label, line) in enumerate(lines.items()):
                # Shift the error bars of different models, so that they do not overlap.
                shift = 1.05 ** (place - (len(lines) - 1) / 2)
                plots.draw_means(ax, line, looks[label], shift)
            plots.sample_ticks(ax, samples)
            has_references = name == report["reference"]["set"]
            references = report["reference"]["mse"] if has_references else {}
            guess = report["straight_line"].get(name, {}).get("mse")
            _references(ax, references, report["reference"]["samples"], guess)
            ax.grid(visible=True, axis="y")
        axes[0].set_ylabel("mean squared error")
        plots.legend(figure, [dict(label=label, **look) for label, look in looks.items()])
        return plots.png(figure)


def caption(report: dict[str, Any]) -> str:
    """What the figure shows; dashes and dots are explained only if they are there."""
    samples = sorted({group["samples"] for group in report["groups"]} - {None})
    there = report["reference"]["samples"]
    has_dashes = bool(samples) and plots.shows_samples(samples, there)
    has_dots = any(report["straight_line"].get(name, {}).get("mse") for name in PANELS)
    return CAPTIONS["figure.png"] + DASHES * has_dashes + DOTS * has_dots


def _references(ax: Any, values: dict[str, float], samples: int, guess: float | None) -> None:
    """Draw reference values as labelled dashes at their number of samples, and the straight-line
    guess as a dotted line.
    """
    from matplotlib.patheffects import withStroke

    left, right = (math.log(x) for x in ax.get_xlim())
    at = (math.log(samples) - left) / (right - left)
    values = values if 0 <= at <= 1 else {}
    shown = [*values.values(), *([guess] if guess else [])]
    low, high = ax.get_ylim()
    ax.set_ylim(
        min([low / 1.15, *(y / 1.5 for y in shown)]), max([high, *(y * 1.5 for y in shown)])
    )
    bottom, top = (math.log(y) for y in ax.get_ylim())
    look: dict[str, Any] = dict(color=GREY, transform=ax.transAxes, zorder=1)
    halo = [withStroke(linewidth=2.5, foreground="white")]
    text = dict(fontsize=7.5, va="center", path_effects=halo, **look)
    side, align = (1, "left") if at < 0.6 else (-1, "right")
    below = -1.0
    for name, y in sorted(values.items(), key=lambda item: item[1]):
        height = (math.log(y) - bottom) / (top - bottom)
        below = max(height, below + _LABEL_GAP)
        start, bend, end = (at + side * x for x in (0.06, 0.11, 0.13))
        ax.plot([start, bend], [height, height], linewidth=1.2, **look)
        ax.plot([bend, end], [height, below], linewidth=0.5, **look)
        ax.text(end + side * 0.01, below, name, ha=align, **text)
    if guess:
        ax.axhline(guess, color=GREY, linestyle=":", linewidth=1.1, zorder=1)
        height = (math.log(guess) - bottom) / (top - bottom)
        ax.text(0.01, height + 0.028, "straight line", **text)
