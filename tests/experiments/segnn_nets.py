"""A small SEGNN, bodies for it, and how its numbers are compared."""

import torch

from flashgatr.experiments.baselines import SEGNN


def small_net(**options):
    return SEGNN(12, 2, **options).double()


def random_bodies(*shape):
    position, velocity = torch.randn(2, *shape, 3, dtype=torch.float64)
    return position, velocity, torch.randn(*shape, dtype=torch.float64)


def assert_same(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
