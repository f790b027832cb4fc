"""Simulated systems against an independent integration, conservation laws and distributions.

The distributions are those of the paper's appendix C.1.
"""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import solve_ivp

from flashgatr.experiments.nbody.simulate import (
    INTEGRATORS,
    PRESETS,
    Gravity,
    State,
    evolve,
    preset,
    sample,
    simulate,
)

LEVEL = 1e-4  # of the statistical tests; the seeds are fixed, so this is how surprising they may be


def rng(seed=0):
    return np.random.default_rng(seed)


def exact(state, time):
    """Final positions by an 8th-order Runge-Kutta method, with Newton's law for each pair."""

    def law(_, y, m):
        x, v = y.reshape(2, -1, 3)
        a = np.zeros_like(x)
        for i in range(len(m)):
            for j in range(len(m)):
                if i != j:
                    a[i] += m[j] * (x[j] - x[i]) / np.linalg.norm(x[j] - x[i]) ** 3
        return np.concatenate([v, a]).ravel()

    final = []
    for m, x, v in zip(*state, strict=True):
        y = np.concatenate([x, v]).ravel()
        done = solve_ivp(law, (0, time), y, method="DOP853", rtol=1e-12, atol=1e-13, args=(m,))
        assert done.success
        final.append(done.y[:, -1].reshape(2, -1, 3)[0])
    return np.array(final)


def heliocentric(state):
    """The star's mass, and the planets' masses, positions and velocities seen from the star."""
    star = state.mass.argmax(axis=1)[:, None]
    others = np.argsort(-state.mass, axis=1)[:, 1:]
    take = np.take_along_axis
    x, v = (
        take(y, others[..., None], axis=1) - take(y, star[..., None], axis=1) for y in state[1:]
    )
    return take(state.mass, star, axis=1), take(state.mass, others, axis=1), x, v


@pytest.fixture(scope="module")
def many():
    return sample(Gravity(), 20_000, rng(7))


@pytest.mark.parametrize(
    ("integrator", "order"), [("semi_implicit_euler", 1), ("euler", 1), ("leapfrog", 2)]
)
def test_integrators_converge_to_the_exact_motion_at_their_order(integrator, order):
    settings = Gravity(radius=(0.3, 1.0), shift_std=0.0, integrator=integrator)
    state = sample(settings, 6, rng(1))
    truth = exact(state, settings.time)
    assert np.abs(truth - state.position).max() > 0.1  # they do move
    errors = []
    for steps in (400, 800, 1600):
        final = evolve(state, replace(settings, steps=steps, step_size=settings.time / steps))
        errors.append(np.sqrt(np.square(final - truth).mean()))
    rates = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(rates, order, atol=0.05)
    assert errors[-1] < (1e-3 if order == 1 else 1e-6)


