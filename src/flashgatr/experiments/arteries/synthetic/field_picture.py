"""A picture of a flow field: the speed on a slice through the lumen, and the stress on the wall.

The slice is the plane in which the vessel spreads most; a vessel that bends in space leaves it in
places. Its pixels are located in the elements. The wall is drawn by its random points.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...report import plots
from ..data.field_points import FieldPoints
from ..data.mesh import Array, Mesh
from ..report.wall_maps import paint, view
from .field import Field
from .field_files import field_points
from .locate import locate
from .solution import Solution

PIXELS = 900  # along the vessel
WALL_POINTS = 200_000
COLORS = "magma", "viridis"  # of speed, of stress (as in reports)
WIDTH = 8.0  # inches


def picture(solution: Solution) -> bytes:
    """A PNG image of the part of the vessel that points come from."""
    points = field_points(solution, 0, WALL_POINTS)
    wall = _wall(points)
    centre, axes = view(wall)
    flat = (wall.position - centre) @ axes[:2].T
    low, high = flat.min(axis=0), flat.max(axis=0)
    turned = (points.distance - points.distance.mean()) @ flat[:, 0] < 0
    speed = _slice(solution, points.span, centre, axes, (low, high))
    height = WIDTH * float(np.clip((high - low)[1] / (high - low)[0], 0.12, 0.6))
    with plots.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH, 2 * height + 1.2), layout="constrained")
        first, second = figure.subplots(2, 1)
        look: dict[str, Any] = dict(origin="lower", cmap=COLORS[0], interpolation="nearest")
        image = first.imshow(speed, extent=(low[0], high[0], low[1], high[1]), vmin=0, **look)
        first.axis("off")
        painted = paint(second, wall, np.linalg.norm(points.target, axis=1), COLORS[1])
        for ax, shown, title, unit in (
            (first, image, "speed on a slice of the lumen", "|u|, cm/s"),
            (second, painted, "shear stress on the wall", "|wss|, dyn/cm²"),
        ):
            ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
            if turned:  # by half a turn, so that the inlet is on the left
                ax.set(xlim=(high[0], low[0]), ylim=(high[1], low[1]))
            ax.set_title(f"{points.name}: {title}")
            bar = figure.colorbar(shown, ax=ax, shrink=0.8, aspect=14, pad=0.01)
            bar.set_label(unit)
            bar.outline.set_visible(False)
        return plots.png(figure)


def _wall(points: FieldPoints) -> Mesh:
    """The points of the wall as a mesh without faces; all count."""
    rows = points.wall
    return Mesh(
        name=points.name,
        index=points.index,
        position=points.position[rows],
        normal=points.normal,
        geodesic=points.distance[rows],
        mask=np.ones(len(points.normal), bool),
        inlet_diameter=points.inlet_diameter,
        wss=points.target[rows],
    )


def _slice(
    solution: Solution,
    span: tuple[float, float],
    centre: Array,
    axes: Array,
    corners: tuple[Array, Array],
) -> Array:
    """Speeds (rows, PIXELS) on the plane of the first two axes; NaN outside of the lumen."""
    low, high = corners
    pixel = (high[0] - low[0]) / PIXELS
    x = low[0] + pixel * (np.arange(PIXELS) + 0.5)
    y = low[1] + pixel * (np.arange(max(1, round((high[1] - low[1]) / pixel))) + 0.5)
    flat = np.stack(np.meshgrid(x, y), axis=-1)
    field = Field(solution.flow)
    places, inside = locate(field, centre + flat.reshape(-1, 2) @ axes[:2])
    found = field.lumen(places)
    shown = inside & (found.distance >= span[0]) & (found.distance <= span[1])
    speed = np.where(shown, np.linalg.norm(found.velocity, axis=1), np.nan)
    return np.asarray(speed.reshape(flat.shape[:2]))
