"""Draw multivectors: points, planes, lines and directions in one matplotlib scene.

    point       a dot                              line       a segment through the scene
    plane       a square with its normal           direction  an arrow from the scene's centre

The scene is a cube around the centre of the points, large enough to show a part of every object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .algebra import BLADES, E123, GRADES, grade
from .geometry import EPSILON, extract_direction, extract_line, extract_plane, extract_point

if TYPE_CHECKING:
    from mpl_toolkits.mplot3d import Axes3D

COLORS = {"point": "#1f4e79", "plane": "#d98e04", "line": "#2a7f62", "direction": "#b03a5b"}
"""The kinds of objects and their colours."""

# In units of half the scene's side:
_SQUARE = 0.6  # half the side of a plane's square
_NORMAL = 0.35  # length of a plane's normal
_ARROW = 0.75  # length of the longest direction
_MARGIN = 1.25  # half the side, relative to the distance of the farthest object


class _Scene(NamedTuple):
    center: Tensor
    half: float


def draw(
    mv: Tensor,
    *,
    kinds: str | Sequence[str] | None = None,
    ax: Axes3D | None = None,
    colors: Any = None,
    extent: float | None = None,
) -> Axes3D:
    """Draw multivectors (..., 16) and return the 3-D axes.

    kinds: "point", "plane", "line" or "direction" for all, or a list with one per multivector. By
        default the grade with the largest coefficients decides; a trivector without e123 is a
        direction.
    ax: axes with `projection="3d"` to draw into (default: axes of a new figure).
    colors: one matplotlib colour, or a list with one per multivector (default: one per kind).
    extent: half the side of the cube shown around the scene's centre (default: to fit the objects).

    All normals have the same length; directions keep their relative lengths. `ax.legend()` names
    the kinds.
    """
    if mv.shape[-1:] != (BLADES,):
        raise ValueError(f"a multivector must have shape (..., {BLADES}), got {tuple(mv.shape)}")
    flat = mv.detach().cpu().double().reshape(-1, BLADES)
    if not bool(flat.isfinite().all()):
        raise ValueError("the multivectors have NaN or infinite values; there is nothing to draw")
    if extent is not None and not 0 < extent < float("inf"):
        raise ValueError(f"extent must be a positive number, got {extent!r}")
    names = _names(flat, kinds)
    groups = {kind: [i for i, name in enumerate(names) if name == kind] for kind in COLORS}
    scene = _scene({kind: flat[where] for kind, where in groups.items()}, extent)

    ax = _axes(ax)
    shades = _shades(colors, names)
    before = _limits(ax) if ax.has_data() and extent is None else None
    for kind, where in groups.items():
        if where:
            _DRAW[kind](ax, flat[where], [shades[i] for i in where], scene)
    _show(ax, scene, before)
    return ax


def _names(mv: Tensor, kinds: str | Sequence[str] | None) -> list[str]:
    """The kind of every multivector, checked against what it holds."""
    if kinds is None:
        names = [_guess(i, x) for i, x in enumerate(mv)]
    else:
        names = [kinds] * len(mv) if isinstance(kinds, str) else list(kinds)
    if len(names) != len(mv):
        raise ValueError(f"got {len(names)} kinds for {len(mv)} multivectors")
    for i, (name, x) in enumerate(zip(names, mv, strict=True)):
        if name not in COLORS:
            raise ValueError(f"unknown kind {name!r}; expected one of {', '.join(COLORS)}")
        part, lacking, least = _REQUIRED[name]
        if not bool(part(x).norm() > least):
            raise ValueError(f"multivector {i} cannot be drawn as a {name}: it has no {lacking}")
    return names


def _guess(i: int, x: Tensor) -> str:
    weights = torch.stack([x[grade(k)].square().sum() for k in range(GRADES)])
    trivector = "point" if x[E123].abs() > EPSILON else "direction"
    found = ("scalar", "plane", "line", trivector, "pseudoscalar")[int(weights.argmax())]
    if found not in COLORS or not weights.any():
        what = f"mostly {found}" if weights.any() else "zero"
        raise ValueError(
            f"multivector {i} is {what}, which has no picture; leave it out or pass kinds"
        )
    return found


_REQUIRED: dict[str, tuple[Callable[[Tensor], Tensor], str, float]] = {
    "point": (lambda x: x[E123], "e123 part (its weight)", EPSILON),
    "plane": (lambda x: extract_plane(x)[0], "e1, e2, e3 part (its normal)", 0.0),
    "line": (lambda x: extract_line(x)[0], "e12, e13, e23 part (its direction)", 0.0),
    "direction": (extract_direction, "e012, e013, e023 part", 0.0),
}
"""The part of a multivector that each kind requires, its name, and what its size must exceed."""


def _scene(groups: dict[str, Tensor], extent: float | None) -> _Scene:
    points, planes, lines = extract_point(groups["point"]), groups["plane"], groups["line"]
    origin = points.new_zeros(3)
    around = points
    if not len(points):
        around = torch.cat([_plane_near(planes, origin), _line_near(lines, origin)])
    center = (around.amin(0) + around.amax(0)) / 2 if len(around) else origin
    seen = torch.cat([points, _plane_near(planes, center), _line_near(lines, center)])
    size = float((seen - center).abs().max()) if len(seen) else 0.0
    return _Scene(center, extent if extent is not None else _MARGIN * size or 1.0)


def _plane_near(mv: Tensor, point: Tensor) -> Tensor:
    """The point of every plane that is closest to the given point."""
    normal, position = extract_plane(mv, epsilon=0.0)
    unit = F.normalize(normal, dim=-1)
    height = ((position - point) * unit).sum(-1, keepdim=True)
    return point + height * unit


def _line_near(mv: Tensor, point: Tensor) -> Tensor:
    """The point of every line that is closest to the given point."""
    direction, moment = extract_line(mv)
    about_point = moment - torch.linalg.cross(point.expand_as(direction), direction)
    squared = direction.square().sum(-1, keepdim=True)
    away: Tensor = torch.linalg.cross(direction, about_point) / squared
    return point + away


def _draw_points(ax: Axes3D, mv: Tensor, colors: list[Any], scene: _Scene) -> None:
    columns = extract_point(mv).mT.tolist()
    ax.scatter(*columns, c=colors, s=36, depthshade=False, label="point")


def _draw_planes(ax: Axes3D, mv: Tensor, colors: list[Any], scene: _Scene) -> None:
    from matplotlib.colors import to_rgba
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    at = _plane_near(mv, scene.center)
    normal = F.normalize(extract_plane(mv)[0], dim=-1)
    first, second = _tangents(normal)
    corners = torch.stack([first + second, first - second, -first - second, second - first], dim=1)
    squares = at[:, None] + _SQUARE * scene.half * corners
    ax.add_collection3d(
        Poly3DCollection(
            squares.numpy(),
            facecolors=[to_rgba(color, 0.25) for color in colors],
            edgecolors=colors,
            linewidths=0.8,
            label="plane",
        )
    )
    _arrows(ax, at, _NORMAL * scene.half * normal, colors, 1.6, None)


def _tangents(normal: Tensor) -> tuple[Tensor, Tensor]:
    """Two unit vectors that span the plane of each unit normal."""
    axis = torch.eye(3, dtype=normal.dtype)[normal.abs().argmin(-1)]
    first = F.normalize(torch.linalg.cross(normal, axis), dim=-1)
    return first, torch.linalg.cross(normal, first)


def _draw_lines(ax: Axes3D, mv: Tensor, colors: list[Any], scene: _Scene) -> None:
    from mpl_toolkits.mplot3d.art3d import Line3DCollection

    at = _line_near(mv, scene.center)
    step = scene.half * F.normalize(extract_line(mv)[0], dim=-1)
    ends = torch.stack([at - step, at + step], dim=1)
    ax.add_collection3d(Line3DCollection(ends.numpy(), colors=colors, linewidths=1.8, label="line"))


def _draw_directions(ax: Axes3D, mv: Tensor, colors: list[Any], scene: _Scene) -> None:
    vectors = extract_direction(mv)
    vectors = vectors * (_ARROW * scene.half / vectors.norm(dim=-1).max())
    _arrows(ax, scene.center.expand_as(vectors), vectors, colors, 2.2, "direction")


_DRAW = {
    "point": _draw_points,
    "plane": _draw_planes,
    "line": _draw_lines,
    "direction": _draw_directions,
}


def _arrows(
    ax: Axes3D, start: Tensor, arrow: Tensor, colors: list[Any], width: float, label: str | None
) -> None:
    """One quiver per arrow, because a quiver colours segments and an arrow consists of three."""
    for tail, vector, color in zip(start.tolist(), arrow.tolist(), colors, strict=True):
        ax.quiver(*tail, *vector, color=color, linewidth=width, arrow_length_ratio=0.2, label=label)
        label = None  # one entry in the legend


def _shades(colors: Any, names: list[str]) -> list[Any]:
    from matplotlib.colors import is_color_like

    if colors is None:
        return [COLORS[name] for name in names]
    shades = [colors] * len(names) if is_color_like(colors) else list(colors)
    if len(shades) != len(names):
        raise ValueError(f"got {len(shades)} colors for {len(names)} multivectors")
    for shade in shades:
        if not is_color_like(shade):
            raise ValueError(f"{shade!r} is not a matplotlib colour")
    return shades


def _axes(ax: Axes3D | None) -> Axes3D:
    if ax is not None and getattr(ax, "name", None) != "3d":
        raise TypeError(
            f"ax must be 3-D axes, got {type(ax).__name__}; make them with "
            'figure.add_subplot(projection="3d")'
        )
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "draw needs matplotlib; install it with `pip install flashgatr[experiments]`"
        ) from error
    return pyplot.figure().add_subplot(projection="3d") if ax is None else ax


def _limits(ax: Axes3D) -> Tensor:
    """Lower and upper limit of each axis, (3, 2)."""
    return torch.tensor([ax.get_xlim(), ax.get_ylim(), ax.get_zlim()], dtype=torch.float64)


def _show(ax: Axes3D, scene: _Scene, before: Tensor | None) -> None:
    """Set the limits to the scene's cube, extended by the earlier limits `before`."""
    low, high = scene.center - scene.half, scene.center + scene.half
    if before is not None:
        low, high = torch.minimum(low, before[:, 0]), torch.maximum(high, before[:, 1])
    middle, half = (low + high) / 2, float((high - low).max()) / 2
    for axis, at in zip("xyz", middle.tolist(), strict=True):
        ax.set(**{f"{axis}lim": (at - half, at + half), f"{axis}label": axis})
    ax.locator_params(nbins=5)  # more labels would overlap
    ax.set_box_aspect((1, 1, 1))
