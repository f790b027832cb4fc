"""The simulators are the published ones, and have the symmetries that these have."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flashgatr.experiments.bench.data.charges_limits import rotation_variance
from flashgatr.experiments.charges.data import SETS, simulate
from flashgatr.experiments.charges.linear import predictions
from flashgatr.experiments.charges.simulate import BLOCK, STANDARD, Interaction, State, draw, evolve
from flashgatr.versors import sample, to_matrix

SEED, DT = 43, 0.001


def _states(name, count, seed=0):
    return draw(STANDARD[name], count, np.random.RandomState(seed))


def _close_pairs(count):
    """Charged systems in which two particles are so close that forces are clipped."""
    state = _states("charges", count)
    state.position[:, 1] = state.position[:, 0] + 0.02 * np.array([0.6, 0.0, 0.8])
    return state


def _published_charges(stream):
    """One system as the published generator makes it: records of every hundredth step."""
    charge = stream.choice(np.array([-1.0, 0.0, 1.0]), size=(5, 1), p=[0.5, 0.0, 0.5])
    x, v = stream.randn(3, 5), stream.randn(3, 5)
    v = v * 0.5 / np.sqrt((v**2).sum(axis=0))

    def force(x):
        total = np.zeros((3, 5))
        for i in range(5):
            for j in range(5):
                if i != j:
                    d = x[:, i] - x[:, j]
                    total[:, i] += charge[i] * charge[j] * d / np.sqrt(d @ d) ** 3
        return np.minimum(np.maximum(total, -100.0), 100.0)

    records = []
    v = v + DT * force(x)
    for step in range(1, 4101):
        x = x + DT * v
        if step % 100 == 0:
            records.append((x.T, v.T))
        v = v + DT * force(x)
    for _ in range(2):
        stream.randn(49, 3, 5)  # noise, times zero
    return charge[:, 0], records


def _published_gravity(stream):
    x, v = stream.randn(5, 3), stream.randn(5, 3)
    v = v - v.mean(axis=0)

    def acceleration(x):
        d = x[None] - x[:, None]
        return (d / ((d**2).sum(-1, keepdims=True) + 0.01) ** 1.5).sum(axis=1)

    records, a = [], acceleration(x)
    for step in range(1001):
        if step % 100 == 0:
            records.append((x, v))
        v = v + a * DT / 2
        x = x + v * DT
        a = acceleration(x)
        v = v + a * DT / 2
    for _ in range(3):
        stream.randn(50, 5, 3)
    return np.ones(5), records


@pytest.mark.parametrize(
    ("name", "published", "first", "later"),
    [("charges", _published_charges, 30, 40), ("gravity", _published_gravity, 0, 10)],
)
def test_systems_are_the_published_ones(name, published, first, later):
    """The second one as well: the stream goes on where the generator's does."""
    found = simulate(draw(STANDARD[name], 2, np.random.RandomState(SEED)), STANDARD[name])
    stream = np.random.RandomState(SEED)
    for i in range(2):
        charge, records = published(stream)
        assert np.array_equal(found.charge[i], charge)
        np.testing.assert_allclose(found.position[i], records[first][0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.velocity[i], records[first][1], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.target[i, 0], records[later][0], rtol=0, atol=1e-10)


TABLE = {
    "charges": [
        (0.2715, 0.1079, 0.0836, 0.0686),
        (0.5900, 0.2647, 0.1980, 0.1560),
        (1.0269, 0.4891, 0.3584, 0.2738),
    ],
    "gravity": [
        (0.7364, 0.1247, 0.1147, 0.0934),
        (1.516, 0.4036, 0.3415, 0.2733),
        (2.474, 0.8818, 0.6877, 0.5507),
    ],
}
"""Errors of predictions without a network on these data, computed independently."""


@pytest.mark.parametrize("name", TABLE)
def test_predictions_without_a_network_have_the_errors_known_from_these_data(name):
    settings, stream = STANDARD[name], np.random.RandomState(SEED)
    parts = [draw(settings, count, stream) for count in SETS.values()]
    kept = [State(*(x[:3000] for x in parts[0])), parts[2]]
    both = simulate(State(*(np.concatenate(x) for x in zip(*kept, strict=True))), settings)
    for k, horizon in enumerate(settings.horizons):
        data = both._replace(target=both.target[:, k])._asdict()
        train, test = ({key: torch.tensor(x[part]) for key, x in data.items()}
                       for part in (slice(3000), slice(3000, None)))  # fmt: skip
        found = predictions(train, test, DT * horizon)
        errors = [(guess - test["target"]).square().mean().item() for guess in found.values()]
        assert errors == pytest.approx(TABLE[name][k], abs=6e-5, rel=3e-4)


@pytest.mark.parametrize("name", STANDARD)
def test_going_on_from_any_state_repeats_the_motion_exactly(name):
    state = _states(name, 20)
    halfway, end = evolve(state, STANDARD[name], [200, 500])
    again = evolve(halfway, STANDARD[name], [0, 300])
    for x, y in zip(halfway, again[0], strict=True):
        assert np.array_equal(x, y)
    for x, y in zip(end, again[1], strict=True):
        assert np.array_equal(x, y)


@pytest.mark.parametrize("name", STANDARD)
def test_a_system_does_not_depend_on_the_others(name):
    state = _states(name, BLOCK + 5)
    together, alone = (
        evolve(State(*(x[part] for x in state)), STANDARD[name], [20])[0]
        for part in (slice(None), slice(BLOCK - 2, BLOCK + 3))
    )
    assert np.array_equal(together.position[BLOCK - 2 : BLOCK + 3], alone.position)


def _turned(state, turn):
    return State(state.charge, state.position @ turn.T, state.velocity @ turn.T)


def test_forces_clipped_by_norm_turn_with_the_system_and_by_coordinate_they_do_not():
    state = _close_pairs(10)
    turn = to_matrix(sample(kind="rotation"))[:3, :3].numpy()
    apart = {}
    for name in ("charges", "charges_norm"):
        plain, turned = (
            evolve(x, STANDARD[name], [5])[0].position for x in (state, _turned(state, turn))
        )
        apart[name] = np.abs(turned - plain @ turn.T).max(axis=(1, 2))
    assert apart["charges_norm"].max() < 1e-9
    assert apart["charges"].min() > 1e-5


def test_the_error_of_an_equivariant_model_is_that_of_clipping_by_coordinate():
    state = _close_pairs(4)
    by_norm, by_coordinate = (
        rotation_variance(state, replace(STANDARD[name], horizons=(5, 10)), copies=3)
        for name in ("charges_norm", "charges")
    )
    assert by_norm.shape == (2, 4)
    assert by_norm.max() < 1e-18
    assert by_coordinate.min() > 1e-9


def test_reversed_charges_move_alike():
    state = _states("charges", 10)
    found = [
        evolve(state._replace(charge=sign * state.charge), STANDARD["charges"], [300])[0]
        for sign in (1, -1)
    ]
    assert np.array_equal(found[0].position, found[1].position)
    opposite = state.charge.copy()
    opposite[:, 0] *= -1
    other = evolve(state._replace(charge=opposite), STANDARD["charges"], [300])[0]
    assert np.abs(other.position - found[0].position).max() > 1e-3


def test_momentum_and_energy_are_conserved():
    state = _states("gravity", 20)
    end = evolve(state, STANDARD["gravity"], [500])[0]

    def energy(x):
        d = x.position[:, :, None] - x.position[:, None]
        inverse = 1 / np.sqrt(np.square(d).sum(-1) + 0.01)
        return np.square(x.velocity).sum((1, 2)) / 2 - np.triu(inverse, 1).sum((1, 2))

    assert np.abs(end.velocity.sum(axis=1)).max() < 1e-12
    assert np.abs(energy(end) - energy(state)).max() < 1e-3
    charged = _states("charges", 20)
    later = evolve(charged, STANDARD["charges"], [50])[0]
    drift = np.abs((later.velocity - charged.velocity).sum(axis=1)).max(axis=1)
    assert np.median(drift) < 1e-12  # clipping takes momentum from some systems


def test_initial_states_are_as_described():
    state = _states("charges", 400)
    assert set(np.unique(state.charge)) == {-1.0, 1.0}
    assert abs(state.charge.mean()) < 0.1
    assert np.linalg.norm(state.velocity, axis=-1) == pytest.approx(0.5)
    assert state.position.std() == pytest.approx(1, rel=0.05)
    assert np.abs(state.position).max() < 5
    gravity = _states("gravity", 400)
    assert (gravity.charge == 1).all()
    assert np.abs(gravity.velocity.mean(axis=1)).max() < 1e-15


def test_two_particles_in_one_place_are_no_exception():
    state = _states("charges", 2)
    state.position[:, 1] = state.position[:, 0]
    assert np.isfinite(evolve(state, STANDARD["charges"], [10])[0].position).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(force="springs"), "force must be one of charges, gravity, got 'springs'"),
        (dict(clip="none"), "clip must be one of coordinate, norm for charges, got 'none'"),
        (dict(force="gravity"), "clip must be one of none for gravity"),
        (dict(input_step=-1), "at least 0, got -1"),
        (dict(horizons=()), "rising positive numbers, got"),
        (dict(horizons=(1000, 500)), "rising positive numbers"),
        (dict(horizons=(0, 500)), "rising positive numbers"),
        (dict(horizons=(1.5,)), "integers of at least 0, got 1.5"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Interaction(**options)
