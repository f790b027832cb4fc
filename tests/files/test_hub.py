"""`from_pretrained("hf://owner/name")`, with a stand-in for huggingface_hub."""

import sys
from types import SimpleNamespace

import pytest
import torch

from flashgatr import AxialGATr, GATr, LoadError

SMALL = dict(
    in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=2, hidden_s_channels=4, num_blocks=1,
    num_heads=1,
)  # fmt: skip


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one network; `calls` lists what was asked of it."""
    folder = tmp_path / "snapshot"
    net = GATr(**SMALL)
    net.save_pretrained(folder)
    calls = []

    def snapshot_download(repo_id, *, revision=None, allow_patterns=None):
        calls.append((repo_id, revision, allow_patterns))
        if repo_id != "owner/name":
            raise RuntimeError("404 Client Error: repository not found")
        return str(folder)

    stand_in = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    return SimpleNamespace(net=net, calls=calls, folder=folder)


@pytest.mark.parametrize("revision", [None, "v1.0", "refs/pr/1", "0123abc"])
def test_a_network_of_the_hub(hub, revision):
    tail = "" if revision is None else f"@{revision}"
    net = GATr.from_pretrained(f"hf://owner/name{tail}")
    for key, value in hub.net.state_dict().items():
        assert torch.equal(net.state_dict()[key], value)
    assert hub.calls == [("owner/name", revision, ["config.json", "model.safetensors"])]


@pytest.mark.parametrize(
    "name",
    [
        "name",
        "owner/name/more",
        "../name",
        "owner/..",
        "owner/name@../../etc",
        "owner/name@",
        "owner/name@/etc/passwd",
        "owner/a..b",
        "owner//name",
        "owner/na me",
        "owner/name\n",
        "",
    ],
)
def test_names_that_lead_elsewhere_are_refused_before_anything_is_asked(hub, name):
    with pytest.raises(LoadError, match="expected hf://owner/name"):
        GATr.from_pretrained(f"hf://{name}")
    assert not hub.calls


def test_failures_of_the_hub_are_load_errors(hub):
    with pytest.raises(LoadError, match="cannot download hf://owner/other: 404"):
        GATr.from_pretrained("hf://owner/other")


def test_files_of_the_hub_are_checked_as_local_ones(hub):
    with pytest.raises(LoadError, match="holds the network GATr, expected AxialGATr"):
        AxialGATr.from_pretrained("hf://owner/name")
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"cannot read .*model\.safetensors"):
        GATr.from_pretrained("hf://owner/name")


def test_local_folders_need_no_hub(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    GATr.from_pretrained(hub.folder)
    GATr.from_pretrained(str(hub.folder))
    with pytest.raises(ImportError, match=r"pip install \"flashgatr\[hub\]\""):
        GATr.from_pretrained("hf://owner/name")


def test_long_names_are_refused_quickly(hub):
    with pytest.raises(LoadError):
        GATr.from_pretrained("hf://" + "a" * 100_000 + "/" + "b" * 100_000 + "!")
