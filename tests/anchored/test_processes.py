"""Two processes (torchrun, gloo) that share anchors and queries compute what one computes."""

import pytest
import torch

from flashgatr import Processes
from tests.engine.test_distributed import torchrun

from .networks import make_data, make_net


def test_two_processes_have_the_outputs_gradients_and_decoded_bits_of_one():
    done = torchrun("-m", "tests.anchored.worker")
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):  # lines of two processes may run into each other
        assert f"process {rank}: all laws hold" in done.stdout


def test_shares_are_consecutive_and_complete():
    processes = Processes()
    for size in (1, 2, 3, 7):
        processes.size, found = size, []
        for processes.rank in range(size):
            found += range(20)[processes.share(20)]
        assert found == list(range(20))


def test_one_process_needs_no_group():
    net, processes, x = make_net(), Processes(), torch.rand(3, 2)
    mv, s = make_data(6)
    index = torch.arange(3)
    for found, expected in zip(
        net(mv, s, anchors=index, processes=processes), net(mv, s, anchors=index), strict=True
    ):
        assert torch.equal(found, expected)
    assert processes.gather(x) is x
    assert processes.evaluate(torch.sum, x, gather=True) == x.sum()
    with pytest.raises(ValueError, match="pass anchors=…, too"):
        net(mv, s, processes=processes)
