"""Networks on pairs in the scaling benchmark, on a GPU: captured, and until memory ends."""

import pytest
import torch

from flashgatr.experiments.bench import largest, scaling, timing
from flashgatr.experiments.bench.artery_step import fixed_size

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def device(monkeypatch):
    monkeypatch.undo()  # the other tests of this folder see no GPU
    return torch.device("cuda")


@pytest.mark.parametrize("model", scaling.ON_PAIRS)
def test_a_step_on_pairs_is_captured(model, device):
    make = scaling.make_of(model, None, False, device)
    found = fixed_size(make, (4, 16), graph=True)
    assert found.metrics["time"] > 0
    assert found.metrics["memory"] > 0


@pytest.mark.parametrize("model", scaling.ON_PAIRS)
def test_running_out_of_memory_ends_a_search_and_leaves_the_device_usable(model, device):
    make = scaling.make_of(model, None, True, device)
    timing.release()
    torch.cuda.set_per_process_memory_fraction(0.01)  # of an H200: 1.4 GiB
    try:
        fails = 16
        while largest.runs(make, 4, fails):
            fails *= 2
        found = largest.search(lambda n: largest.runs(make, 4, n), fails // 2, fails)
        assert fails // 2 <= found.fits < found.fails <= fails
        assert largest.runs(make, 4, 16)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
