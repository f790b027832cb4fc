"""A flow's functions reproduce its coefficients and the labels; random points are uniform."""

from dataclasses import replace

import numpy as np
import pytest

from flashgatr.experiments.arteries.synthetic.elements import GAUSS_WEIGHTS, NODE_POINTS, Layer
from flashgatr.experiments.arteries.synthetic.field import Field, Places
from flashgatr.experiments.arteries.synthetic.flow import (
    Fluid,
    initial,
    nodal_pressure,
    solve,
    wall_stress,
)
from flashgatr.experiments.arteries.synthetic.grid import sweep
from flashgatr.experiments.arteries.synthetic.locate import locate
from flashgatr.experiments.arteries.synthetic.points import RandomPoints
from flashgatr.experiments.arteries.synthetic.tube import Stenosis, Tube

BEND = ((0.0, 0.0), (0.3, 0.1), (-0.1, 0.3), (0.2, 0.2), (0.3, -0.1))
TUBE = Tube(0.15, BEND, (Stenosis(2.0, 0.35, 0.4, 0.7),), extension=1)
DEGREES_2 = [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]


def random_flow():
    """Random coefficients on a bent tube with a stenosis: no law of flow can hide an error."""
    grid, random = sweep(TUBE, (2, 2, 12)), np.random.default_rng(0)
    flow = initial(TUBE, grid, Fluid())
    flow.velocity = random.normal(size=grid.node.shape)
    flow.pressure = random.normal(size=flow.pressure.shape)
    return flow


@pytest.fixture(scope="module")
def field():
    return Field(random_flow())


@pytest.fixture(scope="module")
def points(field):
    return RandomPoints(field)


def at_nodes(field):
    """The places of all nodes of all elements, and the nodes' numbers."""
    every = np.arange(field.elements)
    places = Places(np.repeat(every, 27), np.tile(NODE_POINTS, (len(every), 1)))
    return places, field.nodes(every).ravel()


def size(vectors):
    return np.linalg.norm(vectors, axis=-1)


def test_nodal_values_are_reproduced(field):
    flow, (places, node) = field.flow, at_nodes(field)
    found = field.lumen(places)
    assert np.abs(found.velocity - flow.velocity.reshape(-1, 3)[node]).max() < 1e-12
    assert np.abs(found.position - flow.grid.node.reshape(-1, 3)[node]).max() < 1e-12
    pressure = (nodal_pressure(flow) - flow.fluid.outlet_pressure).ravel()[node]
    assert np.abs(found.pressure - pressure).max() < 1e-10  # of 133,322 + p, 1e-11 is lost
    distance = np.repeat(flow.grid.s - flow.grid.s[0], len(flow.grid.section.node))[node]
    assert np.abs(found.distance - distance).max() < 1e-12


def test_the_wall_stress_at_nodes_is_the_label(field):
    flow, cross = field.flow, field.grid.section
    places, node = at_nodes(field)
    outer = field.is_outer[places.element % field.per_layer] & (places.reference[:, 0] == 1)
    places, node = Places(places.element[outer], places.reference[outer]), node[outer]
    labels = np.zeros_like(flow.velocity)
    labels[:, cross.free :] = wall_stress(flow)
    expected = labels.reshape(-1, 3)[node]
    found = field.wall(places)
    assert len(np.unique(node)) == cross.wall * len(flow.grid.s)
    assert np.abs(found.stress - expected).max() < 1e-12 * np.abs(expected).max()


def test_wall_values_are_continuous_and_the_stress_is_tangential(field, points):
    places = points.wall(2000, np.random.default_rng(1))
    found = field.wall(places)
    assert (
        np.abs((found.stress * found.normal).sum(axis=1)).max() < 1e-12 * size(found.stress).max()
    )
    assert np.abs(size(found.normal) - 1).max() < 1e-12
    inside = places.element < field.elements - field.per_layer  # there is a next layer
    last, first = (
        Places(places.element[inside] + step, places.reference[inside] * [1, 1, 0] + [0, 0, z])
        for step, z in ((0, 1), (field.per_layer, -1))
    )
    for a, b in zip(field.wall(last), field.wall(first), strict=True):
        assert np.abs(a - b).max() < 1e-12 * np.abs(a).max()


def test_points_inside_are_refused_as_points_of_the_wall(field, points):
    with pytest.raises(ValueError, match="5 points are not on the wall"):
        field.wall(points.lumen(5, np.random.default_rng(0)))


def test_linear_velocities_are_exact_in_curved_elements(points):
    matrix, shift = np.random.default_rng(2).normal(size=(2, 3, 3))
    flow = random_flow()
    flow.velocity = flow.grid.node @ matrix + shift[0]
    found = Field(flow).lumen(points.lumen(500, np.random.default_rng(3)))
    assert np.abs(found.velocity - found.position @ matrix - shift[0]).max() < 1e-12


def test_quadratic_velocities_are_exact_where_elements_have_straight_edges():
    """In such elements a quadratic function of the position is quadratic in each coordinate."""
    flow = random_flow()
    cross, node = flow.grid.section, flow.grid.node.copy()
    quad = cross.quad
    node[1::2] = (node[:-2:2] + node[2::2]) / 2
    for axis in (1, 2):
        low, middle, high = (quad.take(i, axis) for i in range(3))
        node[:, middle] = (node[:, low] + node[:, high]) / 2
    flow.grid = replace(flow.grid, node=node)
    mix = np.random.default_rng(4).normal(size=(6, 3))

    def quadratic(x):
        return np.stack([x[..., a] * x[..., b] for a, b in DEGREES_2], axis=-1) @ mix

    flow.velocity = quadratic(node)
    straight = Field(flow)
    found = straight.lumen(RandomPoints(straight).lumen(500, np.random.default_rng(5)))
    assert np.abs(found.velocity - quadratic(found.position)).max() < 1e-12 * 50


