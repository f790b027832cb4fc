"""The look of all pictures: style, colours, panels, legends, axes; saved as PNG.

A model has the same colour and marker in every picture. Everything shown is passed in.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from .protocol import BAD_INPUT

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
    "xtick.color": GREY, "ytick.color": GREY,
    "xtick.labelcolor": "black", "ytick.labelcolor": "black",
}  # fmt: skip
_LEGEND_ROW = 0.3  # inches: the height of a legend of one row, for which figures have room
_TITLE_LINE = 0.18  # inches
MOST_ACROSS = 4  # panels or labels
MOST_WIDE = 11.7  # inches
ROOM = 2.5  # factor by which an axis of samples goes beyond its first and last tick
MOST_PANELS = 12  # of one picture


def draw_all(
    pictures: Mapping[str, Callable[[], bytes]], notes: list[str]
) -> dict[str, bytes | None]:
    """The pictures by file name; for one that cannot be drawn, None and a note with the reason."""
    found: dict[str, bytes | None] = {}
    for name, draw in pictures.items():
        try:
            found[name] = draw()
        except BAD_INPUT as error:
            found[name] = None
            notes.append(f"{name} was not drawn: {error}")
    return found


def means(
    groups: Iterable[Mapping[str, Any]], name: str, metric: str
) -> dict[str, list[tuple[float, float, float]]]:
    """Per label: (number of samples, mean, standard error) that a logarithmic axis can show."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        found = group["results"].get(name, {}).get(metric, {"mean": math.nan})
        if group["samples"] and found["mean"] > 0:
            point = group["samples"], found["mean"], found["standard_error"] or 0.0
            lines.setdefault(group["label"], []).append(point)
    return lines


def draw_means(
    ax: Any, line: Sequence[tuple[float, float, float]], look: dict[str, Any], shift: float = 1.0
) -> None:
    """One of the `means` as a line with error bars; a factor `shift` keeps bars apart."""
    x, y, error = np.array(line).T
    bars = np.stack([np.minimum(error, 0.9 * y), error])  # they end above zero
    ax.errorbar(x * shift, y, yerr=bars, capsize=2.5, markersize=5.5, elinewidth=1, **look)


def style() -> AbstractContextManager[None]:
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ImportError(
            "a report needs matplotlib; install it with `pip install flashgatr[experiments]`"
        ) from error
    return rc_context(STYLE)


def panels(columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    figure = Figure(figsize=(size[0] * columns, size[1]), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False, **options)[0])


def grid(
    titles: Sequence[str], size: tuple[float, float], xlabel: str, ylabel: str, **options: Any
) -> tuple[Any, list[Any]]:
    """A panel per title, a few in a row, with the same x axis; many are narrower than `size`."""
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


def looks(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of every label; the first label of a known model gets the model's own."""
    own, count = dict(LOOKS), len(SPARE_LOOKS)
    # When colours repeat, they have other markers.
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


def legend(figure: Any, looks: Iterable[dict[str, Any]]) -> None:
    """A legend above the panels, with as many labels side by side as fit; wide ones are wrapped.

    The figure grows by the height that it needs.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

    canvas: Any = FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    room = width - 0.7  # without a line sample and margins
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
    """Text in lines of at most this width, at this size in points; $ is escaped."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    own = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0] / 72
    # A margin of 10 %, because some lines have wider letters than others.
    fit = len(text) if own <= inches else max(int(0.9 * len(text) * inches / own), 1)
    whole = re.sub("(?<!,) ", "\u00a0", text)  # lines end after a comma if they can
    if max(map(len, whole.split(" "))) <= fit:
        text = whole
    lines = textwrap.wrap(text, max(fit, 1), break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ").replace("$", r"\$")


def sample_ticks(ax: Any, samples: list[int]) -> None:
    """Ticks at these numbers of samples, and room on both sides."""
    from matplotlib.ticker import NullLocator

    ax.xaxis.set_minor_locator(NullLocator())
    # Otherwise matplotlib chooses limits first, with a warning if all points are at 100 samples.
    ax.set_autoscalex_on(not samples)
    ax.set_xticks(samples, [f"{n:,}" for n in samples])
    if samples:
        ax.set_xlim(samples[0] / ROOM, samples[-1] * ROOM)


def shows_samples(samples: list[int], number: int) -> bool:
    """Whether an axis with these `sample_ticks` reaches this number of samples."""
    return samples[0] / ROOM <= number <= samples[-1] * ROOM


def plain_ticks(ax: Any) -> None:
    """At least two ticks without exponents on a short logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    low, high = ax.get_ylim()
    if sum(low <= y <= high for y in ax.get_yticks()) < 2:
        middle = math.sqrt(low * high)
        ax.set_ylim(middle / 2, middle * 2)


def png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
