"""Products are exact to float32 unless a test asks otherwise."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _full_float32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
