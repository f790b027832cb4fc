"""Bodies that nearly collide: the force is 1 / d² down to the smallest distance, 1e-9."""

import numpy as np
import pytest

from flashgatr.experiments.nbody.simulate import Gravity, State, evolve


def _kick(distance):
    """Relative acceleration of two bodies of unit mass at rest; the first is at the origin."""
    settings = Gravity(bodies=2, step_size=1.0, steps=1)
    mass = np.ones((1, 2))
    position = np.zeros((1, 2, 3))
    position[0, 1, 0] = distance
    end = evolve(State(mass, position, np.zeros((1, 2, 3))), settings)
    return 2 * end[0, 0, 0] / settings.step_size**2  # the other body moves as far towards it


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6, 1e-8])
def test_the_force_of_close_bodies_is_that_of_their_distance(distance):
    assert _kick(distance) == pytest.approx(2 / distance**2, rel=1e-6)


@pytest.mark.parametrize("distance", [1e-10, 1e-12])
def test_below_the_smallest_distance_the_force_grows_no_more(distance):
    assert _kick(distance) == pytest.approx(2 * distance / 1e-9**3, rel=1e-6)
