"""Pictures: the right artists, in the right places."""

import sys

import matplotlib
import pytest
import torch
from matplotlib import pyplot

from flashgatr import (
    embed_direction,
    embed_plane,
    embed_point,
    embed_ray,
    embed_scalar,
    embed_translation,
    versors,
)
from flashgatr.view import COLORS, draw

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


POINTS = vector([1, 2, 3], [-1, 0, 1], [3, 4, -1])
PLANE = embed_plane(vector(0, 0, 2), vector(5, 5, 1))
LINE = embed_ray(vector(0, 1, 0), vector(3, 0, 0))
DIRECTION = embed_direction(vector(0, 0.5, 0))


def artists(ax, name):
    return [a for a in ax.collections if type(a).__name__ == name]


def tips(quiver):
    """Start and end of an arrow's shaft."""
    return torch.as_tensor(quiver._segments3d[0], dtype=torch.float64).flip(0)


def colours(ax, name):
    ax.figure.canvas.draw()  # matplotlib sorts by depth when it draws
    (artist,) = artists(ax, name)
    return sorted(tuple(rgba) for rgba in artist.get_facecolor().tolist())


def test_points_are_dots_at_their_positions_whatever_their_weight():
    weights = vector(1, -2, 0.5)[:, None]
    ax = draw(weights * embed_point(POINTS))
    (dots,) = artists(ax, "Path3DCollection")
    drawn = torch.stack([torch.as_tensor(x).double() for x in dots._offsets3d], -1)
    torch.testing.assert_close(drawn, POINTS)
    assert dots.get_label() == "point"


def test_planes_are_squares_around_the_point_nearest_to_the_centre():
    ax = draw(torch.cat([embed_point(POINTS), PLANE[None]]))
    (square,) = artists(ax, "Poly3DCollection")
    corners = torch.as_tensor(square._faces).double()
    torch.testing.assert_close(corners[..., 2], torch.ones(1, 4).double())
    torch.testing.assert_close(corners.mean(1), vector([1, 2, 1]))  # the centre (1, 2, 1) is on it
    sides = (corners - corners.roll(1, dims=1)).norm(dim=-1)
    torch.testing.assert_close(sides, sides[:, :1].expand_as(sides))
    start, end = tips(artists(ax, "Line3DCollection")[0])
    torch.testing.assert_close(start, vector(1, 2, 1))
    torch.testing.assert_close(torch.nn.functional.normalize(end - start, dim=0), vector(0, 0, 1))


def test_lines_are_segments_through_the_scene():
    ax = draw(torch.cat([embed_point(POINTS), LINE[None]]))
    (segment,) = artists(ax, "Line3DCollection")
    ends = torch.as_tensor(segment._segments3d).double()[0]
    torch.testing.assert_close(ends[:, 1:], vector([1, 0], [1, 0]))
    torch.testing.assert_close(
        ends.mean(0)[0], vector(1)[0]
    )  # halfway next to the centre (1, 2, 1)
    assert ends[1, 0] > ends[0, 0]


def test_directions_are_arrows_from_the_centre_in_proportion():
    ax = draw(torch.stack([*embed_point(POINTS), DIRECTION, 2 * DIRECTION]))
    short, long = (tips(arrow) for arrow in artists(ax, "Line3DCollection"))
    for start, end in (short, long):
        torch.testing.assert_close(start, vector(1, 2, 1))
        torch.testing.assert_close((end - start)[[0, 2]], vector(0, 0))
    torch.testing.assert_close(long[1] - long[0], 2 * (short[1] - short[0]))


def test_the_scene_is_a_cube_that_holds_all_points():
    ax = draw(embed_point(POINTS))
    limits = vector(ax.get_xlim(), ax.get_ylim(), ax.get_zlim())
    torch.testing.assert_close(limits.mean(-1), vector(1, 2, 1))
    sides = limits.diff()
    torch.testing.assert_close(sides, sides[:1].expand_as(sides))
    assert (limits[:, 0] < POINTS.amin(0)).all()
    assert (limits[:, 1] > POINTS.amax(0)).all()


@pytest.mark.parametrize("scale", [1, 3, 4, 7])
def test_axes_have_few_ticks_so_that_labels_do_not_overlap(scale):
    ax = draw(embed_point(scale * POINTS))
    for axis in "xyz":
        low, high = getattr(ax, f"get_{axis}lim")()
        assert 2 <= sum(low <= at <= high for at in getattr(ax, f"get_{axis}ticks")()) <= 6


