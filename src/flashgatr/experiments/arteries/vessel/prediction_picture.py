"""A picture of a prediction: the wall from two sides, coloured by the stress, with arrows along it.

If there are labels, they and the error are drawn beside it. Faces are painted from back to front,
lit from the viewer; this needs no graphics hardware.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...report import plots
from ..data.mesh import Array, Mesh

STRESS_COLORS, ERROR_COLORS = "viridis", "magma"  # as in reports
ARROWS = 70  # on each side
PALE = 0.65  # share of white in the colour of nodes outside the mask


def picture(mesh: Mesh, found: Array) -> bytes:
    """A PNG image of the stress `found` (N, 3) on a mesh, beside its labels if it has any.

    Each quantity has a column: one side of the wall above, the other below.
    """
    top = max(float(_size(found)[mesh.mask].max()), 1e-6)
    columns: list[tuple[str, Array, Array | None, str, float]]
    columns = [("predicted stress", _size(found), found, STRESS_COLORS, top)]
    if mesh.wss is not None:
        top = max(top, float(_size(mesh.wss)[mesh.mask].max()))
        columns = [("predicted stress", _size(found), found, STRESS_COLORS, top)]
        columns.append(("reference", _size(mesh.wss), mesh.wss, STRESS_COLORS, top))
        columns.append(("error", _size(found - mesh.wss), None, ERROR_COLORS, top / 4))
    centre = mesh.position.mean(axis=0)
    sight = np.linalg.svd(mesh.position - centre, full_matrices=False)[2]
    sight[2] *= np.linalg.det(
        sight
    )  # axes: along the vessel, across it, towards the viewer; right-handed
    if (mesh.geodesic - mesh.geodesic.mean()) @ ((mesh.position - centre) @ sight[0]) < 0:
        sight[:2] *= -1  # the inlet is on the left
    extent = np.ptp((mesh.position - centre) @ sight.T, axis=0)
    width = 5.6 if len(columns) == 1 else 4.3
    height = float(np.clip(width * extent[1] / max(extent[0], 1e-9), 1.0, 1.2 * width))
    with plots.style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * len(columns), 2 * height + 1.1), layout="constrained")
        axes = figure.subplots(2, len(columns), squeeze=False)
        for column, (title, values, vectors, colors, most) in enumerate(columns):
            painted: Any = None
            for ax, side in zip(axes[:, column], (1, -1), strict=True):
                view = sight * np.array([[1], [side], [side]])
                painted = _paint(ax, mesh, values, vectors, view, colors, most)
            axes[0, column].set_title(title)
            bar = figure.colorbar(
                painted,
                ax=list(axes[:, column]),
                location="bottom",
                shrink=0.7,
                aspect=40,
                pad=0.02,
            )
            bar.set_label(f"{'|wss|' if vectors is not None else '|error|'}, dyn/cm²")
            bar.outline.set_visible(False)
        axes[1, 0].text(0, 0, "the other side", transform=axes[1, 0].transAxes, color=plots.GREY)
        _mark_inlet(axes[0, 0], mesh, sight)
        return plots.png(figure)


def _paint(
    ax: Any, mesh: Mesh, values: Array, vectors: Array | None, view: Array, colors: str, most: float
) -> Any:
    """Draw the faces that look towards the viewer; returns the mappable for a colour bar."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import Normalize

    assert mesh.face is not None
    place = (mesh.position - mesh.position.mean(axis=0)) @ view.T
    corners = place[mesh.face]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normal /= np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-30)
    front = np.flatnonzero(normal[:, 2] > 0)
    front = front[np.argsort(corners[front, :, 2].mean(axis=1))]
    scale = ScalarMappable(Normalize(0.0, most), colormaps[colors])
    color = scale.to_rgba(values[mesh.face[front]].mean(axis=1))[:, :3]
    color = color * (0.55 + 0.45 * normal[front, 2:])  # light comes from the viewer
    outside = ~mesh.mask[mesh.face[front]].all(axis=1)
    color[outside] += PALE * (1 - color[outside])
    ax.add_collection(
        PolyCollection(corners[front][:, :, :2], facecolors=color, edgecolors=color, linewidths=0.3)
    )
    if vectors is not None:
        _arrows(ax, mesh, place, vectors @ view.T, view)
    low, high = place[:, :2].min(axis=0), place[:, :2].max(axis=0)
    room = 0.04 * float((high - low).max())
    ax.set(xlim=(low[0] - room, high[0] + room), ylim=(low[1] - room, high[1] + room))
    ax.set(aspect="equal")
    ax.axis("off")
    return scale


def _arrows(ax: Any, mesh: Mesh, place: Array, vectors: Array, view: Array) -> None:
    """Arrows at some nodes that face the viewer, evenly along the vessel."""
    seen = np.flatnonzero((mesh.normal @ view[2] > 0.6) & mesh.mask)
    if not len(seen):
        return
    seen = seen[np.argsort(mesh.geodesic[seen], kind="stable")]
    seen = seen[np.unique(np.linspace(0, len(seen) - 1, ARROWS).astype(int))]
    length = np.maximum(np.linalg.norm(vectors[seen], axis=1, keepdims=True), 1e-30)
    along = vectors[seen] / length * 0.45 * mesh.inlet_diameter
    look: dict[str, Any] = dict(angles="xy", scale_units="xy", scale=1, width=0.0022)
    ax.quiver(*place[seen, :2].T, *along[:, :2].T, color="white", alpha=0.85, **look)


def _mark_inlet(ax: Any, mesh: Mesh, sight: Array) -> None:
    first = mesh.geodesic <= mesh.geodesic.min() + mesh.inlet_diameter / 2
    spot = ((mesh.position[first].mean(axis=0) - mesh.position.mean(axis=0)) @ sight.T)[:2]
    text: dict[str, Any] = dict(color=plots.GREY, fontsize=8.5, ha="left", va="bottom")
    ax.annotate("inlet", spot, xytext=(-4, 12), textcoords="offset points", **text)


def _size(vectors: Array) -> Array:
    return np.asarray(np.linalg.norm(vectors, axis=-1))
