"""Data sets depend on their recipe alone, and are read bit for bit or refused with a sentence."""

import json
import random
import struct

import numpy as np
import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from flashgatr.experiments.robotics import command, evaluation, layouts
from flashgatr.experiments.robotics.demonstrations import published, sets, shards, stream
from flashgatr.experiments.robotics.demonstrations.shards import (
    DataError,
    describe,
    generate,
    load,
    read,
)
from flashgatr.experiments.robotics.demonstrations.stream import Demonstration, Recipe
from flashgatr.experiments.robotics.demonstrations.windows import REST, Demonstrations
from flashgatr.experiments.robotics.world import physics
from flashgatr.experiments.robotics.world.scenes import Setting
from flashgatr.train.settings import ConfigError

RECIPE = Recipe(seed=3, diversity=1)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 3)


@pytest.fixture(scope="module")
def made():
    return list(stream.stream(RECIPE, 5, workers=1))


@pytest.fixture
def folder(tmp_path, monkeypatch, made):
    """A data set of five demonstrations in two shards."""
    replay_stream(monkeypatch, made)
    generate(tmp_path / "data", 5, RECIPE)
    return tmp_path / "data"


def replay_stream(monkeypatch, made, asked=None):
    """Give demonstrations that exist, instead of planning them again."""

    def replay(recipe, count, *, first=0, workers=None):
        if asked is not None:
            asked.append((first, count))
        return iter(made[first : first + count])

    monkeypatch.setattr(streams_of(shards), "stream", replay)


def streams_of(module):
    return module.streams


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def same(a, b):
    pairs = zip(a, b, strict=True)
    return all((x.states == y.states).all() and (x.ends == y.ends).all() for x, y in pairs)


def test_what_is_read_is_what_was_made(folder, made):
    assert sorted(content(folder)) == [
        "demonstrations_0000.safetensors", "demonstrations_0001.safetensors", "manifest.json"
    ]  # fmt: skip
    assert same(read(folder), made)
    assert same(read(folder, 2), made[:2])
    found = shards.describe(folder)
    assert (found.recipe, found.count, len(found.sha256)) == (RECIPE, 5, 64)


def test_tensors_are_the_geometric_layout(folder, made):
    data = load(folder, 4)
    assert (len(data), data.states.dtype) == (4, torch.float32)
    expected = np.concatenate([layouts.to_geometric(d.states) for d in made[:4]])
    assert np.abs(data.states.numpy() - expected).max() < 1e-6
    assert data.offsets.diff().tolist() == [len(d.states) for d in made[:4]]


def test_a_demonstration_depends_on_the_recipe_and_its_number_only(made):
    assert same([stream.demonstration(RECIPE, 3)], made[3:4])
    assert same(stream.stream(RECIPE, 2, first=2, workers=1), made[2:4])
    for other in (Recipe(4, 1), Recipe(3, 0.9), Recipe(3, 1, Setting(random_yaw=True))):
        states = stream.demonstration(other, 3).states
        assert states.shape != made[3].states.shape or (states != made[3].states).any()


def test_two_jobs_are_worth_a_process(monkeypatch):
    monkeypatch.setattr(stream.os, "cpu_count", lambda: 4)
    wanted = {1: 1, 3: 1, 4: 2, 6: 3, 100: 4}
    assert {jobs: stream.worker_count(None, jobs) for jobs in wanted} == wanted
    assert [stream.worker_count(9, jobs) for jobs in (0, 3, 20)] == [1, 3, 9]


def test_worker_processes_give_the_same_demonstrations(made, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 2)
    assert same(stream.stream(RECIPE, 5, workers=2), made)


def test_a_longer_set_keeps_the_complete_shards(folder, made, monkeypatch, tmp_path):
    before = content(folder)
    longer = [*made, made[0], made[1]]
    asked = []
    replay_stream(monkeypatch, longer, asked)
    calls = []
    generate(folder, 7, RECIPE, progress=lambda *call: calls.append(call))
    assert asked == [(3, 4)]
    assert calls == [(k, 7) for k in range(4, 8)]
    after = content(folder)
    assert after["demonstrations_0000.safetensors"] == before["demonstrations_0000.safetensors"]
    generate(tmp_path / "anew", 7, RECIPE)
    assert content(tmp_path / "anew") == after
    assert generate(folder, 2, RECIPE).count == 7  # does not shrink


