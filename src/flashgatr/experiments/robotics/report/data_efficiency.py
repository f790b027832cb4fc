"""The figure of reward against the number of demonstrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...report import plots
from ...report.plots import GREY
from .titles import ENGINES, ERRORS

PANELS = {"reward": "reward, %", "strict": "standing tower, %"}


def draw(report: dict[str, Any], labels: Sequence[str]) -> bytes:
    """A panel per kind of reward, from the content of report.json, in the first engine there."""
    name = engine_set(report)
    with plots.style():
        figure, axes = plots.panels(len(PANELS), (4.6, 3.7))
        looks = plots.looks(labels)
        samples = sorted({group["samples"] for group in report["groups"]} - {None})
        for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
            ax.set(xscale="log", title=title, xlabel="demonstrations", ylim=(-2, 102))
            lines = _lines(report["groups"], name, key)
            for place, (label, line) in enumerate(lines.items()):
                shift = 1.04 ** (place - (len(lines) - 1) / 2)  # error bars do not overlap
                plots.draw_means(ax, line, looks[label], shift)
            plots.sample_ticks(ax, samples)
            ax.grid(visible=True, axis="y")
        if shows_paper(report):
            _paper(axes[0], report["reference"])
        plots.legend(figure, [dict(label=label, **look) for label, look in looks.items()])
        return plots.png(figure)


def engine_set(report: dict[str, Any]) -> str:
    """The set of the first engine that some group has results of."""
    for engine in ENGINES:
        if any(f"plan_{engine}" in group["results"] for group in report["groups"]):
            return f"plan_{engine}"
    raise ValueError("no run has results of planning; set data.options.scenes")


def shows_paper(report: dict[str, Any]) -> bool:
    """Whether the axis reaches the paper's number of demonstrations."""
    samples = sorted({group["samples"] for group in report["groups"]} - {None})
    return bool(samples) and plots.shows_samples(samples, report["reference"]["demonstrations"])


def _lines(
    groups: Sequence[dict[str, Any]], name: str, key: str
) -> dict[str, list[tuple[float, float, float]]]:
    """Per label: (demonstrations, mean, standard error)."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for group in groups:
        found = group["results"].get(name, {})
        if group["samples"] and key in found:
            error = found[key]["standard_error"]
            if error is None:
                error = found.get(ERRORS[key], {}).get("mean", 0.0)
            lines.setdefault(group["label"], []).append(
                (group["samples"], found[key]["mean"], error)
            )
    return lines


def _paper(ax: Any, reference: dict[str, Any]) -> None:
    """The paper's rewards as dashes at the right side, with names."""
    for model, (value, _) in reference["reward"].items():
        if value:
            ax.plot([0.93, 1.0], [value, value], color=GREY, linewidth=1.1,
                    transform=ax.get_yaxis_transform(), clip_on=False)  # fmt: skip
            short = model.split(" ")[0]
            if "Janner" not in model or short == "CQL":
                ax.annotate(short, (1.01, value), xycoords=("axes fraction", "data"), fontsize=7,
                            color=GREY, va="center", annotation_clip=False)  # fmt: skip
