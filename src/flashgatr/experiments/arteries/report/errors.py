"""Pictures of errors: ε against the number of training meshes, and ε of every test mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...report import plots
from ...report.protocol import Run
from .facts import error_per_mesh, mean_error


def against_meshes(
    groups: Sequence[dict[str, Any]], labels: Sequence[str], reference: dict[str, Any] | None
) -> bytes:
    """ε against the number of training meshes, beside the paper's on test, if it is given."""
    with plots.style():
        figure, (ax,) = plots.panels(1, (6.4, 4.2))
        looks = plots.looks(labels)
        name = shown_set(groups)
        ax.set(xscale="log", yscale="log", xlabel="training meshes", ylabel=f"mean ε on {name}, %")
        lines = plots.means(groups, name, "epsilon_mean")
        for label, line in lines.items():
            plots.draw_means(ax, sorted(line), looks[label])
        shown = {x for line in lines.values() for x, _, _ in line}
        if reference and name == "test":
            _paper(ax, reference)
            shown.add(reference["meshes"])
        plots.sample_ticks(ax, sorted(map(int, shown)))
        plots.plain_ticks(ax)
        ax.grid(visible=True, axis="y")
        plots.legend(figure, [dict(label=label, **looks[label]) for label in labels])
        return plots.png(figure)


def shown_set(groups: Sequence[dict[str, Any]]) -> str:
    """`test`, or `val` if no run has a test."""
    return "test" if any("test" in group["results"] for group in groups) else "val"


def _paper(ax: Any, reference: dict[str, Any]) -> None:
    meshes = reference["meshes"]
    text: dict[str, Any] = dict(va="center", fontsize=7.5, color=plots.GREY)
    for name, (random, canonical) in reference["epsilon"].items():
        spot: dict[str, Any] = dict(color=plots.GREY, marker="o", markersize=5, zorder=1)
        ax.plot(meshes, random, linestyle="", **spot)
        ax.plot(meshes, canonical, linestyle="", markerfacecolor="white", **spot)
        ax.annotate(name, (meshes, random), xytext=(7, 0), textcoords="offset points", **text)


def best_per_label(runs: Sequence[Run]) -> dict[str, list[float]]:
    """ε of the test meshes, of the best run of each label with the most training meshes."""
    best: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (-(run.samples or 0), mean_error(run))):
        if any(math.isfinite(x) for x in error_per_mesh(run).values()):
            best.setdefault(run.label, run)
    return {
        label: [x for x in error_per_mesh(best[label]).values() if math.isfinite(x)]
        for label in dict.fromkeys(run.label for run in runs)
        if label in best
    }


def histograms(errors: Mapping[str, Sequence[float]], labels: Sequence[str]) -> bytes:
    """How many meshes have which ε, a panel for each of the first labels."""
    if not errors:
        raise ValueError("no run says its error on every mesh")
    errors = dict(list(errors.items())[: plots.MOST_PANELS])
    with plots.style():
        figure, axes = plots.grid(list(errors), (4.5, 2.8), "ε, %", "meshes")
        looks = plots.looks(labels)
        highest = max(max(values) for values in errors.values())
        bins = np.linspace(0, highest * 1.001, 31)
        for ax, (label, values) in zip(axes, errors.items(), strict=True):
            color = looks[label]["color"]
            ax.hist(values, bins, color=color, alpha=0.75)
            ax.axvline(float(np.mean(values)), color=color, linestyle="--", linewidth=1)
            ax.grid(visible=True, axis="y")
            ax.locator_params(axis="y", integer=True)
        return plots.png(figure)
