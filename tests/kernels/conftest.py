"""What tests of the kernels on a CPU need."""

import pytest

from flashgatr.kernels.cpu import library as c_kernels


@pytest.fixture(scope="module")
def compiler():
    if c_kernels.library() is None:
        pytest.skip("no C compiler")
