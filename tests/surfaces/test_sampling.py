"""Farthest points, balls and nearest nodes, against the plain definitions."""

import numpy as np
import pytest

from flashgatr.experiments.baselines.surfaces.sampling import (
    farthest_points,
    members,
    nearest,
    within,
)

from .walls import motion, wall


def distances(a, b):
    return np.linalg.norm(a[:, None] - b[None], axis=-1)


def grid(side=6):
    """A regular grid, in which most distances occur several times."""
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    return np.stack([x.ravel(), y.ravel(), 0 * x.ravel()], axis=-1).astype(np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_each_farthest_point_is_the_one_farthest_from_those_before(seed):
    position, *_ = wall(seed)
    chosen = [np.linalg.norm(position - position.mean(0), axis=1).argmax()]
    while len(chosen) < 30:
        chosen.append(distances(position, position[chosen]).min(axis=1).argmax())
    np.testing.assert_array_equal(farthest_points(position, 30), np.sort(chosen))


def test_among_equally_far_points_the_lowest_number_wins():
    corners = np.array([[1.0, 1, 0], [-1, 1, 0], [1, -1, 0], [-1, -1, 0], [0, 0, 0]])
    assert farthest_points(corners, 2).tolist() == [0, 3]
    assert farthest_points(corners, 3).tolist() == [0, 1, 3]
    assert farthest_points(np.zeros((5, 3)), 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 6])
def test_more_points_than_there_are_cannot_be_chosen(count):
    with pytest.raises(ValueError, match=f"cannot choose {count} of 5 nodes"):
        farthest_points(np.zeros((5, 3)), count)


@pytest.mark.parametrize("most", [4, 100])
def test_a_ball_holds_the_nearest_nodes_within_its_radius(most):
    position, *_ = wall(0)
    centres = position[::7] + 0.01
    found = within(position, centres, 0.3, most)
    for own, row in zip(found, distances(centres, position), strict=True):
        inside = np.flatnonzero(row <= 0.3)
        expected = inside[np.argsort(row[inside])][:most]
        np.testing.assert_array_equal(own[own >= 0], expected)
        assert (own[len(expected) :] == -1).all()


def test_a_ball_includes_its_surface_and_prefers_low_numbers():
    found = within(grid(3), grid(3)[[4]], 1.0, 4)
    assert found.tolist() == [[4, 1, 3, 5]]  # of the neighbours 1, 3, 5, 7


def test_a_ball_may_be_empty():
    assert within(grid(), np.full((2, 3), 100.0), 1.0, 5).shape == (2, 0)


@pytest.mark.parametrize("position", [wall(1)[0], grid()], ids=["wall", "grid"])
def test_the_nearest_targets_are_found(position):
    targets = position[::3]
    table = distances(position, targets)
    expected = [np.lexsort((np.arange(len(targets)), row))[:3] for row in table]
    np.testing.assert_array_equal(nearest(position, targets, 3), expected)


def test_missing_targets_are_marked():
    assert nearest(grid(2), grid(2)[:2], 3).tolist()[3] == [1, 0, -1]


def test_members_are_those_with_this_parent():
    assert members(np.array([2, 0, 2, 2]), 4).tolist() == [
        [1, -1, -1], [-1, -1, -1], [0, 2, 3], [-1, -1, -1]
    ]  # fmt: skip


@pytest.mark.parametrize("mirror", [False, True])
def test_moving_turning_and_mirroring_a_surface_changes_no_number(mirror):
    position, *_ = wall(2)
    matrix, shift = motion(0, mirror)
    moved = position @ matrix.T + shift
    kept = farthest_points(position, 40)
    np.testing.assert_array_equal(farthest_points(moved, 40), kept)
    for x in (position, moved):
        np.testing.assert_array_equal(
            within(x, x[kept], 0.3, 9), within(position, position[kept], 0.3, 9)
        )
        np.testing.assert_array_equal(nearest(x, x[kept], 3), nearest(position, position[kept], 3))


def test_renumbering_the_nodes_renumbers_the_result():
    position, *_ = wall(3)
    order = np.random.default_rng(0).permutation(len(position))
    kept, mixed = farthest_points(position, 40), farthest_points(position[order], 40)
    np.testing.assert_array_equal(np.sort(order[mixed]), kept)
    found = within(position[order], position[kept], 0.3, 9)
    expected = within(position, position[kept], 0.3, 9)
    np.testing.assert_array_equal(np.where(found < 0, -1, order[found]), expected)
