"""Limits, labels, references and marks of pictures; `test_drawn_data` is about what they draw."""

import math

import numpy as np
import pytest

from flashgatr.experiments.arteries.report import errors
from flashgatr.experiments.bench import scaling
from flashgatr.experiments.nbody.report import data_efficiency, trajectories
from flashgatr.experiments.nbody.report.titles import SETS
from flashgatr.experiments.nbody.report.trajectories import Scene
from flashgatr.experiments.report import learning_curves, plots
from flashgatr.experiments.report.learning_curves import Curve
from flashgatr.experiments.robotics.report import data_efficiency as rewards

LABELS = ["GATr", "Transformer"]
BLUE, ORANGE = (plots.LOOKS[label][0] for label in LABELS)


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, instead of files."""
    found = []
    monkeypatch.setattr(plots, "png", lambda figure: found.append(figure) or b"a picture")
    return found


def group(label, samples, **results):
    """A group of a report; a result is a mean and a standard error."""
    found = {
        name: {
            metric: dict(mean=mean, standard_error=error) for metric, (mean, error) in of.items()
        }
        for name, of in results.items()
    }
    return dict(label=label, samples=samples, results=found)


def lines(ax, color):
    """The points of every line of a colour, without those of error bars' caps."""
    found = [line.get_xydata() for line in ax.lines if line.get_color() == color]
    return [points.tolist() for points in found if len(points)]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


# ---- error against samples ----


def n_body_report(guess=None):
    mse = {"eval": {"mse": (2e-3, 1e-4)}, "translated": {"mse": (4e-3, None)}}
    groups = [
        group("GATr", 100, **mse),
        group("GATr", 1000, eval={"mse": (1e-3, 5e-5)}),
        group("Transformer", 1000, eval={"mse": (8e-3, None)}),
    ]
    reference = {"set": "eval", "samples": 1000, "mse": {"theirs": 5e-4, "close": 5.1e-4}}
    line = {"eval": {"mse": guess}} if guess else {}
    return dict(groups=groups, reference=reference, straight_line=line)


def test_errors_are_drawn_at_their_numbers_of_systems(figures):
    data_efficiency.draw(n_body_report(), LABELS)
    (figure,) = figures
    assert [ax.get_title(loc="left") for ax in figure.axes] == [
        SETS[name][0] for name in ("eval", "more_bodies", "translated")
    ]
    first, empty, last = figure.axes
    ((x, y), (x_2, y_2)) = lines(first, BLUE)[0]
    assert (y, y_2) == (2e-3, 1e-3)
    assert x_2 / x == pytest.approx(10)
    ((x_3, y_3),) = lines(first, ORANGE)[0]
    assert y_3 == 8e-3
    assert x_2 < 1000 < x_3  # side by side around the tick
    assert x_3 / x_2 == pytest.approx(1.05)
    (bar,) = first.collections[0].get_segments()[:1]
    assert bar[:, 1].tolist() == pytest.approx([1.9e-3, 2.1e-3])
    assert lines(empty, BLUE) == lines(last, ORANGE) == []
    assert lines(last, BLUE)[0] == [[100.0, 4e-3]]
    for ax in figure.axes:
        assert ax.get_xscale() == ax.get_yscale() == "log"
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["100", "1,000"]
    assert first.get_ylabel() == "mean squared error"
    assert legend(figure) == LABELS


def test_bars_end_above_zero(figures):
    report = n_body_report()
    report["groups"][0]["results"]["eval"]["mse"]["standard_error"] = 1.0
    data_efficiency.draw(report, LABELS)
    low = min(segment[:, 1].min() for segment in figures[0].axes[0].collections[0].get_segments())
    assert low == pytest.approx(2e-4)


def test_reference_values_are_dashes_at_their_height(figures):
    data_efficiency.draw(n_body_report(guess=0.02), LABELS)
    ax = figures[0].axes[0]
    bottom, top = np.log(ax.get_ylim())
    left, right = np.log(ax.get_xlim())
    low, high = ax.get_ylim()
    assert low < 5e-4
    assert high > 0.02
    texts = {text.get_text(): text for text in ax.texts}
    assert texts.keys() == {"theirs", "close", "straight line"}
    grey = [x for x in lines(ax, plots.GREY) if len(x) == 2]
    dashes, links = grey[0:4:2], grey[1:4:2]
    at = (math.log(1000) - left) / (right - left)
    for value, dash, link, name in zip((5e-4, 5.1e-4), dashes, links, texts, strict=False):
        height = (math.log(value) - bottom) / (top - bottom)
        assert dash[0][1] == dash[1][1] == link[0][1] == pytest.approx(height)
        assert dash[1] == link[0]
        assert 0 < abs(dash[0][0] - at) < abs(dash[1][0] - at) < 0.2
        assert texts[name].get_position()[1] == link[1][1]
    gap = texts["close"].get_position()[1] - texts["theirs"].get_position()[1]
    assert gap == pytest.approx(0.045)  # the names do not overlap
    assert [[0.0, 0.02], [1.0, 0.02]] in grey  # the straight-line guess
    assert not figures[0].axes[2].texts


