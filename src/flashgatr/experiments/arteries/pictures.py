"""Pictures of the artery experiment (PNG), in the look of every report. Everything shown is passed in.

Walls are seen along the axis in which they spread least: canonical vessels lie in a plane, and their halves on both sides of it
are alike. Where a mesh has faces, those that look towards us are painted; else its nodes are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import drawing
from .data.mesh import Array, Mesh

PICTURES = {
    "figure.png": "Mean over seeds of the mean approximation error ε on the test meshes, and its standard error.",
    "curves.png": "Mean ε on the validation meshes during training, in %, one line per run.",
    "histograms.png": "How many test meshes have which ε. Dashed: the mean.",
    "scatter.png": "Predicted against true size of the stress at the nodes of a few test meshes. On the line, they agree.",
    "maps.png": "Walls, chosen by the rank of GATr's ε on them, which stands above each: the size of the true stress, of the "
    "predicted one, and of their difference, in dyn/cm². Grey: seen by models, and not counted.",
}
GREY = "Grey: the paper's, with 1,600 training meshes (filled: random orientations, hollow: canonical)."
MAPS = ("viridis", "magma")  # of stress, of errors
MOST_PANELS = 12
_TITLE = 8.5  # points, of maps
_OUTSIDE = "#d8d8d8"  # where nodes are not counted


@dataclass(frozen=True)
class Wall:
    """A mesh with what models predict on it: (N, 3) each, in dyn/cm²."""

    title: str
    mesh: Mesh
    predictions: dict[str, Array]


def against_meshes(
    groups: Sequence[dict[str, Any]], labels: Sequence[str], reference: dict[str, Any] | None
) -> bytes:
    """ε against the number of training meshes, beside the paper's, if it is given."""
    with drawing._style():
        figure, (ax,) = drawing._figure(1, (6.4, 4.2))
        looks = drawing._looks(labels)
        ax.set(xscale="log", yscale="log", xlabel="training meshes", ylabel="mean ε on test, %")
        lines: dict[str, list[tuple[float, float, float]]] = {}
        for group in groups:
            found = group["results"].get("test", {}).get("epsilon_mean", {"mean": math.nan})
            if group["samples"] and found["mean"] > 0:
                point = group["samples"], found["mean"], found["standard_error"] or 0.0
                lines.setdefault(group["label"], []).append(point)
        for label, line in lines.items():
            x, y, error = np.array(sorted(line)).T
            bars = np.stack([np.minimum(error, 0.9 * y), error])
            ax.errorbar(x, y, yerr=bars, capsize=2.5, markersize=5.5, elinewidth=1, **looks[label])
        shown = {x for line in lines.values() for x, _, _ in line}
        if reference:
            _paper(ax, reference)
            shown.add(reference["meshes"])
        drawing._sample_ticks(ax, sorted(map(int, shown)))
        drawing._plain_ticks(ax)
        ax.grid(visible=True, axis="y")
        drawing._legend(figure, [dict(label=label, **looks[label]) for label in labels])
        return drawing._png(figure)


def _paper(ax: Any, reference: dict[str, Any]) -> None:
    meshes = reference["meshes"]
    text: dict[str, Any] = dict(va="center", fontsize=7.5, color=drawing.GREY)
    for name, (random, canonical) in reference["epsilon"].items():
        spot: dict[str, Any] = dict(color=drawing.GREY, marker="o", markersize=5, zorder=1)
        ax.plot(meshes, random, linestyle="", **spot)
        ax.plot(meshes, canonical, linestyle="", markerfacecolor="white", **spot)
        ax.annotate(name, (meshes, random), xytext=(7, 0), textcoords="offset points", **text)


def histograms(errors: Mapping[str, Sequence[float]], labels: Sequence[str]) -> bytes:
    """How many meshes have which ε, a panel for each of the first labels."""
    if not errors:
        raise ValueError("no run says its error on every mesh")
    errors = dict(list(errors.items())[:MOST_PANELS])
    with drawing._style():
        figure, axes = drawing._grid(list(errors), (4.5, 2.8), "ε, %", "meshes")
        looks = drawing._looks(labels)
        highest = max(max(values) for values in errors.values())
        bins = np.linspace(0, highest * 1.001, 31)
        for ax, (label, values) in zip(axes, errors.items(), strict=True):
            color = looks[label]["color"]
            ax.hist(values, bins, color=color, alpha=0.75)
            ax.axvline(float(np.mean(values)), color=color, linestyle="--", linewidth=1)
            ax.grid(visible=True, axis="y")
            ax.locator_params(axis="y", integer=True)
        return drawing._png(figure)


