"""What tests of the kernels on a CPU need."""

import os
import shutil

import pytest

from flashgatr.kernels.cpu import library as c_kernels


@pytest.fixture(scope="module")
def compiler():
    """Skips tests where there is no compiler; a source that one refuses is a failure."""
    if not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        pytest.skip("no C compiler")
    assert c_kernels.library() is not None, "the C source does not compile"
