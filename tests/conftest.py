import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # before torch is imported

import pytest
import torch

torch.set_num_threads(1)


def pytest_pycollect_makemodule():
    """What a module draws when it is imported must not depend on the modules before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def figures(monkeypatch):
    """Functions that draw return the figure instead of a PNG."""
    from flashgatr.experiments.report import plots

    monkeypatch.setattr(plots, "png", lambda figure: figure)