def test_an_interruption_loses_no_complete_shard(tmp_path, monkeypatch, made):
    """The next call goes on after the last complete shard, with the same result."""

    def stop(done, wanted):
        if done == 5:
            raise KeyboardInterrupt

    asked = []
    replay_stream(monkeypatch, made, asked)
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "stopped", 5, RECIPE, progress=stop)
    assert same(read(tmp_path / "stopped"), made[:3])
    assert describe(tmp_path / "stopped").missing == 2
    generate(tmp_path / "stopped", 5, RECIPE)
    generate(tmp_path / "whole", 5, RECIPE)
    assert asked == [(0, 5), (3, 2), (0, 5)]
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_fewer_demonstrations_after_an_interruption_must_be_asked_for(tmp_path, monkeypatch, made):
    def stop(done, wanted):
        if done == 5:
            raise KeyboardInterrupt

    replay_stream(monkeypatch, made)
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, 5, RECIPE, progress=stop)
    message = r"holds 3 of 5 demonstrations: .* was interrupted; run it again, or say how many"
    for refused in (sets.divided, sets.require_enough):
        with pytest.raises(ConfigError, match=message):
            refused(tmp_path, 2)
    assert len(sets.divided(tmp_path, 2, 1)["train"]) == 1
    stopped = describe(tmp_path)
    finished = generate(tmp_path, 3, RECIPE)  # three are enough after all
    assert describe(tmp_path) == finished
    assert (finished.missing, finished.sha256) == (0, stopped.sha256)
    assert len(sets.divided(tmp_path, 2)["train"]) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, made):
    replay_stream(monkeypatch, made)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match=r"cannot write demonstrations into .*; choose another"):
            generate(folder, 5, RECIPE)


def test_another_recipe_does_not_overwrite(folder):
    before = content(folder)
    with pytest.raises(DataError, match=r"another recipe \(seed 3, not 0; diversity 1, not 0.5\)"):
        generate(folder, 5)
    assert content(folder) == before


def test_files_say_the_number_of_their_format(folder):
    """Files on users' disks have it: another number would make them unreadable."""
    assert json.loads((folder / "manifest.json").read_text())["format"] == 1


def test_missing_data_name_the_command(tmp_path, folder):
    with pytest.raises(DataError, match=r"no demonstrations in .*`flashgatr data kuka`"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"holds 5 demonstrations, 6 are needed.*demonstrations 6"):
        load(folder, 6)
    (folder / "demonstrations_0001.safetensors").unlink()
    with pytest.raises(DataError, match=r"demonstrations_0001.safetensors is missing"):
        load(folder)
    assert len(load(folder, 3)) == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (dict(format=2), "does not say that its format is 1"),
        (dict(generator=7), "made by generator 7; this version has 1"),
        (dict(demonstrations=True), "the number of demonstrations is True"),
        (dict(demonstrations=7), "its shards are not 3 hashes"),
        (dict(shards=["a", 1]), "its shards are not 2 hashes"),
        (dict(missing=-1), "the number of missing demonstrations is -1"),
        (dict(shards=["a", "b"]), "it is not the file that the manifest names"),
        (dict(recipe=dict(seed=1)), "damaged"),
        (dict(recipe=dict(seed=1, diversity=1.0, setting={})), "another recipe"),
        (dict(recipe=dict(seed=-1, diversity=1.0, setting={})), "seed must be"),
        (dict(recipe=None), "damaged"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(folder, change, text):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=text):
        load(folder)


