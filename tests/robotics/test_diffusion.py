"""Diffusion: the schedule, the samplers' tables, and sampling, against closed forms."""

import math

import pytest
import torch

from flashgatr.experiments.robotics import layouts, normalised
from flashgatr.experiments.robotics.diffusion import (
    Schedule,
    cosine_betas,
    denoising_errors,
    draw_clamps,
    mean_over_free_frames,
)
from flashgatr.experiments.robotics.sampling import (
    SeededNoise,
    ancestral,
    condition,
    ddim,
    dpm_solver,
    sample,
)

MEAN, SPREAD = 0.7, 0.3
SCHEDULE = Schedule.cosine()


def gaussian(x, t, clamp):
    """The best denoiser of independent numbers with mean MEAN and standard deviation SPREAD."""
    signal, sigma = (y[t][:, None, None] for y in (SCHEDULE.signal, SCHEDULE.noise))
    return sigma * (x - signal * MEAN) / (signal**2 * SPREAD**2 + sigma**2)


def free(batch, frames, channels):
    """Nothing known."""
    known = torch.zeros(batch, frames, channels, dtype=torch.float64)
    return known, torch.zeros(batch, frames, dtype=torch.bool)


def test_betas_are_those_of_the_cosine():
    betas = cosine_betas()
    angle = [(k / 1000 + 0.008) / 1.008 * math.pi / 2 for k in range(1001)]
    for k in (0, 1, 500, 997):
        expected = 1 - math.cos(angle[k + 1]) ** 2 / math.cos(angle[k]) ** 2
        assert betas[k].item() == pytest.approx(expected, rel=1e-9)
    assert betas[-1] == 0.999
    assert betas.diff().min() >= 0


def test_betas_are_those_of_diffusers():
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DDPMScheduler(1000, beta_schedule="squaredcos_cap_v2").betas.double()
    torch.testing.assert_close(cosine_betas(), theirs, rtol=0, atol=1e-7)


def test_signal_and_noise_keep_the_variance():
    assert torch.allclose(SCHEDULE.signal**2 + SCHEDULE.noise**2, torch.ones(1).double())
    torch.testing.assert_close(SCHEDULE.signal**2, torch.cumprod(1 - cosine_betas(), 0))


def test_ancestral_steps_are_the_posterior_of_the_forward_process():
    """q(x_{t-1} | x_t, x_0) is a product of two Gaussians: computed here from their precisions."""
    betas, plan = cosine_betas(), ancestral(SCHEDULE)
    variance = torch.cumprod(1 - betas, 0)
    for t in (999, 500, 10, 1):
        a, b, c, d = plan.rows[999 - t]
        assert plan.t[999 - t] == t
        # x_t = √(1-β) x_{t-1} + √β z, and x_{t-1} has mean √ᾱ_{t-1} x_0 and variance 1 - ᾱ_{t-1}
        precision = (1 - betas[t]) / betas[t] + 1 / (1 - variance[t - 1])
        torch.testing.assert_close(a, (1 - betas[t]).sqrt() / betas[t] / precision)
        torch.testing.assert_close(
            b, variance[t - 1].sqrt() / (1 - variance[t - 1]) / precision, rtol=1e-7, atol=1e-12
        )
        torch.testing.assert_close(d, precision.rsqrt())
        assert c == 0
    assert plan.rows[-1].tolist() == pytest.approx([0, 1, 0, 0])


@pytest.mark.parametrize(
    "plan", [ancestral(SCHEDULE), ddim(SCHEDULE, 50), dpm_solver(SCHEDULE, 20)]
)
def test_samplers_are_exact_on_a_single_trajectory(plan):
    """If all data are one point, the estimate of x_0 is always right, and so is the result."""
    known, clamp = free(1, 3, 5)
    target = torch.randn(1, 3, 5, dtype=torch.float64)

    def denoiser(x, t, clamp):
        return (x - SCHEDULE.signal[t] * target) / SCHEDULE.noise[t]

    noise = SeededNoise([0], (3, 5), known)
    torch.testing.assert_close(sample(denoiser, plan, known, clamp, noise), target)


