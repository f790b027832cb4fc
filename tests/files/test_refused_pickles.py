"""What is said of files that torch's weights-only loader refuses."""

import os
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


@pytest.mark.parametrize("content", [b"", b"hi there", b"PK\x03\x04 and no more"])
def test_of_a_file_without_tensors_is_said_what_it_is(tmp_path, content):
    """torch says nothing of an empty file, and of a text the number of a character."""
    told = {"net.pt": "it is damaged, or nothing that torch.save wrote"}
    for name, sentence in (
        told | {"net.safetensors": "is damaged, or no safetensors file"}
    ).items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(LoadError, match=sentence):
            GATr.from_original(tmp_path / name)


def test_a_pipe_or_device_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "net.pt")
    for source in (tmp_path / "net.pt", "/dev/zero"):
        with pytest.raises(LoadError, match="is a pipe or a device; save the weights to a file"):
            GATr.from_original(source)
