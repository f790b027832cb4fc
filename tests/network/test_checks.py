"""The symmetry checks look at every sample and draw motions as large as asked for.

Each law is broken in one place, by a known amount, and the check must report that amount.
"""

import pytest
import torch

from flashgatr import embed_point, extract_point, testing, versors

MV = torch.randn(3, 5, 2, 16, dtype=torch.float64)


def _breaks(sample):
    """Adds 1 to the largest value of one sample, but only in a batch of three."""

    def f(mv):
        out = mv / mv.abs().amax((-1, -2, -3), keepdim=True)
        if mv.dim() == 4:
            out = out.clone()
            out[sample] += 1
        return out

    return f


@pytest.mark.parametrize("sample", [0, 1, 2])
def test_dependence_on_the_batch_is_found_in_every_sample(sample):
    measured = testing.batch_error(_breaks(sample), MV)
    assert 0.5 <= measured <= 1.0  # 1 divided by the largest value, which is now 1 to 2
    with pytest.raises(AssertionError, match="independent of its batch"):
        testing.assert_batch_independent(_breaks(sample), MV)


def test_one_scalar_of_the_last_sample_is_enough():
    s = torch.ones(3, 5, 1, dtype=torch.float64)

    def f(mv, s):
        s = s.clone()
        if s.dim() == 3:
            s[2, 4, 0] += 0.25
        return mv, s

    assert testing.batch_error(f, MV, s) == pytest.approx(0.25 / 1.25)


def _shift_of(measure, distance, **more):
    """How far the check moves a point, by a function that keeps the coordinates it is given."""
    seen = []

    def note(x):
        seen.append(x.clone())
        return x

    measure(note, distance, **more)
    start, *moved = seen
    return torch.stack([(x - start).norm() for x in moved])


def _on_multivectors(note, distance, **more):
    def f(mv):
        note(extract_point(mv).reshape(3))
        return mv

    point = embed_point(torch.zeros(1, 1, 3, dtype=torch.float64))
    testing.equivariance_error(f, point, distance=distance, **more)


def _on_points(note, distance, **more):
    def f(points):
        note(points.reshape(3))
        return points

    testing.point_equivariance_error(f, torch.zeros(1, 3).double(), distance=distance, **more)


@pytest.mark.parametrize("measure", [_on_multivectors, _on_points])
def test_motions_are_as_large_as_the_distance_says(measure):
    near, far = (
        _shift_of(measure, distance, group="SE(3)", draws=64) for distance in (1.0, 1000.0)
    )
    assert len(near) == len(far) == 64
    assert near.square().mean().sqrt() == pytest.approx(3**0.5, rel=0.25)  # three coordinates
    torch.testing.assert_close(far, 1000 * near, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("measure", [_on_multivectors, _on_points])
def test_the_seed_chooses_the_motions_and_draws_their_number(measure):
    first, again, other = (_shift_of(measure, 1.0, draws=5, seed=k) for k in (0, 0, 1))
    assert len(first) == 5
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_network_that_is_wrong_far_away_alone_is_found_there_alone():
    def f(mv):
        return mv + (mv[..., 11:14].abs().amax() > 100)  # wrong beyond 100

    point = embed_point(torch.zeros(1, 1, 3, dtype=torch.float64))
    assert testing.equivariance_error(f, point, distance=1.0, group="translation") < 1e-12
    assert testing.equivariance_error(f, point, distance=1e4, group="translation") > 1e-5


def test_the_shift_of_a_sampled_motion_has_the_standard_deviation_asked_for():
    generator = torch.Generator().manual_seed(0)
    motions = versors.sample(4000, kind="translation", distance=3.0, generator=generator)
    shifts = versors.to_matrix(motions)[:, :3, 3]
    assert shifts.std(0).tolist() == pytest.approx([3.0] * 3, rel=0.05)
    assert shifts.mean(0).abs().max() < 0.2
