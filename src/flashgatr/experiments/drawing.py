"""How a report looks: its pictures (PNG).

Everything shown is passed in; nothing here reads a file. A model has the same colour and marker in every picture.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .nbody.simulate import Array

SETS = {
    "eval": (
        "New systems",
        "Drawn like the training systems. README: values from the README of the authors' code.",
    ),
    "more_bodies": ("More bodies", "Six bodies instead of four."),
    "translated": ("Translated", "Other systems, around (200, 0, 0) instead of the origin."),
    "eval_moved": (
        "Moved",
        "The new systems of the first table, moved by (200, 0, 0): an equivariant model keeps its errors.",
    ),
}
PANELS = ("eval", "more_bodies", "translated")
METRICS = {"mse": "mean", "median": "median", "q90": "90 % quantile", "trimmed": "best 99 %"}
PICTURES = {
    "figure.png": "Mean over seeds of the mean squared error, and its standard error. Grey dashes: the README of the "
    "authors' code. Dotted: the guess that all bodies move on straight lines.",
    "curves.png": "Mean squared error on the validation set during training, one line per run.",
    "trajectories.png": "Four of the new systems, chosen by the rank of GATr's error, which stands above each, and seen "
    "along the axis in which they spread least. A thin line leads from where a body ends to where a model puts it.",
}

LOOKS = {"GATr": ("#0b62b0", "o"), "Transformer": ("#d9730d", "s"), "MLP": ("#2b8a5e", "D")}
SPARE_LOOKS = (
    ("#a23b72", "^"),
    ("#6b55b8", "v"),
    ("#8a6d1f", "P"),
    ("#0f8b9b", "X"),
    ("#b3332e", "*"),
)
GREY, LIGHT_GREY, PALE = "#6b6f76", "#9aa0a8", "#e3e5e8"
STYLE: dict[Any, Any] = {
    "savefig.dpi": 160, "font.size": 9.5, "legend.frameon": False,
    "axes.titlesize": 10.5, "axes.titlelocation": "left", "axes.axisbelow": True,
    "axes.edgecolor": GREY, "axes.linewidth": 0.7, "grid.color": PALE, "grid.linewidth": 0.7,
    "axes.spines.top": False, "axes.spines.right": False,
    "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": "black", "ytick.labelcolor": "black",
}  # fmt: skip
_PLAIN = 0.1, 1000  # numbers of this size need no exponents
_LABEL_GAP = 0.045  # least distance of two labels, in heights of a panel
_LEGEND_ROW = 0.3  # inches, of the one row of a legend that figures have room for
_TITLE_LINE = 0.18  # inches
MOST_ACROSS = 4  # panels or labels
MOST_WIDE = 11.7  # inches


@dataclass(frozen=True)
class Curve:
    """Validation scores of one run: (step, score)."""

    label: str
    samples: int | None
    points: list[tuple[int, float]]


@dataclass(frozen=True)
class Scene:
    """One system: masses (n), true paths (frames, n, 3), and where models put the bodies in the end (n, 3)."""

    title: str
    mass: Array
    paths: Array
    predictions: dict[str, Array]


# ---- pictures ----


def data_efficiency(report: dict[str, Any], labels: Sequence[str]) -> bytes:
    """Error against the number of training systems, log-log, a panel per set; a single number makes points."""
    with _style():
        figure, axes = _figure(len(PANELS), (3.9, 3.7))
        looks = _looks(labels)
        samples = sorted({group["samples"] for group in report["groups"]} - {None})
        for ax, name in zip(axes, PANELS, strict=True):
            ax.set(xscale="log", yscale="log", title=SETS[name][0], xlabel="training systems")
            lines = _lines(report["groups"], name)
            for place, (label, line) in enumerate(lines.items()):
                # Error bars at one number of samples stand side by side.
                aside = 1.05 ** (place - (len(lines) - 1) / 2)
                x, y, error = np.array(line).T
                bars = np.stack([np.minimum(error, 0.9 * y), error])  # end above zero
                look: dict[str, Any] = dict(capsize=2.5, markersize=5.5, elinewidth=1)
                ax.errorbar(x * aside, y, yerr=bars, **look, **looks[label])
            _sample_ticks(ax, samples)
            is_referred_to = name == report["reference"]["set"]
            references = report["reference"]["mse"] if is_referred_to else {}
            guess = report["straight_line"].get(name, {}).get("mse")
            _references(ax, references, report["reference"]["samples"], guess)
            ax.grid(visible=True, axis="y")
        axes[0].set_ylabel("mean squared error")
        _legend(figure, [dict(label=label, **look) for label, look in looks.items()])
        return _png(figure)


def curves(
    runs: Sequence[Curve],
    labels: Sequence[str],
    what: str = "systems",
    score: str = "mean squared error",
) -> bytes:
    """A panel per number of samples, a line per run."""
    drawn = [run for run in runs if run.points]
    if not drawn:
        raise ValueError("no run has a log with validation scores")
    with _style():
        samples = sorted({run.samples or math.inf for run in drawn})
        width = min(max(MOST_WIDE / len(samples), 2.6), 5.2)
        figure, axes = _figure(len(samples), (width, 3.2), sharey=True)
        looks = _looks(labels)
        for ax, number in zip(axes, samples, strict=True):
            title = "all" if number == math.inf else f"{number:,}"
            ax.set(yscale="log", title=f"{title} training {what}", xlabel="step")
            ax.grid(visible=True, axis="y")
            for run in drawn:
                if (run.samples or math.inf) == number:
                    look = {**looks[run.label], "marker": "." if len(run.points) < 30 else ""}
                    ax.plot(*zip(*run.points, strict=True), linewidth=1.1, alpha=0.85, **look)
            ax.set_xlim(left=0)
        low, high = axes[0].get_ylim()
        if _PLAIN[0] < low and high < _PLAIN[1]:
            _plain_ticks(axes[0])
        axes[0].set_ylabel(score)
        _legend(figure, [dict(label=label, color=looks[label]["color"]) for label in labels])
        return _png(figure)


def _plain_ticks(ax: Any) -> None:
    """Numbers without exponents on a short logarithmic axis, two or more of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    low, high = ax.get_ylim()
    if sum(low <= y <= high for y in ax.get_yticks()) < 2:
        middle = math.sqrt(low * high)
        ax.set_ylim(middle / 2, middle * 2)