def mutated(good, chance):
    """Bytes changed, mostly among the first, which tell what the others mean; cut, grown, moved."""
    bad = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        kind = chance.random()
        place = chance.randrange(min(len(bad), 700) if chance.random() < 0.8 else len(bad))
        if kind < 0.5:
            bad[place] = chance.randrange(256)
        elif kind < 0.7:
            bad[place] = ord(chance.choice('0123456789-.eE[]{}",: nul'))
        elif kind < 0.8:
            bad[place:place] = bad[place : place + chance.randrange(40)]
        elif kind < 0.9:
            del bad[place : place + chance.randrange(1, 9)]
        else:
            bad[:8] = struct.pack("<Q", chance.choice([0, 2**63, 500, chance.randrange(2**32)]))
        if not bad:
            break
    return bytes(bad[: chance.randrange(len(bad))] if bad and chance.random() < 0.1 else bad)


def mutate_and_read(folder, times):
    good = read(folder, 1)
    chance = random.Random(0)
    refused = 0
    for path in (folder / "demonstrations_0000.safetensors", folder / "manifest.json"):
        intact = path.read_bytes()
        for _ in range(times // 2):
            path.write_bytes(mutated(intact, chance))
            try:
                assert same(read(folder, 1), good)
            except DataError:
                refused += 1
        path.write_bytes(intact)
    assert refused > 0.8 * times


@pytest.fixture
def little(tmp_path, monkeypatch, made):
    """A data set of short demonstrations."""
    replay_stream(monkeypatch, [Demonstration(d.states[:5], d.ends) for d in made])
    generate(tmp_path / "little", 3, RECIPE)
    return tmp_path / "little"


def test_mutated_files_give_our_errors_or_the_same_data(little):
    mutate_and_read(little, 300)


@pytest.mark.slow
def test_ten_thousand_mutated_files_give_our_errors_or_the_same_data(little):
    mutate_and_read(little, 10_000)


# ---- windows ----


def small_set(*lengths, rest=REST):
    states = torch.arange(float(sum(lengths)))[:, None].repeat(1, 49)
    return Demonstrations(states, torch.tensor([0, *lengths]).cumsum(0), rest)


def test_windows_start_anywhere_and_hold_the_last_state():
    data = small_set(200, 150)
    assert data.starts.tolist() == [200 + 33, 150 + 33]
    assert data.count == 416
    window = data.windows(torch.tensor([0, 199, 232, 233, 415]))[..., 0]
    assert window.shape == (5, 128)
    assert window[0].tolist() == list(range(128))
    assert window[1].tolist() == [199.0] * 128
    assert window[2].tolist() == [199.0] * 128
    assert window[3].tolist() == list(range(200, 328))
    assert window[4].tolist() == [349.0] * 128
    assert data.windows(torch.tensor([150]))[0, :, 0].tolist() == [
        min(k, 199) for k in range(150, 278)
    ]


def test_windows_of_one_demonstration_never_show_another():
    data = small_set(130, 140, 128)
    window = data.windows(torch.arange(data.count))[..., 0].contiguous()
    which = torch.bucketize(window, data.offsets[1:-1], right=True)
    assert (which == which[:, :1]).all()
    assert (window.diff(dim=1) >= 0).all()
    with pytest.raises(ValueError, match="windows are numbered from 0 to"):
        data.windows(torch.tensor([data.count]))


def test_without_rest_short_demonstrations_have_no_windows():
    data = small_set(100, 129, rest=0)
    assert data.starts.tolist() == [0, 2]
    assert data.windows(torch.tensor([0, 1]))[:, 0, 0].tolist() == [100, 101]


def test_prefixes_and_wrong_offsets():
    data = small_set(130, 140)
    assert len(data.first(1)) == 1
    assert data.first(1).states.shape == (130, 49)
    with pytest.raises(ValueError, match="got 3 demonstrations; there are 2"):
        data.first(3)
    with pytest.raises(ValueError, match="offsets must grow from 0"):
        Demonstrations(data.states, torch.tensor([0, 5]))


# ---- published files ----


def test_published_files_are_read_as_the_authors_read_them(tmp_path, made):
    for number, frames in ((10, 700), (9, 400), (2, 200)):
        np.save(tmp_path / f"data_{number}.npy", stream.held(made[0].states, frames).astype(float))
    (tmp_path / "notes.txt").write_text("not one of them")
    data = published.load_published(tmp_path)
    assert data.offsets.diff().tolist() == [200, 300]  # of 9 and 10; 2 is shorter than a window
    assert data.count == (200 - 127) + (300 - 127)
    first = layouts.to_geometric(made[0].states[::2])
    assert np.abs(data.states[:100].numpy() - first[:100]).max() < 1e-6
    assert len(published.load_published(tmp_path, 2)) == 1
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"limit must be at least 1, got {limit}"):
            published.load_published(tmp_path, limit)
    with pytest.raises(DataError, match=r"none of the 1 demonstrations in .* has 128 frames after"):
        published.load_published(tmp_path, 1)


