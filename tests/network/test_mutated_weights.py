"""A changed weight file is refused; whatever is loaded has the saved numbers, bit by bit."""

import random

import pytest
import torch

from flashgatr import GATr, LoadError, io

OPTIONS = dict(
    in_mv_channels=1, out_mv_channels=1, hidden_mv_channels=2, hidden_s_channels=2, num_blocks=1,
    num_heads=1,
)  # fmt: skip


def _mutations(good, count):
    """Copies with one to four other bytes, some of them cut off."""
    chance = random.Random(1)
    for _ in range(count):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        yield bytes(bad[: chance.choice([len(bad), chance.randrange(len(bad))])])


def test_every_changed_weight_file_is_refused(tmp_path):
    GATr(**OPTIONS).save_pretrained(tmp_path)
    file = tmp_path / io.WEIGHTS
    good = file.read_bytes()
    for bad in _mutations(good, 200):
        if bad == good:
            continue
        file.write_bytes(bad)
        with pytest.raises(LoadError):
            GATr.from_pretrained(tmp_path)


def test_one_bit_of_one_weight_is_enough(tmp_path):
    GATr(**OPTIONS).save_pretrained(tmp_path)
    file = tmp_path / io.WEIGHTS
    good = file.read_bytes()
    start = 8 + int.from_bytes(good[:8], "little")
    for place in range(start, len(good), max(1, (len(good) - start) // 50)):
        bad = bytearray(good)
        bad[place] ^= 1
        file.write_bytes(bad)
        with pytest.raises(LoadError, match="damaged"):
            GATr.from_pretrained(tmp_path)
    file.write_bytes(good)
    GATr.from_pretrained(tmp_path)


def test_a_changed_digit_of_the_configuration_is_refused_or_leaves_the_weights_alone(tmp_path):
    net = GATr(**OPTIONS)
    net.save_pretrained(tmp_path)
    file, saved = tmp_path / io.CONFIG, net.state_dict()
    good = file.read_bytes()
    loaded = 0
    for place in (k for k, byte in enumerate(good) if chr(byte).isdigit()):
        bad = bytearray(good)
        bad[place] = ord("7") if bad[place] != ord("7") else ord("8")
        file.write_bytes(bad)
        try:
            again = GATr.from_pretrained(tmp_path).state_dict()
        except LoadError:
            continue
        loaded += 1
        assert again.keys() == saved.keys()
        assert all(torch.equal(again[name], x) for name, x in saved.items())
    assert loaded  # such as one with another epsilon