def trajectories(scenes: Sequence[Scene], labels: Sequence[str]) -> bytes:
    """Systems, seen along the axis in which their bodies spread least."""
    with _style():
        figure, axes = _figure(len(scenes), (3.0, 3.4))
        looks = _looks(labels)
        handles: list[dict[str, Any]] = [
            dict(label="beginning", color=LIGHT_GREY, marker="o", markerfacecolor="white"),
            dict(label="end (large: the star)", color="black", marker="o"),
        ]
        for label, marker in zip(scenes[0].predictions, "+x", strict=False):
            cross = dict(marker=marker, markersize=8, markeredgewidth=1.5)
            handles.append(dict(label=label, color=looks[label]["color"], **cross))
        for ax, scene in zip(axes, scenes, strict=True):
            _draw_scene(ax, scene, handles)
        _legend(figure, [dict(linestyle="", **handle) for handle in handles])
        return _png(figure)


def _draw_scene(ax: Any, scene: Scene, handles: list[dict[str, Any]]) -> None:
    points = scene.paths.reshape(-1, 3)
    centre = points.mean(axis=0)
    sight = np.linalg.svd(points - centre, full_matrices=False)[2][:2].T  # (3, 2)
    paths = (scene.paths - centre) @ sight
    start = dict(color=LIGHT_GREY, markerfacecolor="white", markersize=3.5)
    for body in range(len(scene.mass)):
        ax.plot(*paths[:, body].T, color=LIGHT_GREY, linewidth=1.2)
        ax.plot(*paths[0, body], "o", **start)
        size = 7 if body == scene.mass.argmax() else 4
        ax.plot(*paths[-1, body], "o", color="black", markersize=size)
    for handle in handles[2:]:
        ends = (scene.predictions[handle["label"]] - centre) @ sight
        for pair in zip(paths[-1], ends, strict=True):
            ax.plot(*zip(*pair, strict=True), color=handle["color"], linewidth=0.7)
        ax.plot(*ends.T, linestyle="", zorder=4, **{**handle, "label": None})
    low, high = paths.min(axis=(0, 1)), paths.max(axis=(0, 1))
    half = 0.6 * float((high - low).max()) or 1.0
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    ax.set(title=scene.title, aspect="equal", xlim=(left, right), ylim=(bottom, top))
    ax.tick_params(labelsize=8)
    ax.locator_params(nbins=5)


