"""Data sets do not depend on how they are made, and are read bit for bit or refused.

Other data never overwrite them.
"""

import json
import os
import random
import struct
from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from typer.testing import CliRunner

from flashgatr.experiments.cli import application
from flashgatr.experiments.nbody import data
from flashgatr.experiments.nbody.data import SETS, DataError, describe, generate, load
from flashgatr.experiments.nbody.simulate import Gravity, State, Systems, evolve
from flashgatr.io.files import StoredArray, header_digest

FAST = Gravity(steps=2)
NAMES = ("mass", "position", "velocity", "target")


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    generate(made, train=2500, others=1200, settings=FAST)
    return made


def test_the_five_sets_are_what_the_appendix_says(folder):
    found = describe(folder)
    assert list(found) == ["train", "val", "eval", "more_bodies", "translated"]
    for name, description in found.items():
        count, bodies = 2500 if name == "train" else 1200, 6 if name == "more_bodies" else 4
        assert (description.count, description.settings.bodies) == (count, bodies)
        tensors = load(folder, name)
        assert tuple(tensors) == NAMES
        assert all(x.dtype == torch.float64 for x in tensors.values())
        assert tensors["mass"].shape == (count, bodies)
        assert all(tensors[key].shape == (count, bodies, 3) for key in NAMES[1:])
        mean = tensors["position"].mean(dim=(0, 1))
        assert torch.allclose(
            mean, torch.tensor([200.0 * (name == "translated"), 0, 0]).double(), atol=4
        )
        state = State(*(tensors[key].numpy() for key in NAMES[:3]))
        final = evolve(state, description.settings)
        assert np.abs(final - tensors["target"].numpy()).max() < 1e-10


def test_sets_have_no_system_in_common(folder):
    masses = torch.cat([load(folder, name)["mass"].ravel() for name in SETS])
    assert len(masses.unique()) == len(masses)


def test_the_number_of_workers_does_not_matter(folder, tmp_path):
    generate(tmp_path, train=2500, others=1200, settings=FAST, workers=2)
    assert files(tmp_path) == files(folder)


def test_a_longer_set_begins_with_the_shorter(folder, tmp_path):
    generate(tmp_path, train=1300, settings=FAST, sets=["train"])
    short, long = load(tmp_path, "train"), load(folder, "train", limit=1300)
    assert all(torch.equal(short[name], long[name]) for name in NAMES)
    generate(tmp_path, train=2500, settings=FAST, sets=["train"])  # grows
    assert files(tmp_path)["train.safetensors"] == files(folder)["train.safetensors"]
    generate(tmp_path, train=10, settings=FAST, sets=["train"])  # does not shrink
    assert len(load(tmp_path, "train")["mass"]) == 2500
    assert all(len(x) == 7 for x in load(tmp_path, "train", limit=7).values())


def test_the_seed_matters(folder, tmp_path):
    generate(tmp_path, others=10, seed=1, settings=FAST, sets=["val"])
    assert not torch.equal(load(tmp_path, "val")["mass"], load(folder, "val", 10)["mass"])


def test_every_20_000_steps_are_worth_a_process(monkeypatch):
    monkeypatch.setattr(data.os, "cpu_count", lambda: 3)
    wanted = {0: 1, 39_999: 1, 40_000: 2, 10**9: 3}
    assert {steps: data._workers(None, steps) for steps in wanted} == wanted


def test_the_command_makes_sets_of_the_sizes_that_are_told(tmp_path):
    arguments = ["data", "nbody", "-f", str(tmp_path), "--train", "7", "--others", "3"]
    done = CliRunner().invoke(application(), arguments, catch_exceptions=False)
    counts = {name: len(load(tmp_path, name)["mass"]) for name in SETS}
    assert counts == {name: 7 if name == "train" else 3 for name in SETS}
    assert done.output.count("systems, sha256 ") == len(counts)


