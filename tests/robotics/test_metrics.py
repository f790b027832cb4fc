"""Errors of estimated noise, worked out by hand: by kind, and by how noisy windows are."""

import pytest
import torch

from flashgatr.experiments.robotics.layouts import from_objects
from flashgatr.experiments.robotics.metrics import summarise, window_errors


def test_errors_of_windows_are_means_over_free_frames_by_kind():
    position, directions, flags = (
        torch.ones(1, 4, 5, 3),
        torch.ones(1, 4, 5, 2, 3),
        torch.ones(1, 4, 4),
    )
    errors = from_objects(2 * position, 3 * directions, 4 * flags)  # (1, 4, 49)
    clamp = torch.tensor([[True, False, False, True]])
    errors[clamp] = 0
    every = (15 * 4 + 30 * 9 + 4 * 16) / 49
    torch.testing.assert_close(
        window_errors(errors, clamp), torch.tensor([[every, 4.0, 9.0, 16.0]]).double()
    )


def test_windows_of_the_first_and_last_quarter_of_the_diffusion_steps_are_averaged_apart():
    """At the limits: of 1,000 steps, 249 is of the first quarter, and 750 of the last."""
    t = torch.tensor([0, 249, 250, 749, 750, 999])
    errors = torch.tensor([1.0, 2, 4, 8, 16, 32])[:, None] * torch.tensor([1.0, 2, 3, 4])
    assert summarise(errors, t, 1000) == pytest.approx(
        {
            "mse": 63 / 6,
            "position": 2 * 63 / 6,
            "direction": 3 * 63 / 6,
            "flag": 4 * 63 / 6,
            "nearly_clean": 1.5,
            "nearly_noise": 24.0,
            "cases": 6,
        }
    )
    assert "nearly_noise" not in summarise(errors[:2], t[:2], 1000)
