"""Pictures and films of the world without a graphics system.

`picture` draws one state, `film` writes an animated GIF. The table and the shadows on it are
painted first. Polygons follow, with a depth per pixel that decides which one is in front.
Everything is painted at twice the size and reduced, which smooths edges. This needs numpy and
Pillow, which matplotlib brings along.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import shapes
from .arrays import Floats

SIZE = (480, 360)
LIGHT = np.array([-0.35, -0.55, 0.76]) / np.linalg.norm([-0.35, -0.55, 0.76])
SKY, TABLE, LINES, SHADOW = (245, 247, 250), (222, 226, 233), (206, 211, 220), (188, 194, 205)
TRAIL = (120, 82, 169)
_TABLE = 0.85  # half the side of the part of the table that is drawn, in metres
_SMOOTH = 2  # painted pixels per pixel


class Camera(NamedTuple):
    """Where the picture is taken from: direction in degrees, distance in metres."""

    azimuth: float = -52.0
    elevation: float = 30.0
    distance: float = 3.1
    target: tuple[float, float, float] = (0.0, 0.0, 0.1)
    zoom: float = 2.7

    @property
    def eye(self) -> Floats:
        """The place of the camera."""
        return np.asarray(np.array(self.target) + self.distance * self._back)

    @property
    def _back(self) -> Floats:
        a, e = np.radians([self.azimuth, self.elevation])
        return np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])

    def project(self, points: Floats, size: tuple[int, int]) -> tuple[Floats, Floats]:
        """Pixels (..., 2) and depths (...) of points."""
        a, back = np.radians(self.azimuth), self._back
        right = np.array([-np.sin(a), np.cos(a), 0.0])
        seen = (points - np.array(self.target)) @ np.stack([right, np.cross(back, right), back]).T
        depth = self.distance - seen[..., 2]
        flat = self.zoom * size[1] / 2 * seen[..., :2] / np.maximum(depth, 0.05)[..., None]
        return flat * [1, -1] + np.array(size) / 2, depth


def picture(
    state: Floats,
    *,
    trail: Floats | None = None,
    size: tuple[int, int] = SIZE,
    camera: Camera = Camera(),  # noqa: B008 (immutable)
) -> npt.NDArray[np.uint8]:
    """A picture (height, width, 3) of a state (39), with a path of points (n, 3) if given."""
    return np.asarray(_paint(state, trail, size, camera), dtype=np.uint8)


def film(
    path: str | os.PathLike[str],
    states: Floats,
    *,
    trail: Floats | None = None,
    every: int = 2,
    size: tuple[int, int] = SIZE,
    camera: Camera = Camera(),  # noqa: B008 (immutable)
) -> None:
    """Write an animated GIF of states (T, 39), of which every `every`-th is shown, in real time."""
    from ....io import files

    shown = [*states[::every], *([states[-1]] * 6)]  # the end rests for a moment
    frames = [_paint(state, trail, size, camera) for state in shown]
    palette = frames[0].quantize(128)
    small = [frame.quantize(palette=palette, dither=0) for frame in frames]
    content = io.BytesIO()
    duration = round(1000 * every / 24)
    small[0].save(content, "GIF", save_all=True, append_images=small[1:], duration=duration, loop=0)
    files.write(Path(path), content.getvalue())


def _paint(state: Floats, trail: Floats | None, size: tuple[int, int], camera: Camera) -> Any:
    from PIL import Image, ImageDraw

    large = (size[0] * _SMOOTH, size[1] * _SMOOTH)
    image = Image.new("RGB", large, SKY)
    draw = ImageDraw.Draw(image)
    _paint_table(draw, large, camera)
    faces = shapes.world(state)
    _paint_shadow(draw, faces, large, camera)
    pixels = np.array(image)
    _paint_faces(pixels, faces, large, camera)
    image = Image.fromarray(pixels)
    if trail is not None and len(trail) > 1:
        dots, _ = camera.project(np.asarray(trail), large)
        line = [tuple(p) for p in dots]
        ImageDraw.Draw(image).line(line, fill=TRAIL, width=2 * _SMOOTH, joint="curve")
    return image.resize(size, Image.Resampling.LANCZOS)


def _paint_faces(
    pixels: npt.NDArray[np.uint8], faces: shapes.Faces, size: tuple[int, int], camera: Camera
) -> None:
    """Paint the faces that look at the camera, each pixel in the colour of the nearest one."""
    eye = camera.eye
    shade = _shade(faces, eye)
    flat, depth = camera.project(faces.corners, size)
    nearest = np.zeros(size[::-1])  # one over the depth
    front = ((eye - faces.corners.mean(1)) * faces.normal).sum(-1) > 0
    plane = np.concatenate([flat, np.ones_like(flat[..., :1])], axis=-1)
    slope = (np.linalg.pinv(plane) @ (1 / np.maximum(depth, 0.05))[..., None])[..., 0]
    low = np.clip(np.floor(flat.min(1)), 0, size).astype(int)
    high = np.clip(np.ceil(flat.max(1)) + 1, 0, size).astype(int)
    for k in np.flatnonzero(front & (high > low).all(-1) & (depth > 0.1).all(-1)):
        (left, top), (right, bottom) = low[k], high[k]
        x, y = np.arange(left, right) + 0.5, np.arange(top, bottom)[:, None] + 0.5
        a, b = flat[k], np.roll(flat[k], -1, axis=0)
        edge = b - a
        turn = edge[:, 0, None, None] * (y - a[:, 1, None, None])
        side = turn - edge[:, 1, None, None] * (x - a[:, 0, None, None])
        inside = (side >= 0).all(0) | (side <= 0).all(0)
        near = slope[k, 0] * x + slope[k, 1] * y + slope[k, 2]
        here = nearest[top:bottom, left:right]
        wins = inside & (near > here)
        here[wins] = near[wins]
        pixels[top:bottom, left:right][wins] = shade[k]


def _paint_table(draw: Any, size: tuple[int, int], camera: Camera) -> None:
    edge = _TABLE * np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    flat, _ = camera.project(edge, size)
    draw.polygon([tuple(p) for p in flat], fill=TABLE)
    for x in np.linspace(-_TABLE, _TABLE, 9):
        for ends in (((x, -_TABLE, 0), (x, _TABLE, 0)), ((-_TABLE, x, 0), (_TABLE, x, 0))):
            flat, _ = camera.project(np.array(ends), size)
            draw.line([tuple(p) for p in flat], fill=LINES, width=_SMOOTH)


def _paint_shadow(draw: Any, faces: shapes.Faces, size: tuple[int, int], camera: Camera) -> None:
    down = faces.corners - faces.corners[..., 2:] / LIGHT[2] * LIGHT
    inside = (abs(down[..., :2]) < _TABLE).all((-1, -2)) & (faces.corners[..., 2] > -1e-6).all(-1)
    flat, _ = camera.project(down, size)
    for k in np.flatnonzero(inside & ((faces.normal * LIGHT).sum(-1) > 0)):
        draw.polygon([tuple(p) for p in flat[k]], fill=SHADOW)


def _shade(faces: shapes.Faces, eye: Floats) -> npt.NDArray[np.int64]:
    """Colours (n, 3): light from all sides, from the lamp, and a highlight."""
    lit = np.maximum((faces.normal * LIGHT).sum(-1), 0)
    sky = 0.5 + 0.5 * faces.normal[:, 2]
    toward = eye - faces.corners.mean(1)
    half = toward / np.linalg.norm(toward, axis=-1, keepdims=True) + LIGHT
    half /= np.linalg.norm(half, axis=-1, keepdims=True)
    shine = np.maximum((faces.normal * half).sum(-1), 0) ** 40
    strength = 0.48 + 0.16 * sky + 0.42 * lit
    color = faces.color * strength[:, None] + 60 * shine[:, None]
    return np.asarray(np.clip(color, 0, 255), dtype=np.int64)
