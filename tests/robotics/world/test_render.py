"""Pictures show the blocks where they are, in front of what is behind them."""

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy.spatial import ConvexHull

from flashgatr.experiments.robotics.world import render, scenes, shapes
from flashgatr.experiments.robotics.world.render import Camera

SIZE = (160, 120)
ABOVE = Camera(azimuth=-90.0, elevation=89.9, target=(0.0, 0.0, 0.0))
"""Looks down; x points right and y up."""


def scene():
    return scenes.scenes("test", 1)[0]


def share(picture, color, tolerance=60):
    """Where a picture has about this hue."""
    ratio = picture / np.maximum(picture.sum(-1, keepdims=True), 1)
    return np.abs(ratio - color / color.sum()).sum(-1) < tolerance / 1000


def test_blocks_are_drawn_where_they_are():
    state = scene()
    picture = render.picture(state, size=SIZE, camera=ABOVE).astype(float)
    for k, color in enumerate(shapes.COLORS):
        place, _ = ABOVE.project(state[7 + 8 * k : 10 + 8 * k], SIZE)
        rows, columns = np.nonzero(share(picture, color))
        assert len(rows) > 20
        if k != 3:  # the amber of block 3 is close to the orange of the joints
            assert np.hypot(columns.mean() - place[0], rows.mean() - place[1]) < 3


def test_a_block_hides_what_is_below_it():
    state = scene()
    state[15:18] = state[7:10] + np.array([0, 0, 0.06])
    picture = render.picture(state, size=SIZE, camera=ABOVE).astype(float)
    assert share(picture, shapes.COLORS[1]).sum() > 20
    assert share(picture, shapes.COLORS[0]).sum() < 5


@pytest.mark.parametrize("turn", [0.0, -0.95, 0.9, 2.2])
def test_shadows_have_no_holes_and_fall_away_from_the_light(turn):
    c, s = np.cos(turn), np.sin(turn)
    axes = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    box = shapes.box(np.array([0, 0, 0.3]), axes, np.array([0.1, 0.1, 0.25]), np.ones(3))
    image = Image.new("RGB", SIZE)
    render._paint_shadow(ImageDraw.Draw(image), box, SIZE, ABOVE)
    found = np.array(image).any(-1)
    down = box.corners - box.corners[..., 2:] / render.LIGHT[2] * render.LIGHT
    flat, _ = ABOVE.project(down.reshape(-1, 3), SIZE)
    assert found.sum() == pytest.approx(ConvexHull(flat).volume, rel=0.15)
    rows, columns = np.nonzero(found)
    assert np.allclose([columns.mean(), rows.mean()], flat.mean(0), atol=1.5)
    under, _ = ABOVE.project(np.zeros(3), SIZE)
    assert np.hypot(*(flat.mean(0) - under)) > 5


def test_a_trail_is_drawn_on_top():
    state = scene()
    trail = np.array([[-0.4, -0.4, 0.5], [0.4, -0.4, 0.5]])
    plain, drawn = (render.picture(state, size=SIZE, trail=x) for x in (None, trail))
    assert 20 < (plain != drawn).any(-1).sum() < 1000


def test_normals_point_outwards():
    for faces in (
        shapes.box(np.zeros(3), np.eye(3), np.array([1.0, 2, 3]), np.ones(3)),
        shapes.ball(np.zeros(3), 1.0, np.ones(3)),
        shapes.tube(np.array([0, 0, -1.0]), np.array([0, 0, 1.0]), (1.0, 0.5), np.ones(3)),
    ):
        assert ((faces.corners.mean(1) * faces.normal).sum(-1) > 0).all()
        assert np.allclose(np.linalg.norm(faces.normal, axis=-1), 1, atol=0.02)


def test_a_film_is_an_animated_gif(tmp_path):
    states = np.repeat(scene()[None], 9, 0)
    states[:, 0] = np.linspace(0, 1, 9)
    render.film(tmp_path / "film.gif", states, every=4, size=SIZE)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.size == SIZE
        assert 3 <= film.n_frames <= 9  # equal frames at the end are merged
        assert film.info["duration"] > 0
