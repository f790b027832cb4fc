"""Pictures of predicted flows, and of their errors against points and anchors.

The slice holds the points of the lumen that are near the plane in which the vessel spreads most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..arteries.data.mesh import Array, Mesh
from ..arteries.report.wall_maps import MAPS, OUTSIDE, paint, view
from ..report import plots
from .metrics import NAMES
from .vessels import SCALES, points_of

THICKNESS = 0.06
"""Of the slice, relative to the width of the vessel across it."""
MOST = 60_000
"""Points that are drawn in a panel."""
TITLES = {"epsilon_velocity": "velocity in the lumen", "epsilon_stress": "stress on the wall"}


def draw_errors(found: Sequence[dict[str, Any]]) -> bytes:
    """ε against anchors for every number of points, or against points if there is one number of
    anchors only.
    """
    along, per = "anchors", "points"
    if len({x["anchors"] for x in found}) == 1 < len({x["points"] for x in found}):
        along, per = per, along
    lines: dict[str, list[dict[str, Any]]] = {}
    for x in found:
        lines.setdefault(f"{x[per]:,} {per}", []).append(x)
    with plots.style():
        figure, axes = plots.panels(len(NAMES), (4.2, 3.4))
        looks = plots.looks(list(lines))
        for ax, name in zip(axes, NAMES, strict=True):
            ax.set(xscale="log", title=f"ε of the {TITLES[name]}, %", xlabel=f"{along} per vessel")
            for label, points in lines.items():
                ordered = sorted((x[along], x[name]) for x in points)
                ax.plot(*zip(*ordered, strict=True), markersize=5, **looks[label])
            numbers = sorted({x[along] for x in found})
            ax.set_xticks(numbers, [f"{n:,}" for n in numbers])
            ax.set_xticks([], minor=True)  # the labels of a short logarithmic axis overlap
            ax.set_ylim(bottom=0)
            ax.grid(visible=True, axis="y")
        plots.legend(figure, [dict(label=label, **look) for label, look in looks.items()])
        return plots.png(figure)


def draw_flow(name: str, rows: Tensor, prediction: Tensor) -> bytes:
    """True values, prediction and error of one vessel: rows (N, 12), prediction (N, 3)."""
    points = points_of(rows)
    is_wall = points.kind.numpy() > 0
    scale = np.where(is_wall, SCALES[1], SCALES[0])[:, None]
    true, found = points.target.numpy() * scale, prediction.numpy() * scale
    position = points.position.numpy()
    wall = Mesh(
        name=name,
        index=0,
        position=position[is_wall][:MOST],
        normal=points.normal.numpy()[is_wall][:MOST],
        geodesic=points.distance.numpy()[is_wall][:MOST],
        mask=points.mask.numpy()[is_wall][:MOST],
        inlet_diameter=1.0,
    )
    centre, axes = view(wall)
    place = (position - centre) @ axes.T
    thin = THICKNESS * float(np.ptp(place[is_wall, 2])) / 2
    near = np.flatnonzero(~is_wall & (np.abs(place[:, 2]) < thin))[:MOST]
    mask = points.mask.numpy()[near]
    walls, sizes = np.flatnonzero(is_wall)[:MOST], _sizes(true, found)
    most = [float(sizes[0][own].max(initial=1e-6)) for own in (near, walls)]
    with plots.style():
        from matplotlib.figure import Figure

        width, height = np.ptp(place[is_wall, :2], axis=0)
        high = 7.0 * float(np.clip(height / width, 0.12, 0.6)) + 0.35
        figure = Figure(figsize=(15.0, 3 * high), layout="constrained")
        for row, values in enumerate(sizes):
            what = ("true", "predicted", "error")[row]
            colors, part = (MAPS[1], 0.25) if row == 2 else (MAPS[0], 1.0)
            for column, own in enumerate((near, walls)):
                ax = figure.add_subplot(3, 2, 2 * row + column + 1)
                limit = part * most[column]
                if column:
                    drawn = paint(ax, wall, values[own], colors, limit)
                else:
                    drawn = _slice(ax, place[own], np.where(mask, values[own], np.nan))
                    drawn.set(cmap=_shades(colors), clim=(0, limit))
                ax.set_title(f"{what}: {('|u|, cm/s', '|wss|, dyn/cm²')[column]}")
                figure.colorbar(drawn, ax=ax, shrink=0.8, pad=0.01).outline.set_visible(False)
        return plots.png(figure)


def _sizes(true: Array, found: Array) -> list[Array]:
    return [np.linalg.norm(x, axis=1) for x in (true, found, found - true)]


def _slice(ax: Any, place: Array, values: Array) -> Any:
    ax.set(aspect="equal")
    ax.axis("off")
    look: dict[str, Any] = dict(s=1.6, linewidths=0, rasterized=True, plotnonfinite=True)
    return ax.scatter(place[:, 0], place[:, 1], c=values, **look)


def _shades(name: str) -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad=OUTSIDE)
