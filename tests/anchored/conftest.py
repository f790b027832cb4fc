"""The path on which a test runs: the fused kernels or the plain modules."""

import contextlib

import pytest

from flashgatr.kernels.paths import plain_kernels

from .networks import make_data, make_net

PATHS = {"fused": contextlib.nullcontext, "plain": plain_kernels}


@pytest.fixture(params=PATHS)
def path(request):
    """Runs the test on one path, and fails if that path does not run."""
    with PATHS[request.param]():
        mv, _ = make_data(1)
        assert (make_net().obstacle(mv) is None) == (request.param == "fused")
        yield request.param