@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        (ancestral(SCHEDULE), 0.02),
        (ddim(SCHEDULE, 400), 0.03),
        (ddim(SCHEDULE, 100, eta=0.5), 0.05),
        (dpm_solver(SCHEDULE, 30), 0.02),
    ],
)
def test_samplers_reproduce_gaussian_data(plan, tolerance):
    """With the best denoiser; 10,000 numbers, so that chance moves their spread by 0.7 %."""
    known, clamp = free(2, 100, 50)
    x = sample(gaussian, plan, known, clamp, SeededNoise(range(2), (100, 50), known))
    assert x.mean().item() == pytest.approx(MEAN, abs=0.01)
    assert x.std().item() == pytest.approx(SPREAD, rel=tolerance)


def test_more_steps_of_ddim_come_nearer_to_the_exact_flow():
    """The probability flow of Gaussian data maps noise z to MEAN + SPREAD z."""
    known, clamp = free(1, 10, 10)
    z = SeededNoise([5], (10, 10), known)(0)
    exact = MEAN + SPREAD * z
    errors = []
    for plan in (ddim(SCHEDULE, 20), ddim(SCHEDULE, 200), dpm_solver(SCHEDULE, 20)):
        x = sample(gaussian, plan, known, clamp, lambda number: z)
        errors.append((x - exact).abs().max().item())
    assert errors[1] < errors[0] / 5
    assert errors[2] < errors[0] / 2


def test_twenty_steps_of_dpm_solver_follow_the_exact_flow_of_data_with_four_values():
    """The exact flow is that of 1,000 steps. Steps spaced evenly over all λ are off by 0.016."""
    values, spread = torch.tensor([-1.0, -0.2, 0.5, 1.0], dtype=torch.float64), 0.03

    def denoiser(x, t, clamp):
        signal, sigma = (y[t][:, None, None] for y in (SCHEDULE.signal, SCHEDULE.noise))
        variance = signal**2 * spread**2 + sigma**2
        off = x[..., None] - signal[..., None] * values
        share = (-(off**2) / (2 * variance[..., None])).softmax(-1)
        clean = (share * (values + (signal * spread**2 / variance)[..., None] * off)).sum(-1)
        return (x - signal * clean) / sigma

    known, clamp = free(1, 100, 50)
    z = SeededNoise([1], (100, 50), known)(0)
    exact, quick, ddim_20 = (
        sample(denoiser, plan, known, clamp, lambda number: z)
        for plan in (dpm_solver(SCHEDULE, 1000), dpm_solver(SCHEDULE, 20), ddim(SCHEDULE, 20))
    )
    assert (quick - exact).abs().mean() < 0.007
    assert (ddim_20 - exact).abs().mean() > 0.014


def test_dpm_solver_spends_one_step_where_there_is_nothing_but_noise():
    ratio = (SCHEDULE.signal / SCHEDULE.noise).log()
    for steps in (10, 20):
        at = ratio[dpm_solver(SCHEDULE, steps).t]
        even = at[1] + (ratio[0] + 4.5) / (steps - 1) * torch.arange(steps - 1)
        assert at[0] == ratio[-1]
        torch.testing.assert_close(at[1:], even, rtol=0, atol=0.15)
        assert (at < -4.5).sum() == 1


@pytest.mark.parametrize("steps", [1, 2, 3, 20, 1000])
def test_plans_run_from_noise_to_data(steps):
    """From the last diffusion step down, without repetition; the last row returns the estimate."""
    for plan in (ddim(SCHEDULE, steps), dpm_solver(SCHEDULE, steps)):
        assert len(plan) == steps
        assert plan.t[0] == 999
        assert (plan.t.diff() < 0).all()
        assert plan.rows[-1].tolist() == pytest.approx([0, 1, 0, 0])
        assert plan.rows.isfinite().all()