def test_poiseuille_flow_is_a_parabola_at_random_points():
    tube = Tube(0.15, length=1.5, extension=0)
    flow = solve(tube, (3, 3, 5), Fluid(viscosity=0.04), parabolic=True)
    field, random = Field(flow), np.random.default_rng(6)
    points = RandomPoints(field, (0.3, 1.2))
    inside, wall = field.lumen(points.lumen(1000, random)), field.wall(points.wall(1000, random))
    parabola = 2 * 20 * (1 - np.square(size(inside.position[:, 1:]) / tube.radius))
    assert np.abs(inside.velocity - parabola[:, None] * [1, 0, 0]).max() < 0.01 * 40
    expected = 4 * 0.04 * 20 / tube.radius
    assert np.abs(size(wall.stress) / expected - 1).max() < 0.005
    assert np.abs(wall.normal[:, 1:] - wall.position[:, 1:] / tube.radius).max() < 0.001
    drop = 8 * 0.04 * 20 * (tube.length - inside.distance) / tube.radius**2
    assert np.abs(inside.pressure - drop).max() < 0.005 * drop.max()


def test_points_are_uniform_in_volume_and_in_area(field, points):
    layers = [Layer.of(field.grid.element_nodes(k)) for k in range(field.grid.layers)]
    volumes = np.concatenate([layer.weight.sum(axis=1) for layer in layers])
    assert abs(points.volume / volumes.sum() - 1) < 1e-12
    found = points.lumen(100_000, np.random.default_rng(7))
    expected = 100_000 * volumes / volumes.sum()
    counts = np.bincount(found.element, minlength=field.elements)
    # A sum of squares of about normal variables: its mean is their number, its variance twice that.
    chi = (np.square(counts - expected) / expected).sum() - field.elements
    assert abs(chi) < 4 * np.sqrt(2 * field.elements)
    # Within elements: the mean of a reference coordinate under the density, by Gauss integration.
    gauss = np.sqrt(0.6) * NODE_POINTS[:, 0]
    mean = sum((layer.weight * gauss).sum() for layer in layers) / volumes.sum()
    assert abs(mean) > 0.02  # rings are wider outside
    assert abs(found.reference[:, 0].mean() - mean) < 4 * 0.6 / np.sqrt(100_000)
    wall = points.wall(100_000, np.random.default_rng(8))
    before = wall.element // field.per_layer < 6
    half = RandomPoints(field, (0.0, float(field.grid.distance[12]))).area / points.area
    assert abs(before.mean() - half) < 4 * 0.5 / np.sqrt(100_000)


def test_the_area_is_that_of_the_tube():
    tube = Tube(0.15, length=1.5, extension=0)
    points = RandomPoints(Field(initial(tube, sweep(tube, (3, 1, 4)), Fluid())))
    assert abs(points.area / (2 * np.pi * 0.15 * 1.5) - 1) < 1e-3
    assert abs(points.volume / (np.pi * 0.15**2 * 1.5) - 1) < 1e-3
    assert abs(GAUSS_WEIGHTS.sum() - 8) < 1e-12


def test_no_density_exceeds_its_bound(field, points):
    random = np.random.default_rng(9)
    for region in (points._lumen, points._wall):
        element = np.repeat(np.arange(len(region.element)), 50)
        reference = random.uniform(-1, 1, (len(element), 3))
        reference[::5] = np.sign(reference[::5])  # corners, where densities are extreme
        if region.on_wall:
            reference[:, 0] = 1
        density = size(region.vector(Places(region.element[element], reference)))
        assert (density <= region.bound[element] * (1 + 1e-12)).all()
        assert density.mean() > 0.5 * region.bound[element].mean()  # few candidates are rejected


def test_a_span_cuts_the_vessel_at_any_distance(field, points):
    end = float(field.grid.distance[-1])
    parts = [RandomPoints(field, x) for x in ((0.0, 1.234), (1.234, end))]
    assert abs(sum(x.volume for x in parts) / points.volume - 1) < 1e-12
    assert abs(sum(x.area for x in parts) / points.area - 1) < 1e-6
    for name in ("lumen", "wall"):
        places = getattr(parts[1], name)(5000, np.random.default_rng(10))
        distance = getattr(field, name)(places).distance
        assert 1.234 - 1e-12 < distance.min() < 1.24
    with pytest.raises(ValueError, match="span must increase"):
        RandomPoints(field, (1.0, end + 1))


def test_fewer_points_of_a_seed_are_the_first_of_more(points):
    for draw in (points.lumen, points.wall):
        few, many = (draw(n, np.random.default_rng(11)) for n in (10, 70_000))
        assert len(many.element) == 70_000
        assert np.array_equal(few.reference, many.reference[:10])
        assert len(draw(0, np.random.default_rng(0)).element) == 0


def test_positions_are_located_in_their_elements(field, points):
    random = np.random.default_rng(12)
    places = points.lumen(3000, random)
    values = field.lumen(places)
    found, inside = locate(field, values.position)
    assert inside.all()
    assert np.abs(field.lumen(found).velocity - values.velocity).max() < 1e-9
    wall = field.wall(points.wall(1000, random))
    between = (wall.distance > 0.01) & (wall.distance < field.grid.distance[-1] - 0.01)
    for step, expected in ((-1e-4, True), (1e-3, False)):
        _, inside = locate(field, (wall.position + step * wall.normal)[between])
        assert (inside == expected).all()