def test_generation_resumes_where_it_was_interrupted(folder, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def kill(name, done, total):
        if name == "eval" and done == 1000:
            raise Killed

    options = dict(train=2500, others=1200, settings=FAST)
    with pytest.raises(Killed):
        generate(tmp_path, **options, progress=kill)
    assert sorted(files(tmp_path)) == ["train.safetensors", "val.safetensors"]
    made = []
    simulate = data.simulate
    monkeypatch.setattr(data, "simulate", lambda s, *a: made.append(s) or simulate(s, *a))
    calls = []
    generate(tmp_path, **options, progress=lambda *call: calls.append(call))
    assert len(made) == 6  # two chunks for each of the three that were missing
    assert calls[:2] == [("train", 2500, 2500), ("val", 1200, 1200)]
    assert calls[2:4] == [("eval", 1000, 1200), ("eval", 1200, 1200)]
    assert files(tmp_path) == files(folder)


def test_a_crash_while_writing_leaves_the_old_file(folder, tmp_path, monkeypatch):
    generate(tmp_path, others=5, settings=FAST, sets=["val"])
    before = files(tmp_path)

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        generate(tmp_path, others=20, settings=FAST, sets=["val"])
    assert files(tmp_path) == before


def test_data_made_otherwise_are_not_overwritten(folder):
    before = files(folder)
    with pytest.raises(
        DataError, match=r"train.safetensors was made with other settings \(steps 2, not 100\)"
    ):
        generate(folder, train=10)
    with pytest.raises(DataError, match=r"seed 0, not 3\); choose another folder or delete"):
        generate(folder, seed=3, settings=FAST, sets=["eval"])
    assert files(folder) == before


def test_a_damaged_file_is_not_overwritten(tmp_path):
    (tmp_path / "val.safetensors").write_text("my precious")
    with pytest.raises(DataError, match=r"val.safetensors is damaged .* delete it"):
        generate(tmp_path, others=5, settings=FAST, sets=["val"])
    assert (tmp_path / "val.safetensors").read_text() == "my precious"


def test_missing_data_name_the_command_that_makes_them(tmp_path, folder):
    with pytest.raises(DataError, match=r"no eval set in .*`flashgatr data nbody`"):
        load(tmp_path / "nowhere", "eval")
    with pytest.raises(DataError, match=r"no n-body data in .*`flashgatr data nbody`"):
        describe(tmp_path)
    with pytest.raises(
        DataError, match=r"holds 1200 systems, 1201 are needed.*`flashgatr data nbody`"
    ):
        load(folder, "eval", limit=1201)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (dict(sets=["test"]), "unknown set 'test'; expected one of train, val"),
        (dict(train=0), "train must be an integer of at least 1, got 0"),
        (dict(others=2.5), "others must be"),
        (dict(seed=-1), "seed must be an integer of at least 0"),
        (dict(workers=0), "workers must be an integer of at least 1"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, options, text):
    with pytest.raises(ValueError, match=text):
        generate(tmp_path, **options)
    with pytest.raises(ValueError, match="unknown set"):
        load(tmp_path, "../train")
    with pytest.raises(ValueError, match="limit must be at least 1"):
        load(tmp_path, "train", limit=0)


def test_one_flipped_bit_is_found(folder, tmp_path):
    good = (folder / "val.safetensors").read_bytes()
    for place in (-1, len(good) // 2, -len(good) // 3):
        bad = bytearray(good)
        bad[place] ^= 1
        (tmp_path / "val.safetensors").write_bytes(bad)
        with pytest.raises(DataError, match=r"val.safetensors is damaged .*SHA-256"):
            load(tmp_path, "val")


def test_a_file_cut_short_or_of_another_set_is_refused(folder, tmp_path):
    good = (folder / "val.safetensors").read_bytes()
    for size in (0, 7, 100, len(good) - 1):
        (tmp_path / "val.safetensors").write_bytes(good[:size])
        with pytest.raises(DataError, match=r"val.safetensors is damaged"):
            load(tmp_path, "val")
    (tmp_path / "eval.safetensors").write_bytes(good)
    with pytest.raises(DataError, match="it holds the set 'val', not 'eval'"):
        load(tmp_path, "eval")
    (tmp_path / "train.safetensors").mkdir()
    with pytest.raises(DataError, match="cannot read"):
        generate(tmp_path, settings=FAST, sets=["train"])


def forge(folder, *, header=(), drop=(), tensors=None, metadata=None):
    """A file whose hash is right though its content is not."""
    shapes = dict(mass=(3, 4), position=(3, 4, 3), velocity=(3, 4, 3), target=(3, 4, 3))
    tensors = {key: np.ones(shape) for key, shape in shapes.items()} | (tensors or {})
    head = dict(format=1, set="val", seed=0, settings=asdict(Gravity())) | dict(header)
    content = {
        key: StoredArray("", tensors[key].shape, tensors[key].tobytes()) for key in Systems._fields
    }
    head = {"sha256": header_digest(head, content)} | head
    head = {key: x for key, x in head.items() if key not in drop}
    metadata = {"nbody": json.dumps(head)} if metadata is None else metadata
    (folder / "val.safetensors").write_bytes(save(tensors, metadata))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(metadata={}), "does not say how it was made"),
        (dict(metadata={"nbody": "[" * 100_000}), "damaged"),
        (dict(metadata={"nbody": "[]"}), "does not say how"),
        (dict(header=dict(format=2)), "format is 2, this version reads 1"),
        (dict(drop=["sha256"]), "does not say its sha256"),
        (dict(header=dict(seed="x")), "does not say its seed"),
        (dict(header=dict(settings=[])), "does not say its settings"),
        (dict(header=dict(settings=dict(planets=3))), "planets"),
        (dict(header=dict(settings=dict(step_size=1e999))), "step_size"),
        (dict(header=dict(settings=dict(bodies=5))), r"mass has shape \(3, 4\), expected \(3, 5\)"),
        (dict(tensors=dict(extra=np.ones(1))), "its tensors are"),
        (dict(tensors=dict(mass=np.ones(()))), "mass has shape"),
        (dict(tensors=dict(mass=np.ones((0, 4)))), "mass has shape"),
        (dict(tensors=dict(target=np.ones((2, 4, 3)))), "target has shape"),
        (dict(tensors=dict(target=np.ones((3, 4, 3), np.float32))), "target has dtype F32"),
        (dict(tensors=dict(velocity=np.full((3, 4, 3), np.nan))), "velocity has entries"),
        (dict(tensors=dict(mass=np.full((3, 4), np.inf))), "mass has entries"),
    ],
)
def test_content_that_makes_no_sense_is_refused(tmp_path, change, text):
    forge(tmp_path)
    load(tmp_path, "val")
    forge(tmp_path, **change)
    with pytest.raises(DataError, match=text) as caught:
        load(tmp_path, "val")
    assert "val.safetensors" in str(caught.value)


