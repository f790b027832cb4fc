"""Meshes finer than the published ones: the same vessel has the same inputs."""

import numpy as np
import pytest
from scipy.spatial import cKDTree

from flashgatr.experiments.arteries.data.heat_method import geodesics
from flashgatr.experiments.arteries.data.wall import normals, require_closed
from flashgatr.experiments.arteries.synthetic.grid import surface, sweep
from flashgatr.experiments.arteries.synthetic.refinement import subdivided, tube_surface
from flashgatr.experiments.arteries.synthetic.tube import Tube, draw
from flashgatr.experiments.arteries.vessel.surface import rims, volume

PUBLISHED = (4, 2, 140)  # a mesh of 9,346 nodes, with edges like those of the published meshes


def _area(position, face):
    a, b, c = (position[face[:, k]] for k in range(3))
    return np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2


@pytest.mark.parametrize("planar", [True, False])
def test_the_surface_of_a_tube_is_that_of_its_grid_to_the_bit(planar):
    tube = draw(np.random.default_rng(3), planar=planar)
    grid = sweep(tube, (4, 2, 20))
    used, face, inlet = surface(grid)
    found = tube_surface(tube, (2, 1, 10), refined=2)
    for mine, expected in zip(found, (grid.node.reshape(-1, 3)[used], face, inlet), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_a_refined_tube_is_round_and_keeps_the_coarse_nodes():
    tube = Tube(0.15)
    coarse = tube_surface(tube, (2, 1, 10), even=True)[0]
    position, face, inlet = tube_surface(tube, (2, 1, 10), refined=3, even=True)
    require_closed(position, face)
    assert cKDTree(position).query(coarse)[0].max() < 1e-12
    start, end = tube.span
    wall = (position[:, 0] > start + 0.01) & (position[:, 0] < end - 0.01)
    radius = np.hypot(position[wall, 1], position[wall, 2])
    np.testing.assert_allclose(radius, 0.15, rtol=1e-12)
    np.testing.assert_allclose(position[inlet, 0], start)


def test_subdivision_keeps_nodes_area_volume_and_openings():
    position, face, _ = tube_surface(Tube(0.15), (2, 1, 10), even=True)
    opened = face[position[face].mean(axis=1)[:, 0] < position[:, 0].max() - 0.01]
    for faces, openings in ((face, 0), (opened, 1)):
        finer, triangles = subdivided(position, faces, times=2)
        assert len(triangles) == 16 * len(faces)
        np.testing.assert_array_equal(finer[: len(position)], position)
        assert _area(finer, triangles) == pytest.approx(_area(position, faces), rel=1e-12)
        assert [len(x) for x in rims(triangles)] == [4 * len(x) for x in rims(faces)]
        assert len(rims(triangles)) == openings
    assert volume(*subdivided(position, face)) == pytest.approx(volume(position, face), rel=1e-12)
    require_closed(*subdivided(position, face))


@pytest.mark.parametrize(("mesh", "refined"), [((2, 1, 0), 1), ((2, 1, 10), 0), ((-2, 1, 9), 2)])
def test_sizes_that_are_not_positive_are_refused(mesh, refined):
    with pytest.raises(ValueError, match="three positive numbers"):
        tube_surface(Tube(0.15), mesh, refined=refined)


@pytest.mark.parametrize(("method", "times"), [("auto", 2), ("scipy", 2), ("auto", 3)])
def test_a_finer_mesh_of_a_vessel_has_the_same_distances_and_normals(method, times):
    tube = draw(np.random.default_rng([0, 0]))
    found = []
    for refined in (1, times):
        position, face, inlet = tube_surface(tube, PUBLISHED, refined=refined, even=True)
        x = position.astype(np.float32)
        found.append((x, geodesics(x, face, inlet, method), normals(x, face)))
    (coarse, distance, normal), (fine, finer, smoother) = found
    there = cKDTree(fine).query(coarse)[1]
    far = 8 * tube.radius  # what preparation cuts off
    kept = (distance > far) & (distance < distance.max() - far)
    assert kept.sum() > 5000
    assert np.abs(finer[there] / distance - 1)[kept].max() < 0.01
    assert np.einsum("ni,ni->n", smoother[there], normal)[kept].min() > np.cos(np.radians(5))