def _lines(groups: list[dict[str, Any]], name: str) -> dict[str, list[tuple[float, float, float]]]:
    """Per model: number of samples, mean and standard error, where there is something to draw."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        found = group["results"].get(name, {}).get("mse", {"mean": math.nan})
        if group["samples"] and found["mean"] > 0:
            point = group["samples"], found["mean"], found["standard_error"] or 0.0
            lines.setdefault(group["label"], []).append(point)
    return lines


def _sample_ticks(ax: Any, samples: list[int]) -> None:
    """Ticks at the numbers of samples that there are, and room on both sides."""
    from matplotlib.ticker import NullLocator

    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(samples, [f"{n:,}" for n in samples])
    if samples:
        ax.set_xlim(samples[0] / 2.5, samples[-1] * 2.5)


def _references(ax: Any, values: dict[str, float], samples: int, guess: float | None) -> None:
    """Reference values as dashes with their names beside their number of samples; the guess as a line."""
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


def _looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of every label; the first of a known model has the model's."""
    own, count = dict(LOOKS), len(SPARE_LOOKS)
    # When the colours come again, it is with other markers.
    spare = (
        (SPARE_LOOKS[k % count][0], SPARE_LOOKS[(k + k // count) % count][1])
        for k in itertools.count()
    )
    found = {}
    for label in labels:
        model = label.split(",")[0]
        color, marker = own.pop(model) if model in own else next(spare)
        found[label] = dict(color=color, marker=marker)
    return found


def _legend(figure: Any, looks: Iterable[dict[str, Any]]) -> None:
    """As many labels side by side as fit, in lines where one is too wide; the figure grows by what they need."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

    canvas: Any = FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    room = width - 0.7  # beside a line and margins
    plain = [{**look, "label": wrapped(look["label"], room)} for look in looks]
    lines = [Line2D([], [], **look) for look in plain]
    for columns in range(min(len(lines), MOST_ACROSS), 0, -1):
        legend = figure.legend(handles=lines, loc="outside upper left", ncols=columns)
        extent = legend.get_window_extent(canvas.get_renderer())
        if extent.width < 0.98 * width * figure.dpi or columns == 1:
            figure.set_figheight(height + max(0.0, extent.height / figure.dpi - _LEGEND_ROW))
            return
        legend.remove()


def wrapped(text: str, inches: float, size: float = STYLE["font.size"]) -> str:
    """In lines of at most this width, at this size in points; a $ would begin a formula."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    own = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0] / 72
    # Some lines have wider letters than others.
    fit = len(text) if own <= inches else max(int(0.9 * len(text) * inches / own), 1)
    whole = re.sub("(?<!,) ", "\u00a0", text)  # lines end after a comma if they can
    if max(map(len, whole.split(" "))) <= fit:
        text = whole
    lines = textwrap.wrap(text, max(fit, 1), break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ").replace("$", r"\$")


def _style() -> AbstractContextManager[None]:
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ImportError(
            "a report needs matplotlib; install it with `pip install flashgatr[experiments]`"
        ) from error
    return rc_context(STYLE)


def _figure(columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    figure = Figure(figsize=(size[0] * columns, size[1]), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def _grid(
    titles: Sequence[str], size: tuple[float, float], xlabel: str, ylabel: str, **options: Any
) -> tuple[Any, list[Any]]:
    """A panel per title, a few in a row, with the same x axis. They are narrower than `size` where there are many."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(titles) / MOST_ACROSS)
    columns = math.ceil(len(titles) / rows)
    width = min(size[0], MOST_WIDE / columns)
    texts = [wrapped(title, width - 0.6, STYLE["axes.titlesize"]) for title in titles]
    height = size[1] + _TITLE_LINE * max(text.count("\n") for text in texts)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, **options).flat)
    for place, (ax, text) in enumerate(zip(axes, texts, strict=False)):
        ax.set_title(text)
        if place % columns == 0:
            ax.set_ylabel(ylabel)
        if place + columns >= len(texts):
            ax.set_xlabel(xlabel)
            ax.tick_params(labelbottom=True)
    for ax in axes[len(texts) :]:
        ax.remove()
    return figure, axes[: len(texts)]


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