def scatter(walls: Sequence[Wall], labels: Sequence[str]) -> bytes:
    """|predicted| against |true| at the masked nodes of all walls, a panel for each of the first models."""
    shown = [label for label in labels if all(label in wall.predictions for wall in walls)]
    shown = shown[:MOST_PANELS]
    with drawing._style():
        names = "true stress, dyn/cm²", "predicted stress, dyn/cm²"
        figure, axes = drawing._grid(shown, (4.0, 3.7), *names, sharey=True)
        true = np.concatenate([_size(_labels(wall.mesh))[wall.mesh.mask] for wall in walls])
        top = max(float(true.max()), 1e-6)
        for ax, label in zip(axes, shown, strict=True):
            found = np.concatenate(
                [_size(wall.predictions[label])[wall.mesh.mask] for wall in walls]
            )
            box = (0.0, top, 0.0, max(top, float(found.max())))
            ax.hexbin(true, found, gridsize=70, bins="log", cmap="Blues", extent=box, linewidths=0)
            ax.plot([0, top], [0, top], color=drawing.GREY, linewidth=0.8)
        return drawing._png(figure)


def maps(walls: Sequence[Wall], labels: Sequence[str]) -> bytes:
    """A row per wall; columns: true stress, then prediction and error of every model."""
    shown = [label for label in labels if all(label in wall.predictions for wall in walls)]
    columns = 1 + 2 * len(shown)
    with drawing._style():
        from matplotlib.figure import Figure

        names = {
            (label, kind): drawing.wrapped(label + kind, 2.4, _TITLE)
            for label in shown
            for kind in ("", ": error")
        }
        # Titles stand on their last line; two have room between rows.
        more = 0.15 * max([0, *(name.count("\n") - 1 for name in names.values())])
        rows = len(walls)
        wide, bottom = 2.4, 0.1  # inches, as all of these
        top, gap = 0.4 + more, 0.45 + more
        extents = (np.ptp(_place(wall.mesh)[0], axis=0) for wall in walls)
        high = [float(np.clip(wide * y / max(x, 1e-9), 0.3, 1.6)) for x, y, _ in extents]
        size = (2.9 * columns, bottom + sum(high) + (rows - 1) * gap + top)
        figure = Figure(figsize=size)  # a layout that measures every panel takes ten times as long
        axes = figure.subplots(rows, columns, squeeze=False, height_ratios=high)
        room = dict(wspace=0.16, hspace=gap * rows / sum(high))
        figure.subplots_adjust(0.01, bottom / size[1], 0.965, 1 - top / size[1], **room)
        for row, wall in zip(axes, walls, strict=True):
            true = _labels(wall.mesh)
            most = max(float(_size(true)[wall.mesh.mask].max()), 1e-6)
            panels = [(f"{wall.title}\ntrue stress", _size(true), MAPS[0], most)]
            for label in shown:
                found = wall.predictions[label]
                panels.append((names[label, ""], _size(found), MAPS[0], most))
                panels.append((names[label, ": error"], _size(found - true), MAPS[1], most / 4))
            for ax, (title, values, colors, limit) in zip(row, panels, strict=True):
                painted = paint(ax, wall.mesh, values, colors, limit)
                ax.set_title(title, fontsize=_TITLE)
                bar = figure.colorbar(painted, cax=ax.inset_axes((1.01, 0.1, 0.025, 0.8)))
                bar.ax.tick_params(labelsize=7)
                bar.outline.set_visible(False)
        return drawing._png(figure)


def paint(
    ax: Any, mesh: Mesh, values: Array, colors: str = MAPS[0], most: float | None = None
) -> Any:
    """Draw the side of a wall that looks towards us, coloured by one number per node, grey outside the mask; returns what a
    colour bar needs."""
    from matplotlib import colormaps

    values = np.where(mesh.mask, values, np.nan)
    shades = colormaps[colors].with_extremes(bad=_OUTSIDE)
    place, towards = _place(mesh)
    ax.set(aspect="equal")
    ax.axis("off")
    limits: dict[str, Any] = dict(vmin=0.0, vmax=most)
    if mesh.face is not None and len(mesh.face):
        face = mesh.face[towards[mesh.face].mean(axis=1) > 0]
        # One colour per face: shading within faces takes ten times as long.
        seen: dict[str, Any] = dict(edgecolors="face", linewidth=0.2, cmap=shades, **limits)
        return ax.tripcolor(
            place[:, 0], place[:, 1], face, facecolors=values[face].mean(axis=1), **seen
        )
    front = np.flatnonzero(towards > -0.2)
    front = front[np.argsort(place[front, 2])]
    look: dict[str, Any] = dict(s=1.6, linewidths=0, cmap=shades, rasterized=True)
    return ax.scatter(
        place[front, 0], place[front, 1], c=values[front], plotnonfinite=True, **look, **limits
    )


def _place(mesh: Mesh) -> tuple[Array, Array]:
    """Nodes (N, 3) along the wall, across it and towards us; how much each looks towards us (N)."""
    centre = mesh.position.mean(axis=0)
    axes = np.linalg.svd(mesh.position - centre, full_matrices=False)[2]
    return (mesh.position - centre) @ axes.T, mesh.normal @ axes[2]


def _labels(mesh: Mesh) -> Array:
    if mesh.wss is None:
        raise ValueError(f"{mesh.name} has no labels to draw")
    return mesh.wss


def _size(vectors: Array) -> Array:
    sizes: Array = np.linalg.norm(vectors, axis=-1)
    return sizes