def test_many_small_leapfrog_steps_give_the_exact_motion():
    settings = Gravity(
        bodies=6, radius=(0.3, 1.0), integrator="leapfrog", steps=20_000, step_size=5e-6
    )
    state = sample(settings, 3, rng(2))
    np.testing.assert_allclose(evolve(state, settings), exact(state, 0.1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_the_centre_of_mass_moves_uniformly(integrator):
    settings = Gravity(bodies=5, integrator=integrator, shift_std=0.0)
    state = sample(settings, 50, rng())
    _, path = evolve(state, settings, keep=1)
    weight = (state.mass / state.mass.sum(axis=1, keepdims=True))[..., None]
    start, drift = ((weight * x).sum(axis=1) for x in state[1:])
    time = settings.step_size * np.arange(settings.steps + 1)
    expected = start[:, None] + time[:, None] * drift[:, None]
    np.testing.assert_allclose((weight[:, None] * path).sum(axis=2), expected, rtol=0, atol=1e-12)


def energy_drift(integrator, periods, steps):
    """Largest relative energy error of a light planet on an ellipse: first half, whole time."""
    settings = Gravity(integrator=integrator, steps=steps, step_size=2 * np.pi * periods / steps)
    mass = np.array([[1.0, 1e-6]])
    x = np.array([[[0.0, 0, 0], [1, 0, 0]]])
    v = np.array([[[0.0, 0, 0], [0, 0.8, 0]]])
    _, path = evolve(State(mass, x, v), settings, keep=1)
    x = path[0]
    # The velocities of the steps: old ones, new ones, or (leapfrog) halfway ones, whose mean lies
    # in between.
    v = np.diff(x, axis=0) / settings.step_size
    if integrator == "leapfrog":
        x, v = x[1:-1], (v[1:] + v[:-1]) / 2
    else:
        x = x[:-1] if integrator == "euler" else x[1:]
    kinetic = 0.5 * (mass[0] * np.square(v).sum(axis=-1)).sum(axis=-1)
    energy = kinetic - mass.prod() / np.linalg.norm(x[:, 0] - x[:, 1], axis=-1)
    error = np.abs(energy / energy[0] - 1)
    return error[: len(error) // 2].max(), error.max()


def test_energy_stays_bounded_unless_euler_is_explicit():
    drift = {name: energy_drift(name, periods=10, steps=20_000) for name in INTEGRATORS}
    for name, bound in (("semi_implicit_euler", 5e-3), ("leapfrog", 5e-5)):
        half, whole = drift[name]
        assert whole < bound
        assert whole < 1.05 * half  # does not grow
    half, whole = drift["euler"]
    assert whole > 1.2 * half
    assert whole > 100 * drift["semi_implicit_euler"][1]


def test_evolution_is_invariant_under_translations_and_commutes_with_rotations():
    settings = Gravity(shift_std=0.0, radius=(0.3, 1.0))
    state = sample(settings, 20, rng())
    final = evolve(state, settings)
    far = evolve(state._replace(position=state.position + 1e3), settings)
    np.testing.assert_allclose(far - 1e3, final, rtol=0, atol=1e-11)
    turn = stats.special_ortho_group(3, seed=1).rvs()
    turned = State(state.mass, state.position @ turn.T, state.velocity @ turn.T)
    np.testing.assert_allclose(evolve(turned, settings), final @ turn.T, rtol=0, atol=1e-12)


def test_systems_do_not_feel_each_other():
    """Nor does their place matter in a block of systems that evolve together."""
    settings = Gravity(bodies=3, steps=10)
    state = sample(settings, 5000, rng())
    final = evolve(state, settings)
    for part in (slice(0, 1), slice(2047, 2050), slice(4999, 5000)):
        assert np.array_equal(evolve(State(*(x[part] for x in state)), settings), final[part])


def test_a_trajectory_leads_from_the_initial_to_the_final_positions():
    settings = Gravity(steps=20)
    state = sample(settings, 3, rng())
    before = [x.copy() for x in state]
    final, path = evolve(state, settings, keep=5)
    assert path.shape == (3, 5, 4, 3)
    assert np.array_equal(path[:, 0], state.position)
    assert np.array_equal(path[:, -1], final)
    assert np.array_equal(final, evolve(state, settings))
    assert np.array_equal(path[:, 2], evolve(state, replace(settings, steps=10)))
    assert all(np.array_equal(x, y) for x, y in zip(before, state, strict=True))
    for keep in (0, 3, 40):
        with pytest.raises(ValueError, match="keep must divide"):
            evolve(state, settings, keep=keep)


def test_masses_are_log_uniform(many):
    star, planets, _, _ = heliocentric(many)
    for mass, (low, high) in ((star, (1, 10)), (planets, (0.01, 0.1))):
        place = np.log(mass / low) / np.log(high / low)
        assert stats.kstest(place.ravel(), "uniform").pvalue > LEVEL


def test_planets_are_uniform_on_the_disc(many):
    _, _, x, _ = heliocentric(many)
    radius = np.linalg.norm(x, axis=-1)
    assert stats.kstest(((radius**2 - 0.01) / 0.99).ravel(), "uniform").pvalue > LEVEL
    # All in one plane, in directions that do not favour any: angles between planets are uniform.
    volume = np.linalg.det(x / radius[..., None])
    assert np.abs(volume).max() < 1e-11
    cosine = (x[:, 0] * x[:, 1]).sum(axis=-1) / radius[:, 0] / radius[:, 1]
    angle = np.arccos(np.clip(cosine, -1, 1)) / np.pi
    assert stats.kstest(angle, "uniform").pvalue > LEVEL


def test_orbits_are_circular_up_to_noise_and_go_both_ways(many):
    star, _, x, v = heliocentric(many)
    radius = np.linalg.norm(x, axis=-1, keepdims=True)
    normal = np.cross(x[:, :1], x[:, 1:2])
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    forward = np.cross(normal, x / radius)
    along = (v * forward).sum(axis=-1)
    sense = np.sign(along)
    noise = v - (sense * np.sqrt(star / radius[..., 0]))[..., None] * forward
    for direction in (forward, x / radius, np.broadcast_to(normal, x.shape)):
        part = (noise * direction).sum(axis=-1).ravel()
        assert stats.kstest(part / 0.01, "norm").pvalue > LEVEL
        assert part.std() == pytest.approx(0.01, rel=0.015)  # five standard deviations
    for signs in (sense[:, 0], sense[:, 1], sense[:, 0] * sense[:, 1]):
        assert stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue > LEVEL


def test_the_star_is_at_rest(many):
    star = many.mass.argmax(axis=1)
    assert not many.velocity[np.arange(len(star)), star].any()


def test_bodies_come_in_random_order(many):
    star = np.bincount(many.mass.argmax(axis=1), minlength=4)
    assert stats.chisquare(star).pvalue > LEVEL
    order = many.mass.argsort(axis=1) @ [64, 16, 4, 1]
    counts = np.unique(order, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > LEVEL


def test_rotations_are_haar_distributed(many):
    """Of orthogonal frames tied to the systems: components uniform on [-1, 1], Haar angles."""
    _, _, x, _ = heliocentric(many)
    first = x[:, 0] / np.linalg.norm(x[:, 0], axis=-1, keepdims=True)
    third = np.cross(first, x[:, 1])
    third /= np.linalg.norm(third, axis=-1, keepdims=True)
    frame = np.stack([first, np.cross(third, first), third], axis=-1)
    for component in frame.reshape(-1, 9).T:
        assert stats.kstest((component + 1) / 2, "uniform").pvalue > LEVEL
    angle = np.arccos(np.clip((np.trace(frame, axis1=1, axis2=2) - 1) / 2, -1, 1))
    assert stats.kstest((angle - np.sin(angle)) / np.pi, "uniform").pvalue > LEVEL


def test_noise_out_of_the_orbital_plane_is_as_large_as_within():
    """Rotations turn all three axes: the plane's normal comes from the positions."""
    slow = Gravity(star_mass=(1e-12, 2e-12), planet_mass=(1e-14, 1e-13), bodies=3)
    state = sample(slow, 5000, rng(5))
    _, _, x, v = heliocentric(state)
    normal = np.cross(x[:, 0], x[:, 1])
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True)
    across = (v * normal[:, None]).sum(axis=-1)
    assert across.std() == pytest.approx(0.01, rel=0.03)
    assert v.std() == pytest.approx(0.01, rel=0.03)


def test_shifts_are_gaussian_around_their_mean():
    settings = Gravity(shift_mean=(200.0, 0.0, -3.0))
    state = sample(settings, 20_000, rng(3))
    star = state.mass.argmax(axis=1)
    place = state.position[np.arange(len(star)), star]
    for component, mean in zip(place.T, settings.shift_mean, strict=True):
        assert stats.kstest((component - mean) / 20, "norm").pvalue > LEVEL


def test_the_mean_shift_moves_the_same_systems():
    near = simulate(Gravity(), 500, rng(4))
    far = simulate(Gravity(shift_mean=(200.0, 0.0, 0.0)), 500, rng(4))
    assert np.array_equal(near.mass, far.mass)
    assert np.array_equal(near.velocity, far.velocity)
    for a, b in ((near.position, far.position), (near.target, far.target)):
        np.testing.assert_allclose(b - a, np.broadcast_to([200, 0, 0], a.shape), atol=1e-12)


@pytest.mark.parametrize(("bodies", "rate"), [(4, 0.0016), (6, 0.0062)])
def test_as_many_systems_are_rejected_as_by_the_released_generator(bodies, rate):
    settings = Gravity(bodies=bodies, shift_std=0.0)
    count = 30_000
    state = sample(settings, count, rng(5))
    travel = np.linalg.norm(evolve(state, settings) - state.position, axis=-1).max(axis=1)
    rejected = int((travel > settings.max_travel).sum())
    assert abs(rejected - rate * count) < 4 * np.sqrt(rate * count)


def test_simple_guesses_err_as_with_the_released_generator():
    found = simulate(Gravity(), 20_000, rng(6))
    move = found.target - found.position
    assert np.linalg.norm(move, axis=-1).max() <= 2.0
    assert np.square(move).mean() == pytest.approx(0.0158, rel=0.15)
    assert np.square(move - 0.1 * found.velocity).mean() == pytest.approx(0.0056, rel=0.15)


def test_simulation_gives_the_number_asked_for_and_repeats():
    settings = Gravity(bodies=3, steps=10, max_travel=0.02)  # rejects most
    found = simulate(settings, 300, rng())
    assert [x.shape for x in found] == [(300, 3), (300, 3, 3), (300, 3, 3), (300, 3, 3)]
    assert all(x.flags.c_contiguous and x.dtype == np.float64 for x in found)
    assert np.linalg.norm(found.target - found.position, axis=-1).max() <= 0.02 + 1e-12
    again = simulate(settings, 300, rng())
    assert all(np.array_equal(x, y) for x, y in zip(found, again, strict=True))
    state = State(*found[:3])
    np.testing.assert_allclose(evolve(state, settings), found.target, rtol=0, atol=1e-11)


def test_a_travel_limit_nothing_can_keep_is_reported():
    with pytest.raises(ValueError, match="max_travel = 1e-06"):
        simulate(Gravity(steps=2, max_travel=1e-6), 20, rng())


def test_no_systems_and_lonely_stars():
    assert [len(x) for x in simulate(Gravity(), 0, rng())] == [0, 0, 0, 0]
    alone = simulate(Gravity(bodies=1), 3, rng())
    assert np.array_equal(alone.position, alone.target)


def test_bodies_at_the_same_place_stay_finite():
    state = State(np.ones((1, 2)), np.zeros((1, 2, 3)), np.zeros((1, 2, 3)))
    assert np.array_equal(evolve(state, Gravity(bodies=2)), state.position)


def test_presets_are_what_the_texts_say():
    assert preset("released") == Gravity()
    assert list(PRESETS) == ["released", "appendix", "main_text"]
    appendix, main_text = preset("appendix"), preset("main_text", bodies=5)
    assert (appendix.integrator, appendix.steps, appendix.step_size) == ("euler", 100, 1e-4)
    assert (main_text.integrator, main_text.steps, main_text.bodies) == ("euler", 1000, 5)
    assert main_text.time == pytest.approx(Gravity().time)
    with pytest.raises(ValueError, match="unknown preset 'paper'; expected one of released"):
        preset("paper")


def test_settings_survive_json():
    settings = Gravity(shift_mean=(1, 2, 3), radius=[0.2, 1])
    assert settings.radius == (0.2, 1.0)
    again = Gravity(**json.loads(json.dumps(asdict(settings))))
    assert again == settings
    assert hash(again) == hash(settings)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(bodies=0), "bodies must be an integer of at least 1, got 0"),
        (dict(bodies=True), "bodies"),
        (dict(steps=1.0), "steps must be an integer"),
        (dict(step_size=0.0), "step_size must be positive"),
        (dict(step_size=10**400), "step_size must consist of finite numbers"),
        (dict(max_travel=float("nan")), "max_travel"),
        (dict(velocity_noise=-1.0), "velocity_noise must not be negative"),
        (dict(shift_std="wide"), "shift_std must consist of finite numbers, got 'wide'"),
        (dict(shift_mean=(1, 2)), "shift_mean must be 3 numbers"),
        (dict(radius=(1.0, 0.1)), "radius must be a range"),
        (dict(star_mass=(0.0, 1.0)), "star_mass must be a range"),
        (dict(planet_mass=3), "planet_mass must be 2 numbers, got 3"),
        (dict(integrator="rk4"), "unknown integrator 'rk4'; expected one of semi_implicit_euler"),
    ],
)
def test_wrong_settings_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        Gravity(**change)


def test_settings_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        Gravity(5, 100)


def test_wrong_states_are_refused():
    state = sample(Gravity(), 2, rng())
    with pytest.raises(ValueError, match=r"a state needs mass \(N, n\)"):
        evolve(state._replace(velocity=state.velocity[:1]), Gravity())
    with pytest.raises(ValueError, match="masses must be positive"):
        evolve(state._replace(mass=-state.mass), Gravity())