def test_references_that_the_axis_does_not_reach_are_left_out(figures):
    report = n_body_report()
    report["reference"]["samples"] = 100_000
    data_efficiency.draw(report, LABELS)
    assert not figures[0].axes[0].texts


def test_rewards_are_drawn_beside_the_papers(figures):
    both = {"reward": (60.0, None), "reward_error": (3.0, None), "strict": (20.0, 4.0)}
    report = dict(
        groups=[group("GATr", 1000, plan_mujoco=both), group("Transformer", None)],
        reference={
            "demonstrations": 2000,
            "reward": {"ours": (74.8, 1.0), "CQL (Janner)": (24.4, 1.0), "nothing": (0.0, 1.0),
                       "BCQ (Janner)": (3.0, 1.0)},
        },
    )  # fmt: skip
    rewards.draw(report, LABELS)
    reward, strict = figures[0].axes
    assert [ax.get_title(loc="left") for ax in (reward, strict)] == list(rewards.PANELS.values())
    assert lines(reward, BLUE)[0] == [[1000.0, 60.0]]
    assert lines(strict, BLUE)[0] == [[1000.0, 20.0]]
    bars = [ax.collections[0].get_segments()[0][:, 1].tolist() for ax in (reward, strict)]
    assert bars == [[57.0, 63.0], [16.0, 24.0]]  # over scenes, and over seeds
    assert [x[0][1] for x in lines(reward, plots.GREY)] == [74.8, 24.4, 3.0]
    assert [text.get_text() for text in reward.texts] == ["ours", "CQL"]
    assert not strict.texts
    assert reward.get_ylim() == strict.get_ylim() == (-2, 102)
    report["reference"]["demonstrations"] = 11_000
    rewards.draw(report, LABELS)
    assert not figures[1].axes[0].texts


def test_artery_errors_are_drawn_beside_the_papers(figures):
    groups = [
        group("GATr", 1600, test={"epsilon_mean": (6.0, None)}),
        group("GATr", 100, test={"epsilon_mean": (9.0, 1.0)}),
    ]
    paper = {"meshes": 1600, "epsilon": {"GATr": (5.6, 5.5)}}
    errors.against_meshes(groups, ["GATr"], paper)
    errors.against_meshes(groups, ["GATr"], None)
    for figure in figures:
        (ax,) = figure.axes
        assert lines(ax, BLUE)[0] == [[100.0, 9.0], [1600.0, 6.0]]
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["100", "1,600"]
        assert ax.get_xscale() == ax.get_yscale() == "log"
    marks = figures[0].axes[0].lines[-2:]
    assert [mark.get_xydata().tolist() for mark in marks] == [[[1600.0, 5.6]], [[1600.0, 5.5]]]
    assert [mark.get_markerfacecolor() for mark in marks] == [plots.GREY, "white"]
    assert [text.get_text() for text in figures[0].axes[0].texts] == ["GATr"]
    assert not figures[1].axes[0].texts


def test_histograms_share_their_bins(figures):
    errors.histograms({"GATr": [1.0, 1.1], "Transformer": [10.0]}, LABELS)
    for ax in figures[0].axes:
        assert len(ax.patches) == 30
        assert ax.patches[-1].get_x() + ax.patches[-1].get_width() == pytest.approx(10.01)


def test_short_axes_have_plain_ticks(figures):
    for limits, expected in (((1.0, 9.0), (1, 2, 3, 5, 7)), ((20.0, 60.0), (20, 30, 50))):
        _, (ax,) = plots.panels(1, (3, 3))
        ax.set(yscale="log", ylim=limits)
        plots.plain_ticks(ax)
        assert ax.get_ylim() == limits
        ticks = [y for y in ax.get_yticks() if limits[0] <= y <= limits[1]]
        assert ticks == pytest.approx(expected)
        shown = [ax.yaxis.get_major_formatter()(y) for y in ticks]
        assert shown == [str(y) for y in expected]
    _, (ax,) = plots.panels(1, (3, 3))
    ax.set(yscale="log", ylim=(1e8, 1e8 + 1))
    ax.get_yticks = lambda: [1e8]  # one tick: the axis is extended
    plots.plain_ticks(ax)
    assert ax.get_ylim() == pytest.approx((0.5e8, 2e8))


