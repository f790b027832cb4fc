"""The picture of a prediction shows both sides of the wall, with arrows along the stress."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.quiver import Quiver

from flashgatr.experiments.arteries.vessel import prediction_picture
from flashgatr.experiments.report import plots

from ..walls import tube


@pytest.fixture
def draw(monkeypatch):
    """Draws a picture and returns its figure."""
    figures = []
    monkeypatch.setattr(plots, "png", lambda figure: figures.append(figure) or b"a picture")

    def picture(mesh, found):
        prediction_picture.picture(mesh, found)
        return figures[-1]

    return picture


def of_kind(ax, kind):
    return [x for x in ax.collections if isinstance(x, kind)]


def unlabelled(mesh):
    return type(mesh)(**{**vars(mesh), "wss": None})


def test_a_prediction_alone_is_one_column(draw):
    mesh = tube(2, 240, faces=True)
    figure = draw(unlabelled(mesh), mesh.wss)
    above, below, bar = figure.axes
    assert above.get_title(loc="left") == "predicted stress"
    assert bar.get_xlabel() == "|wss|, dyn/cm²"
    assert [text.get_text() for text in below.texts] == ["the other side"]
    assert [text.get_text() for text in above.texts] == ["inlet"]
    most = np.linalg.norm(mesh.wss, axis=1)[mesh.mask].max()
    assert bar.get_xlim() == (0.0, pytest.approx(most))


def test_labels_and_errors_stand_beside_the_prediction(draw):
    mesh = tube(2, 240, faces=True)
    figure = draw(mesh, 0.5 * mesh.wss)
    titles = [ax.get_title(loc="left") for ax in figure.axes[:3]]
    assert titles == ["predicted stress", "reference", "error"]
    most = np.linalg.norm(mesh.wss, axis=1)[mesh.mask].max()
    limits = [ax.get_xlim()[1] for ax in figure.axes[6:]]
    assert limits == pytest.approx([most, most, most / 4])
    assert [ax.get_xlabel()[:7] for ax in figure.axes[6:]] == ["|wss|, ", "|wss|, ", "|error|"]
    arrows = [len(of_kind(ax, Quiver)) for ax in figure.axes[:6]]
    assert arrows == [1, 1, 0, 1, 1, 0]


def test_every_face_is_seen_from_one_side_and_the_inlet_is_on_the_left(draw):
    mesh = tube(2, 240, faces=True)
    above, below, _ = draw(unlabelled(mesh), mesh.wss).axes
    faces = [len(of_kind(ax, PolyCollection)[0].get_paths()) for ax in (above, below)]
    assert sum(faces) == pytest.approx(len(mesh.face), abs=4)  # some are seen from neither
    assert min(faces) > 0.3 * len(mesh.face)
    (mark,) = above.texts
    left, right = above.get_xlim()
    assert left < mark.xy[0] < (3 * left + right) / 4
    for ax in (above, below):
        (low, high), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        corners = np.concatenate([p.vertices for p in of_kind(ax, PolyCollection)[0].get_paths()])
        assert (corners > [low, bottom]).all()
        assert (corners < [high, top]).all()


def test_the_picture_keeps_proportions(draw):
    mesh = tube(2, 240, faces=True)
    above, below, _ = draw(unlabelled(mesh), mesh.wss).axes
    for ax in (above, below):
        corners = of_kind(ax, PolyCollection)[0].get_paths()[0].vertices[:3]
        edges = np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1)
        longest = np.linalg.norm(np.ptp(mesh.position, axis=0))
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        assert (edges > 0).any()
        assert np.hypot(right - left, top - bottom) < 1.2 * longest
    assert above.get_ylim() == pytest.approx(tuple(-y for y in below.get_ylim()[::-1]), rel=1e-4)


def test_arrows_point_along_the_stress_inside_the_mask(draw):
    mesh = tube(2, 240, faces=True)
    above, below, _ = draw(unlabelled(mesh), mesh.wss).axes
    for ax in (above, below):
        (arrows,) = of_kind(ax, Quiver)
        assert 5 < len(arrows.U) <= prediction_picture.ARROWS
        # The flow is along the vessel, from the inlet on the left, and in the plane of the picture.
        length = np.hypot(arrows.U, arrows.V)
        assert (0.6 * length < arrows.U).all()
        assert np.allclose(length, 0.45 * mesh.inlet_diameter, rtol=0.05)
        left, right = ax.get_xlim()
        inside = (np.array(arrows.X) - left) / (right - left)
        assert 0.05 < inside.min() < 0.25
        assert 0.75 < inside.max() < 0.95


def test_nodes_outside_the_mask_are_pale(draw):
    mesh = tube(2, 240, faces=True)
    ones = np.tile(np.float32([1, 0, 0]), (mesh.nodes, 1))
    full = type(mesh)(**{**vars(unlabelled(mesh)), "mask": np.ones(mesh.nodes, bool)})
    colors = []
    for each in (unlabelled(mesh), full):
        above, *_ = draw(each, ones).axes
        colors.append(of_kind(above, PolyCollection)[0].get_facecolor()[:, :3])
    paler = (colors[0] > colors[1] + 1e-6).all(axis=1)
    assert 0.1 < paler.mean() < 0.5
    white = colors[0][paler] - colors[1][paler]
    assert np.allclose(white, prediction_picture.PALE * (1 - colors[1][paler]))
    assert np.allclose(colors[0][~paler], colors[1][~paler])
