"""Saved networks load bit for bit, or are refused."""

import json
import random

import pytest
import torch

from flashgatr import AxialGATr, GATr, LoadError, io
from flashgatr.io import files

OPTIONS = dict(
    in_mv_channels=2, out_mv_channels=1, hidden_mv_channels=2, hidden_s_channels=4, num_blocks=1,
    num_heads=2, reinsert_mv_channels=(1,),
)  # fmt: skip


class _Sharded(torch.Tensor):
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_network_comes_back_bit_for_bit(tmp_path, dtype):
    net = GATr(**OPTIONS, learned_weights="all").to(dtype)
    net.save_pretrained(tmp_path / "net")
    again = GATr.from_pretrained(tmp_path / "net")
    assert again.config == net.config
    for name, x in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], x)
        assert again.state_dict()[name].dtype == dtype
    assert sorted(p.name for p in (tmp_path / "net").iterdir()) == [io.CONFIG, io.WEIGHTS]


def test_parameters_of_different_dtypes_come_back_as_they_were(tmp_path):
    net = GATr(**OPTIONS)
    net.blocks.bfloat16()
    net.save_pretrained(tmp_path)
    again = GATr.from_pretrained(tmp_path)
    for (name, x), (other, y) in zip(net.named_parameters(), again.named_parameters(), strict=True):
        assert (name, x.dtype, x.requires_grad) == (other, y.dtype, y.requires_grad)
        assert torch.equal(x, y)
    mv = torch.randn(5, 2, 16)
    assert torch.equal(net(mv)[0], again(mv)[0])


def test_the_given_tensors_are_copied():
    net, other = GATr(**OPTIONS), GATr(**OPTIONS)
    state = net.state_dict()
    io.fill(other, state)
    with torch.no_grad():
        other.linear_in.weight.zero_()
    assert net.linear_in.weight.any()


def test_our_writer_writes_what_the_library_reads():
    from safetensors.torch import load

    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    state = {str(dtype): torch.randn(3, 2).mT.to(dtype) for dtype in dtypes}
    state |= {"empty": torch.zeros(0, 3), "one": torch.tensor(2.5)}
    again = load(files.to_safetensors(state))
    assert again.keys() == state.keys()
    for name, x in state.items():
        assert torch.equal(again[name], x)
        assert again[name].dtype == x.dtype
    with pytest.raises(TypeError, match="whole tensors"):
        files.to_safetensors({"x": torch.zeros(1).as_subclass(_Sharded)})
    with pytest.raises(TypeError, match="complex64"):
        files.to_safetensors({"x": torch.zeros(1, dtype=torch.complex64)})


def test_weights_of_another_kind_are_refused():
    net = GATr(**OPTIONS)
    state = {name: x.long() for name, x in net.state_dict().items()}
    with pytest.raises(LoadError, match="expected floating point"):
        io.fill(net, state)


def test_saving_again_replaces_the_network(tmp_path):
    GATr(**OPTIONS).save_pretrained(tmp_path)
    net = AxialGATr(**OPTIONS, rotary=(True, False))
    net.save_pretrained(tmp_path)
    assert AxialGATr.from_pretrained(tmp_path).config.rotary == (True, False)
    with pytest.raises(LoadError, match="holds the network AxialGATr"):
        GATr.from_pretrained(tmp_path)


def _broken(tmp_path, change):
    GATr(**OPTIONS).save_pretrained(tmp_path)
    header = json.loads((tmp_path / io.CONFIG).read_text())
    change(header)
    (tmp_path / io.CONFIG).write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda h: h.update(format=2), "format 2"),
        (lambda h: h.pop("sha256"), "lacks 'sha256'"),
        (lambda h: h.update(config=3), "does not describe"),
        (lambda h: h["config"].update(num_block=3), "num_blocks"),
        (lambda h: h["config"].update(num_heads=4), "do not fit|has shape"),
        (lambda h: h["config"].update(num_blocks=2), "missing"),
        (lambda h: h["config"].update(num_blocks=1.5), "num_blocks"),
        (lambda h: h["config"].pop("in_mv_channels"), "in_mv_channels"),
    ],
)
def test_a_changed_header_is_refused(tmp_path, change, text):
    _broken(tmp_path, change)
    with pytest.raises(LoadError, match=text):
        GATr.from_pretrained(tmp_path)


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(LoadError, match=r"^cannot read .*config\.json"):
        GATr.from_pretrained(tmp_path / "nowhere")
    GATr(**OPTIONS).save_pretrained(tmp_path)
    weights = tmp_path / io.WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(LoadError, match="damaged"):
        GATr.from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(LoadError, match="cannot read"):
        GATr.from_pretrained(tmp_path)


def test_weights_that_are_no_safetensors_are_refused(tmp_path):
    import hashlib

    _broken(tmp_path, lambda h: h.update(sha256=hashlib.sha256(b"junk").hexdigest()))
    (tmp_path / io.WEIGHTS).write_bytes(b"junk")
    with pytest.raises(LoadError, match="not a safetensors file"):
        GATr.from_pretrained(tmp_path)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [io.CONFIG, io.WEIGHTS])
def test_mutated_files_give_our_errors_or_the_network(tmp_path, name, count):
    net = GATr(**OPTIONS)
    net.save_pretrained(tmp_path)
    chance, file = random.Random(0), tmp_path / name
    good = file.read_bytes()
    for _ in range(count):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        file.write_bytes(bad[: chance.choice([len(bad), chance.randrange(len(bad))])])
        try:
            again = GATr.from_pretrained(tmp_path)
        except LoadError:
            continue
        assert again.state_dict().keys() == net.state_dict().keys()


def test_a_crash_while_writing_leaves_the_old_network(tmp_path, monkeypatch):
    net = GATr(**OPTIONS)
    net.save_pretrained(tmp_path)

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        GATr(**OPTIONS).save_pretrained(tmp_path)
    monkeypatch.undo()
    again = GATr.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), net.parameters(), strict=True))


def test_the_configuration_is_written_after_the_weights_that_it_describes(tmp_path, monkeypatch):
    """A process that dies in between leaves weights that no configuration names."""
    written = []

    def write(path, content):
        written.append(path.name)

    monkeypatch.setattr(files, "write", write)
    GATr(**OPTIONS).save_pretrained(tmp_path)
    assert written == [io.WEIGHTS, io.CONFIG]


def test_tensors_begin_at_a_multiple_of_eight_bytes():
    """Readers may map a file into memory and use its numbers in place."""
    for name in ("a", "ab", "abc", "abcd", "abcde"):
        content = files.to_safetensors({name: torch.zeros(2)})
        assert int.from_bytes(content[:8], "little") % 8 == 0
