"""Pictures of walls: the true and the predicted stress on them.

Walls are seen along the axis in which they spread least: canonical vessels lie in a plane, and
their halves on both sides of it are alike. If a mesh has faces, those that look towards us are
painted; otherwise its nodes are. Everything shown is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...report import plots
from ..data.mesh import Array, Mesh

MAPS = ("viridis", "magma")  # of stress, of errors
OUTSIDE = "#d8d8d8"  # where nodes are not counted
_TITLE = 8.5  # points, of maps


@dataclass(frozen=True)
class Wall:
    """A mesh with what models predict on it: (N, 3) each, in dyn/cm²."""

    title: str
    mesh: Mesh
    predictions: dict[str, Array]


def scatter(walls: Sequence[Wall], labels: Sequence[str]) -> bytes:
    """|predicted| against |true| at the masked nodes of all walls, a panel per model."""
    shown = [label for label in labels if all(label in wall.predictions for wall in walls)]
    shown = shown[: plots.MOST_PANELS]
    with plots.style():
        names = "true stress, dyn/cm²", "predicted stress, dyn/cm²"
        figure, axes = plots.grid(shown, (4.0, 3.7), *names, sharey=True)
        true = np.concatenate([_size(_labels(wall.mesh))[wall.mesh.mask] for wall in walls])
        top = max(float(true.max()), 1e-6)
        for ax, label in zip(axes, shown, strict=True):
            found = np.concatenate(
                [_size(wall.predictions[label])[wall.mesh.mask] for wall in walls]
            )
            box = (0.0, top, 0.0, max(top, float(found.max())))
            ax.hexbin(true, found, gridsize=70, bins="log", cmap="Blues", extent=box, linewidths=0)
            ax.plot([0, top], [0, top], color=plots.GREY, linewidth=0.8)
        return plots.png(figure)


def maps(walls: Sequence[Wall], labels: Sequence[str]) -> bytes:
    """A row per wall; columns: true stress, then prediction and error of every model."""
    shown = [label for label in labels if all(label in wall.predictions for wall in walls)]
    columns = 1 + 2 * len(shown)
    with plots.style():
        from matplotlib.figure import Figure

        names = {
            (label, kind): plots.wrapped(label + kind, 2.4, _TITLE)
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
        return plots.png(figure)


def paint(
    ax: Any, mesh: Mesh, values: Array, colors: str = MAPS[0], most: float | None = None
) -> Any:
    """Draw the side of a wall that looks towards us, coloured by one number per node.

    Nodes outside the mask are grey. Returns what a colour bar needs.
    """
    from matplotlib import colormaps

    values = np.where(mesh.mask, values, np.nan)
    shades = colormaps[colors].with_extremes(bad=OUTSIDE)
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


def view(mesh: Mesh) -> tuple[Array, Array]:
    """The centre (3,) of a wall, and the axes (3, 3) along it, across it and towards us."""
    centre = mesh.position.mean(axis=0)
    return centre, np.linalg.svd(mesh.position - centre, full_matrices=False)[2]


def _place(mesh: Mesh) -> tuple[Array, Array]:
    """Nodes (N, 3) along the wall, across it and towards us; how much each looks towards us (N)."""
    centre, axes = view(mesh)
    return (mesh.position - centre) @ axes.T, mesh.normal @ axes[2]


def _labels(mesh: Mesh) -> Array:
    if mesh.wss is None:
        raise ValueError(f"{mesh.name} has no labels to draw")
    return mesh.wss


def _size(vectors: Array) -> Array:
    sizes: Array = np.linalg.norm(vectors, axis=-1)
    return sizes