def test_the_picture_moves_with_the_scene():
    shift = vector(100, -50, 20)
    scene = torch.stack([*embed_point(POINTS), PLANE, LINE, DIRECTION])
    here = draw(scene)
    there = draw(versors.apply(embed_translation(shift), scene))
    for axis, by in zip("xyz", shift.tolist(), strict=True):
        low, high = getattr(here, f"get_{axis}lim")()
        assert getattr(there, f"get_{axis}lim")() == pytest.approx((low + by, high + by))
    (square,), (moved,) = artists(here, "Poly3DCollection"), artists(there, "Poly3DCollection")
    before, after = (torch.as_tensor(x._faces).double() for x in (square, moved))
    torch.testing.assert_close(after, before + shift)


def test_scenes_without_points_are_centred_on_planes_and_lines():
    ax = draw(torch.stack([PLANE, LINE]))
    limits = vector(ax.get_xlim(), ax.get_ylim(), ax.get_zlim())
    torch.testing.assert_close(limits.mean(-1), vector(0, 0.5, 0.5))


def test_a_lonely_direction_or_nothing_at_all_shows_the_unit_cube():
    for mv in (DIRECTION, torch.zeros(0, 16)):
        assert draw(mv).get_xlim() == pytest.approx((-1, 1))


def test_extent_fixes_the_size():
    assert draw(embed_point(POINTS), extent=10).get_xlim() == pytest.approx((-9, 11))


def test_kinds_override_the_guess():
    mixed = embed_point(POINTS[0]) + 100 * embed_scalar(vector(1.0)) + PLANE
    assert artists(draw(mixed, kinds="point"), "Path3DCollection")
    ax = draw(torch.stack([mixed, mixed]), kinds=["plane", "point"])
    assert len(artists(ax, "Poly3DCollection")) == len(artists(ax, "Path3DCollection")) == 1


def test_colours_go_to_their_multivectors():
    mv = torch.stack([PLANE, *embed_point(POINTS[:2])])
    ax = draw(mv, colors=["red", "lime", "blue"])
    assert colours(ax, "Path3DCollection") == [(0, 0, 1, 1), (0, 1, 0, 1)]
    assert colours(ax, "Poly3DCollection") == [(1, 0, 0, 0.25)]
    ax = draw(mv, colors=(0.0, 1.0, 1.0))
    assert colours(ax, "Path3DCollection") == [(0, 1, 1, 1)] * 2


def test_a_second_call_adds_to_the_picture():
    ax = draw(embed_point(POINTS))
    again = draw(embed_point(POINTS + 10), ax=ax, colors="red")
    assert again is ax
    assert len(artists(ax, "Path3DCollection")) == 2
    assert ax.get_xlim()[0] < -1
    assert ax.get_xlim()[1] > 13


def test_a_legend_names_every_kind_once():
    planes = torch.stack([PLANE, PLANE + embed_plane(vector(1, 0, 0), vector(0, 0, 0))])
    directions = torch.stack([DIRECTION, 2 * DIRECTION])
    ax = draw(torch.cat([embed_point(POINTS), planes, LINE[None], directions]))
    assert sorted(text.get_text() for text in ax.legend().get_texts()) == sorted(COLORS)
    ax.figure.canvas.draw()


def test_low_precision_leading_axes_and_gradients_are_fine():
    mv = embed_point(POINTS).bfloat16().reshape(3, 1, 16).requires_grad_()
    (dots,) = artists(draw(mv), "Path3DCollection")
    assert len(dots._offsets3d[0]) == 3


@pytest.mark.parametrize(
    ("mv", "options", "message"),
    [
        (torch.zeros(4, 3), {}, r"shape \(\.\.\., 16\), got \(4, 3\)"),
        (torch.full((2, 16), torch.nan), {}, "NaN"),
        (torch.zeros(16), {}, "multivector 0 is zero"),
        (embed_scalar(vector(1.0)), {}, "mostly scalar"),
        (PLANE, {"kinds": "circle"}, "unknown kind 'circle'"),
        (PLANE, {"kinds": ["plane", "plane"]}, "got 2 kinds for 1 multivectors"),
        (PLANE, {"kinds": "point"}, "no e123 part"),
        (PLANE, {"kinds": "line"}, "no e12, e13, e23 part"),
        (LINE, {"kinds": "plane"}, "no e1, e2, e3 part"),
        (LINE, {"kinds": "direction"}, "no e012, e013, e023 part"),
        (PLANE, {"extent": -1}, "extent must be a positive number"),
        (PLANE, {"extent": float("nan")}, "extent must be a positive number"),
        (PLANE, {"colors": ["red", "blue"]}, "got 2 colors for 1 multivectors"),
        (PLANE, {"colors": ["no-such-colour"]}, "is not a matplotlib colour"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(mv, options, message):
    with pytest.raises(ValueError, match=message):
        draw(mv, **options)


def test_flat_axes_are_refused():
    with pytest.raises(TypeError, match="ax must be 3-D axes, got Axes"):
        draw(PLANE, ax=pyplot.figure().add_subplot())


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install flashgatr\[experiments\]"):
        draw(PLANE)
