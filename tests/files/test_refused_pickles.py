"""What is said of files that torch's weights-only loader refuses."""

import pickle

import pytest
import torch

from flashgatr import GATr
from flashgatr.io import LoadError


class Odd:
    """Something that a state dict does not hold."""


def test_nobody_is_told_to_load_files_that_run_code(tmp_path):
    """torch's own message says how to run the file's code."""
    file = tmp_path / "net.pt"
    torch.save({"net": Odd()}, file)
    with pytest.raises(LoadError) as caught:
        GATr.from_original(file)
    told = str(caught.value)
    for advice in ("weights_only=False", "add_safe_globals", "trusted"):
        assert advice not in told
    assert "it refers to" in told
    assert "Odd" in told
    assert "torch.save(net.state_dict(), file)" in told
    assert len(told) < 500
    file.write_bytes(pickle.dumps("nothing", protocol=0)[:5])
    with pytest.raises(LoadError, match="weights-only") as caught:
        GATr.from_original(file)
    assert "weights_only=False" not in str(caught.value)
