"""Files of systems: one stream for all sets; damaged files are refused in a sentence."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from flashgatr.experiments.charges import data
from flashgatr.experiments.charges.data import (
    SETS,
    DataError,
    Systems,
    describe,
    generate,
    load,
    simulate,
)
from flashgatr.experiments.charges.simulate import STANDARD, State, draw
from flashgatr.io.files import StoredArray, header_digest

FAST = replace(STANDARD["charges"], input_step=3, horizons=(2, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("charges")
    generate(made, FAST, train=8, others=4)
    return made


def _files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_sets_follow_each_other_in_one_stream(folder):
    found = describe(folder, "charges")
    assert {name: x.count for name, x in found.items()} == dict(train=8, val=4, test=4)
    assert all(x.settings == FAST and x.seed == 43 for x in found.values())
    stream = np.random.RandomState(43)
    for name, size in SETS.items():
        state = draw(FAST, size, stream)
        count = found[name].count
        expected = simulate(State(*(x[:count] for x in state)), FAST)
        tensors = load(folder, "charges", name, 5)
        for key in ("charge", "position", "velocity"):
            assert np.array_equal(tensors[key].numpy(), getattr(expected, key))
        for key in ("target", "leaving"):
            assert np.array_equal(tensors[key].numpy(), getattr(expected, key)[:, 1])


def test_a_longer_set_begins_with_the_shorter_and_others_are_kept(folder, tmp_path):
    generate(tmp_path, FAST, train=3, others=4)
    short = load(tmp_path, "charges", "train", 2)
    before, made = _files(tmp_path), []
    generate(tmp_path, FAST, train=8, others=4, progress=lambda *x: made.append(x))
    assert made == [("train", 8)]
    assert _files(tmp_path) == _files(folder)
    assert _files(tmp_path)["charges_val.safetensors"] == before["charges_val.safetensors"]
    long = load(tmp_path, "charges", "train", 2, limit=3)
    assert all(torch.equal(short[key], long[key]) for key in short)


def test_laws_of_force_live_side_by_side(tmp_path):
    for name, standard in STANDARD.items():
        generate(tmp_path, replace(standard, input_step=0, horizons=(1,)), train=2, others=2)
        assert set(describe(tmp_path, name)) == set(SETS)
    assert len(_files(tmp_path)) == 9


def test_data_made_otherwise_are_not_overwritten(folder):
    before = _files(folder)
    with pytest.raises(DataError, match=r"other settings \(input_step 3, not 4\); choose another"):
        generate(folder, replace(FAST, input_step=4), train=8, others=4)
    with pytest.raises(DataError, match=r"other settings \(seed 43, not 1\)"):
        generate(folder, FAST, train=8, others=4, seed=1)
    assert _files(folder) == before


def test_missing_data_name_the_command_that_makes_them(folder, tmp_path):
    with pytest.raises(
        DataError, match=r"no test set of gravity .*`flashgatr data charges --force"
    ):
        load(tmp_path, "gravity", "test", 1000)
    with pytest.raises(DataError, match=r"no data of charges_norm .* --clip norm`"):
        describe(tmp_path, "charges_norm")
    with pytest.raises(DataError, match=r"holds 8 systems, 9 are needed.*`flashgatr data charges`"):
        load(folder, "charges", "train", 2, limit=9)
    with pytest.raises(DataError, match="has targets 2, 5 steps after the input, none after 1000"):
        load(folder, "charges", "train", 1000)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(train=0), "train must be an integer from 1 to 10,000, got 0"),
        (dict(train=10_001), "train must be"),
        (dict(others=2.5), "others must be an integer from 1 to 2,000"),
        (dict(seed=-1), "seed must be"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, options, text):
    with pytest.raises(ValueError, match=text):
        generate(tmp_path, FAST, **options)
    with pytest.raises(ValueError, match=r"unknown set '../train'"):
        load(tmp_path, "charges", "../train", 2)
    with pytest.raises(ValueError, match="unknown data 'springs'"):
        load(tmp_path, "springs", "train", 2)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        load(tmp_path, "charges", "train", 2, limit=0)


def test_a_changed_or_shortened_file_is_found(folder, tmp_path):
    good = (folder / "charges_val.safetensors").read_bytes()
    for place in (-1, len(good) // 2):
        bad = bytearray(good)
        bad[place] ^= 1
        (tmp_path / "charges_val.safetensors").write_bytes(bad)
        with pytest.raises(DataError, match=r"charges_val.safetensors is damaged .*SHA-256"):
            load(tmp_path, "charges", "val", 2)
    for size in (0, 7, 100, len(good) - 1):
        (tmp_path / "charges_val.safetensors").write_bytes(good[:size])
        with pytest.raises(DataError, match=r"is damaged .* delete it and run `flashgatr data"):
            load(tmp_path, "charges", "val", 2)
    for other in ("charges_test", "charges_norm_val"):
        (tmp_path / f"{other}.safetensors").write_bytes(good)
        with pytest.raises(DataError, match=f"it holds charges val, not {other.replace('_', '.')}"):
            load(tmp_path, *other.rsplit("_", 1), 2)


def _forge(folder, *, header=(), tensors=None, metadata=None):
    """A file whose hash is right though its content is not."""
    later = (3, 2, 5, 3)
    shapes = dict(
        charge=(3, 5), position=(3, 5, 3), velocity=(3, 5, 3), target=later, leaving=later
    )
    tensors = {key: np.ones(shape) for key, shape in shapes.items()} | (tensors or {})
    head = dict(format=2, set="val", seed=0, settings=asdict(FAST)) | dict(header)
    content = {
        key: StoredArray("", tensors[key].shape, tensors[key].tobytes()) for key in Systems._fields
    }
    head = {"sha256": header_digest(json.loads(json.dumps(head)), content)} | head
    metadata = {data.KEY: json.dumps(head)} if metadata is None else metadata
    (folder / "charges_val.safetensors").write_bytes(save(tensors, metadata))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(metadata={}), "does not say how it was made"),
        (dict(metadata={"charges": "[" * 100_000}), "damaged"),
        (dict(header=dict(format=1)), "format is 1, this version reads 2"),
        (dict(header=dict(settings=dict(planets=3))), "planets"),
        (dict(header=dict(settings=dict(horizons=3))), "damaged"),
        (dict(header=dict(settings=dict(horizons=[1]))), r"expected \(3, 1, 5, 3\)"),
        (dict(tensors=dict(extra=np.ones(1))), "its tensors are"),
        (dict(tensors=dict(charge=np.ones((0, 5)))), "charge has shape"),
        (dict(tensors=dict(velocity=np.ones((3, 5, 3), np.float32))), "velocity has dtype F32"),
        (dict(tensors=dict(target=np.full((3, 2, 5, 3), np.nan))), "entries that are not finite"),
    ],
)
def test_content_that_makes_no_sense_is_refused(tmp_path, change, text):
    _forge(tmp_path)
    load(tmp_path, "charges", "val", 2)
    _forge(tmp_path, **change)
    with pytest.raises(DataError, match=text):
        load(tmp_path, "charges", "val", 2)