def test_clamped_frames_are_kept_and_the_others_depend_on_the_seed_alone():
    first = torch.randn(3, 5, dtype=torch.float64)
    known, clamp = condition(first, 4)
    plan = ddim(SCHEDULE, 10, eta=1.0)

    def run(chosen, seeds):
        noise = SeededNoise(seeds, (4, 5), known)
        return sample(gaussian, plan, known[chosen], clamp[chosen], noise)

    together = run([0, 1, 2], [7, 8, 9])
    assert torch.equal(together[:, 0], first)
    torch.testing.assert_close(together[1:2], run([1], [8]), rtol=0, atol=0)
    assert (together[1:2] - run([1], [9]))[:, 1:].abs().min() > 0


def test_progress_is_reported_after_every_step():
    seen = []
    known, clamp = free(1, 2, 2)
    noise = SeededNoise([0], (2, 2), known)
    sample(gaussian, ddim(SCHEDULE, 3), known, clamp, noise, progress=lambda *x: seen.append(x))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_loss_sees_no_clamped_frame():
    """A denoiser that is wrong in clamped frames only is perfect; it sees them without noise."""
    clean, noise = torch.randn(2, 64, 4, 6)
    t = torch.randint(1000, (64,))
    clamp = draw_clamps("ends", 64, 4, clean.device)
    known = clean + 1

    def denoiser(x, t, clamp):
        torch.testing.assert_close(x[clamp], known[clamp])
        assert not torch.isclose(x[~clamp], clean[~clamp]).all()
        return torch.where(clamp[..., None], 100.0, noise + 2)

    schedule = SCHEDULE.to("cpu", torch.float32)
    errors = denoising_errors(denoiser, schedule, clean, noise, t, clamp, known)
    torch.testing.assert_close(mean_over_free_frames(errors, clamp), torch.full((64,), 2.0))


def test_clamped_frames_are_the_first_the_last_or_both():
    clamp = draw_clamps("ends", 3000, 5, torch.device("cpu"))
    patterns, counts = clamp.unique(dim=0, return_counts=True)
    wanted = {(True, False), (False, True), (True, True)}
    assert {(p[0].item(), p[-1].item()) for p in patterns} == wanted
    assert not clamp[:, 1:-1].any()
    assert counts.min() > 850
    assert draw_clamps("first", 7, 5, torch.device("cpu")).sum(0).tolist() == [7, 0, 0, 0, 0]


def test_states_split_and_join():
    x = torch.randn(2, 3, 49)
    parts = layouts.objects(x)
    assert torch.equal(layouts.from_objects(*parts), x)
    assert torch.equal(parts.position[..., 1, :], x[..., 9:12])  # block 1
    assert torch.equal(parts.directions[..., 4, 1, :], x[..., 42:45])
    assert torch.equal(parts.flags, x[..., 45:])


def test_bounds_turn_with_the_scene():
    x = 5 * torch.randn(20, 49, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    ours = normalised.bounded(normalised.rotated(x, turn))
    torch.testing.assert_close(ours, normalised.rotated(normalised.bounded(x), turn))
    assert layouts.objects(ours).position.norm(dim=-1).max() <= normalised.REACH + 1e-12
    small = 0.1 * x / x.abs().max()
    torch.testing.assert_close(normalised.bounded(small), small)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: ddim(SCHEDULE, 0), "from 1 to 1000, got 0"),
        (lambda: dpm_solver(SCHEDULE, 1001), "from 1 to 1000, got 1001"),
        (lambda: ddim(SCHEDULE, 5, eta=2), "eta must be from 0 to 1"),
        (lambda: cosine_betas(0), "at least one step"),
        (lambda: layouts.objects(torch.zeros(39)), "the geometric layout has 49"),
    ],
)
def test_impossible_plans_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