def mutated(good, chance):
    """Bytes changed, mostly in the header, which tells what the others mean; the rest cut, grown
    or moved.
    """
    bad = bytearray(good)
    header = 8 + struct.unpack("<Q", good[:8])[0]
    for _ in range(chance.randint(1, 4)):
        kind = chance.random()
        place = chance.randrange(header if chance.random() < 0.8 else len(bad))
        if kind < 0.5:
            bad[place] = chance.randrange(256)
        elif kind < 0.7:
            bad[place] = ord(chance.choice('0123456789-.eE[]{}",: nul'))
        elif kind < 0.8:
            bad[place:place] = bad[place : place + chance.randrange(40)]
        elif kind < 0.9:
            del bad[place : place + chance.randrange(1, 9)]
        else:
            bad[:8] = struct.pack("<Q", chance.choice([0, 2**63, header, chance.randrange(2**32)]))
        header = min(header, len(bad))
    return bytes(bad[: chance.randrange(len(bad))] if chance.random() < 0.1 else bad)


def mutate_and_load(folder, times):
    generate(folder, others=8, settings=FAST, sets=["val"])
    good, told = load(folder, "val"), describe(folder)
    file = folder / "val.safetensors"
    content = file.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(times):
        file.write_bytes(mutated(content, chance))
        try:
            found = load(folder, "val")
            assert describe(folder) == told
        except DataError:
            refused += 1
            continue
        assert found.keys() == good.keys()
        assert all(torch.equal(found[name], good[name]) for name in NAMES)
    assert refused > 0.9 * times


def test_mutated_files_give_our_errors_or_the_same_data(tmp_path):
    mutate_and_load(tmp_path, 300)


@pytest.mark.slow
def test_ten_thousand_mutated_files_give_our_errors_or_the_same_data(tmp_path):
    mutate_and_load(tmp_path, 10_000)