def test_scaling_is_drawn_with_its_ratios(figures):
    points = {
        "time": {"GATr, width factor 1": [(16, 3.0), (64, 4.0)], "Transformer": [(16, 2.0)]},
        "memory": {"GATr, width factor 1": [(16, 5.0)], "Transformer": [(16, 10.0)]},
    }
    scaling._picture(points)
    time, memory, ratio = figures[0].axes
    color = plots.looks(["GATr, width factor 1"])["GATr, width factor 1"]["color"]
    assert lines(time, color) == [[[16.0, 3.0], [64.0, 4.0]]]
    assert lines(time, ORANGE) == [[[16.0, 2.0]]]
    assert lines(memory, color) == [[[16.0, 5.0]]]
    assert lines(ratio, color) == [[[16.0, 1.5]], [[16.0, 0.5]]]
    styles = [line.get_linestyle() for line in ratio.lines if line.get_color() == color]
    assert styles == ["-", "--"]
    assert lines(ratio, ORANGE) == []
    assert ratio.get_ylim()[0] == 0
    assert legend(figures[0]) == ["GATr, width factor 1", "Transformer"]
    scaling._picture({"time": points["time"], "memory": {}})
    assert len(figures[1].axes) == 2


# ---- curves and paths ----


def test_curves_are_drawn_in_the_panel_of_their_samples(figures):
    curves = [
        Curve("GATr", 100, [(5, 2.0), (10, 1.0)]),
        Curve("Transformer", None, [(k, 3.0 + k) for k in range(1, 31)]),
        Curve("Transformer", 100, []),
    ]
    learning_curves.draw(curves, LABELS, "systems", "error")
    few, everything = figures[0].axes
    assert few.get_title(loc="left") == "100 training systems"
    assert everything.get_title(loc="left") == "all training systems"
    assert lines(few, BLUE) == [[[5.0, 2.0], [10.0, 1.0]]]
    assert lines(few, ORANGE) == lines(everything, BLUE) == []
    assert len(lines(everything, ORANGE)[0]) == 30
    assert [ax.lines[0].get_marker() for ax in (few, everything)] == [".", ""]
    assert few.get_xlim()[0] == everything.get_xlim()[0] == 0
    assert few.get_ylabel() == "error"
    assert legend(figures[0]) == LABELS
    with pytest.raises(ValueError, match="no run has a log"):
        learning_curves.draw(curves[2:], LABELS, "systems", "error")


def test_paths_and_predictions_are_within_their_panel(figures):
    draw = np.random.default_rng(0)
    paths = 50 + np.cumsum(draw.normal(size=(20, 3, 3)) * [1.0, 0.5, 0.01], axis=0)
    mass = np.array([0.1, 5.0, 0.1])
    exact = Scene("exact", mass, paths, {"GATr": paths[-1]})
    still = Scene("still", mass, np.zeros((2, 3, 3)), {"GATr": np.zeros((3, 3))})
    trajectories.draw([exact, still], ["GATr"])
    moving, resting = figures[0].axes
    assert moving.get_title(loc="left") == "exact"
    (left, right), (bottom, top) = moving.get_xlim(), moving.get_ylim()
    every = np.concatenate([line.get_xydata() for line in moving.lines])
    assert (every > [left, bottom]).all()
    assert (every < [right, top]).all()
    extent = np.ptp(every, axis=0)
    assert right - left == pytest.approx(1.2 * extent.max())
    assert top - bottom == pytest.approx(right - left)
    ends = [line for line in moving.lines if line.get_color() == "black"]
    assert [line.get_markersize() for line in ends] == [4, 7, 4]  # the star is the largest
    found = lines(moving, BLUE)
    for end, pair in zip(ends, found[:3], strict=True):
        np.testing.assert_allclose(np.array(pair), end.get_xydata().repeat(2, axis=0))
    np.testing.assert_allclose(found[3], [end.get_xydata()[0] for end in ends])
    # Seen along the axis of least extent, distances between the bodies are nearly those in space.
    flat, space = (
        np.linalg.norm(x[0] - x[2]) for x in ([e.get_xydata()[0] for e in ends], paths[-1])
    )
    assert flat == pytest.approx(space, rel=0.02)
    assert resting.get_xlim() == (-1.0, 1.0)
    assert legend(figures[0]) == ["beginning", "end (large: the star)", "GATr"]