@pytest.mark.parametrize(
    ("save", "text"),
    [
        (lambda p: np.save(p, np.zeros((5, 38))), r"has the shape \(5, 38\), expected \(T, 39\)"),
        (lambda p: np.save(p, np.zeros((5, 39), int)), "5 rows of int64"),
        (lambda p: np.save(p, np.full((5, 39), np.nan)), "entries that are not finite"),
        (lambda p: np.save(p, np.array([{}]), allow_pickle=True), "damaged"),
        (lambda p: p.write_bytes(b""), "damaged"),
        (lambda p: p.mkdir(), "cannot read"),
    ],
)
def test_other_files_are_refused(tmp_path, save, text):
    save(tmp_path / "data_0.npy")
    with pytest.raises(DataError, match=text):
        published.load_published(tmp_path)


@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_published_files_give_our_errors_or_numbers(tmp_path, made, times):
    path = tmp_path / "data_0.npy"
    np.save(path, made[0].states[:40])
    good, chance = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(times):
        path.write_bytes(mutated(good, chance))
        try:
            assert np.isfinite(published.read_published(path)).all()
        except DataError:
            refused += 1
    assert refused > times / 3


# ---- the command ----


@pytest.fixture
def run():
    application = Typer()
    application.command()(command.data)
    return lambda *words: CliRunner().invoke(application, [str(word) for word in words])


def test_the_command_makes_and_keeps_a_data_set(run, tmp_path, made):
    line = ("--folder", tmp_path, "--demonstrations", 2, "--seed", 3, "--diversity", 1)
    done = run(*line)
    assert done.exit_code == 0, done.output
    assert "2 demonstrations, sha256" in done.output
    assert same(read(tmp_path), made[:2])
    before = content(tmp_path)
    assert run(*line).output == done.output
    assert content(tmp_path) == before


@pytest.mark.skipif(not physics.installed("mujoco"), reason="mujoco is missing")
def test_the_command_checks_in_physics(run, tmp_path):
    done = run("--folder", tmp_path, "--demonstrations", 1, "--check", "mujoco", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert "1 of 1 end with a tower in mujoco" in done.output


@pytest.mark.skipif(not physics.installed("mujoco"), reason="mujoco is missing")
def test_the_command_says_how_far_it_is(run, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "EVERY", -1.0)
    done = run("--folder", tmp_path, "--demonstrations", 2, "--check", "mujoco", "--workers", 1)
    assert "planning: demonstration 1 of 2\nplanning: demonstration 2 of 2\n" in done.output
    assert "replaying in mujoco: demonstration 2 of 2\n" in done.output


def test_the_command_refuses_wrong_options(run, tmp_path):
    for words, text in (
        (("--check", "havok"), "unknown engine 'havok'"),
        (("--diversity", 2), "diversity must be a number from 0 to 1"),
        (("--start", "lying"), "start must be one of bent, upright"),
        (("--demonstrations", 0), "demonstrations must be an integer of at least 1"),
        (("--workers", -1), "workers must be an integer of at least 1, got -1"),
    ):
        done = run("--folder", tmp_path / "new", *words)
        assert not (tmp_path / "new").exists()
        assert isinstance(done.exception, ValueError)
        assert text in str(done.exception)
