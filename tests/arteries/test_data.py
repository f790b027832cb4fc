"""Raw samples become shards, once; sets follow sample numbers; a bad sample is named and the
rest goes on.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli
from flashgatr.experiments.arteries import command
from flashgatr.experiments.arteries.data import preparation, verification
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.preparation import prepare_folder
from flashgatr.experiments.arteries.data.raw import merge, read_raw, write_raw
from flashgatr.experiments.arteries.data.sets import DIVISIONS, describe, label_scale, load, tenths
from flashgatr.experiments.arteries.data.shards import read_index, write_shard
from flashgatr.experiments.arteries.data.verification import verify
from flashgatr.experiments.arteries.data.wall import prepare

from .test_fuzz import same
from .tubes import compact, tube

COPY = Path(os.environ.get("FLASHGATR_ARTERIES", "nowhere"))  # where the compact copy is
NUMBERS = (0, 1, 2, 150, 1598, 1599, 1600, 1798, 1799, 1800, 1998, 1999)


def raw_mesh(index, **more):
    return replace(tube(around=6, length=5.0, index=index), **more)


def write_all(folder, numbers, **more):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        write_raw(folder / f"sample_{number:04d}.hdf5", raw_mesh(number, **more))
    return folder


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("source") / "raw", NUMBERS)


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    made = tmp_path_factory.mktemp("made")
    result = prepare_folder(source, made, workers=1)
    assert (result.made, result.kept, result.failed) == (12, 0, {})
    return made


def test_a_folder_holds_its_sources_samples_prepared(source, folder):
    names = [
        "shard_0000",
        "shard_0001",
        "shard_0015",
        "shard_0016",
        "shard_0017",
        "shard_0018",
        "shard_0019",
    ]
    assert list(files(folder)) == [f"{name}.safetensors" for name in names]
    for mesh in load(folder, "train"):
        assert same(mesh, prepare(read_raw(source, mesh.name)))


def test_the_database_gives_the_same_meshes(source, folder, tmp_path):
    merge(source, tmp_path / "database.hdf5")
    prepare_folder(tmp_path / "database.hdf5", tmp_path / "made", workers=1)
    for name in ("train", "val", "test"):
        assert all(map(same, load(tmp_path / "made", name), load(folder, name)))


def test_sets_are_the_original_codes_or_the_published(folder):
    def found(name, **more):
        return [mesh.index for mesh in load(folder, name, **more)]

    assert found("train") == found("train", division="published") == [0, 1, 2, 150, 1598, 1599]
    assert found("val") == [1600, 1798]
    assert found("test") == [1799, 1800, 1998]
    assert found("val", division="published") == [1600, 1798, 1799]
    assert found("test", division="published") == [1800, 1998, 1999]
    assert found("train", limit=4) == [0, 1, 2, 150]
    assert {name: len(x) for name, x in DIVISIONS["original"].items()} == dict(
        train=1600, val=199, test=200
    )
    assert {name: len(x) for name, x in DIVISIONS["published"].items()} == dict(
        train=1600, val=200, test=200
    )


def test_sets_follow_sample_numbers_not_file_names(folder, tmp_path):
    meshes = load(folder, "val") + load(folder, "train", limit=2)[::-1]
    compact(tmp_path / "test_00.safetensors", meshes)
    assert [mesh.index for mesh in load(tmp_path, "train")] == [0, 1]
    assert [mesh.index for mesh in load(tmp_path, "val")] == [1600, 1798]
    with pytest.raises(ArteryError, match="has no test meshes"):
        load(tmp_path, "test")


def test_wrong_requests_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="unknown set 'eval'; expected one of train, val, test"):
        load(folder, "eval")
    with pytest.raises(ValueError, match="unknown division 'mine'"):
        load(folder, "val", division="mine")
    with pytest.raises(ValueError, match="limit must be at least 1"):
        load(folder, "val", limit=0)
    with pytest.raises(ArteryError, match="has 2 val meshes, 3 are needed"):
        load(folder, "val", limit=3)
    with pytest.raises(ArteryError, match=r"no meshes in .*`flashgatr data arteries`"):
        load(tmp_path, "val")
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.safetensors", load(folder, "val"), {})
    with pytest.raises(
        ArteryError, match=r"sample 1600 is both in .*a.safetensors and in b.safetensors"
    ):
        load(tmp_path, "val")


def test_the_label_scale_is_the_root_mean_square_over_masked_nodes(folder):
    meshes = load(folder, "train")
    squares = [(mesh.wss[mesh.mask].astype(float) ** 2).sum(1) for mesh in meshes]
    scale = np.sqrt(np.concatenate(squares).mean())
    assert np.isclose(label_scale(meshes), scale)
    assert np.isclose(describe(folder)["train"].label_scale, scale)
    with pytest.raises(ArteryError, match="sample_0000 has no labels"):
        label_scale([replace(meshes[0], wss=None)])
    with pytest.raises(ArteryError, match="no masked nodes"):
        label_scale([])


def test_synthetic_samples_bring_their_own_division(tmp_path):
    raw = write_all(tmp_path / "raw", range(10), parameters={"synthetic": True})
    prepare_folder(raw, tmp_path / "made", workers=1)
    assert [mesh.index for mesh in load(tmp_path / "made", "train", division="published")] == list(
        range(8)
    )
    assert [[m.index for m in load(tmp_path / "made", name)] for name in ("val", "test")] == [
        [8],
        [9],
    ]
    write_raw(raw / "sample_0010.hdf5", raw_mesh(10))
    result = prepare_folder(raw, tmp_path / "made", workers=1)
    assert list(result.failed.values()) == ["sample_0010 is not synthetic, unlike the first"]
    write_raw(raw / "sample_0010.hdf5", raw_mesh(10, parameters={"synthetic": True}))
    assert (
        prepare_folder(raw, tmp_path / "made", workers=1).made == 11
    )  # the set grows and is divided again
    assert [m.index for m in load(tmp_path / "made", "test")] == [10]


@pytest.mark.parametrize("count", [3, 4, 10, 40, 200, 1999])
def test_tenths_divide_all_samples(count):
    split = tenths(count)
    numbers = [n for ends in split.values() for n in range(*ends)]
    assert numbers == list(range(count))
    assert all(end > start for start, end in split.values())
    tenth = max(1, round(count / 10))
    assert [len(range(*split[name])) for name in ("val", "test")] == [tenth, tenth]
    with pytest.raises(ValueError, match="needs 3 samples"):
        tenths(2)


def test_a_damaged_division_is_refused(folder, tmp_path):
    mesh = load(folder, "val", limit=1)
    for split in (
        {},
        {"train": [0, 1]},
        dict(train=[0, 9], val=[5, 9], test=[9, 9]),
        dict.fromkeys(("train", "val", "test"), "ab"),
    ):
        write_shard(tmp_path / "x.safetensors", mesh, {"split": split})
        with pytest.raises(ArteryError, match="its division is"):
            load(tmp_path, "val")


def test_a_killed_run_goes_on_and_makes_the_same_files(source, folder, tmp_path, monkeypatch):
    class Killed(Exception):
        pass

    def kill(done, total):
        if done == 7:
            raise Killed

    with pytest.raises(Killed):
        prepare_folder(source, tmp_path, workers=1, progress=kill)
    assert len(files(tmp_path)) == 3
    made, old = [], preparation._prepared
    monkeypatch.setattr(preparation, "_prepared", lambda job: made.append(job.name) or old(job))
    calls = []
    result = prepare_folder(source, tmp_path, workers=1, progress=lambda *x: calls.append(x))
    assert (result.made, result.kept) == (6, 6)
    assert calls == [(k, 12) for k in range(7, 13)]
    assert files(tmp_path) == files(folder)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert prepare_folder(source, tmp_path, workers=1).kept == 12
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert len(made) == 6


def test_bad_samples_are_named_the_rest_goes_on_and_a_better_copy_is_taken(tmp_path):
    raw = write_all(tmp_path / "raw", range(8))
    good = (raw / "sample_0001.hdf5").read_bytes()
    (raw / "sample_0001.hdf5").write_bytes(good[: len(good) // 2])
    (raw / "sample_0003.hdf5").write_bytes(b"junk")
    write_raw(raw / "sample_0004.hdf5", replace(raw_mesh(4), inlet=np.arange(2)))
    write_raw(raw / "sample_0005.hdf5", replace(raw_mesh(5), wss=None))
    os.rename(raw / "sample_0006.hdf5", raw / "vessel.hdf5")
    write_raw(raw / "other_0007.hdf5", raw_mesh(7))
    result = prepare_folder(raw, tmp_path / "made", workers=1)
    said = {
        "sample_0001": "sample_0001.hdf5: it is damaged .*truncated",
        "sample_0003": "sample_0003.hdf5: it is damaged",
        "sample_0004": "cannot prepare sample_0004: the 2 inlet nodes span no face",
        "sample_0005": "sample_0005 has no wss",
        "vessel": "vessel has no number",
        "sample_0007": "sample_0007 has the same number as other_0007",
    }
    assert result.failed.keys() == said.keys()
    for name, text in said.items():
        with pytest.raises(AssertionError, match=text):
            raise AssertionError(result.failed[name])
    assert result.made == 3
    assert [mesh.index for mesh in load(tmp_path / "made", "train")] == [0, 2, 7]
    (raw / "sample_0001.hdf5").write_bytes(good)
    assert prepare_folder(raw, tmp_path / "made", workers=1).made == 4
    assert [mesh.index for mesh in load(tmp_path / "made", "train")] == [0, 1, 2, 7]


def test_data_of_another_kind_are_not_overwritten(source, folder, tmp_path):
    before = files(folder)
    with pytest.raises(ArteryError, match=r"shard_0000.safetensors was made with other settings"):
        prepare_folder(source, folder, workers=1, cut=False)
    assert files(folder) == before
    (tmp_path / "train_00.safetensors").write_text("my precious")
    with pytest.raises(ArteryError, match=r"train_00.safetensors is not of this data set"):
        prepare_folder(source, tmp_path, workers=1)
    (tmp_path / "train_00.safetensors").rename(tmp_path / "shard_0000.safetensors")
    with pytest.raises(ArteryError, match=r"shard_0000.safetensors is damaged"):
        prepare_folder(source, tmp_path, workers=1)
    assert list(files(tmp_path).values()) == [b"my precious"]


def _deadly(job):
    if job.name == "sample_0002":
        os.abort()
    return preparation.Outcome(job.name, None, [], "not prepared")


@pytest.mark.slow
def test_processes_make_the_same_files_and_one_that_dies_takes_only_its_sample(
    source, folder, tmp_path, monkeypatch
):
    assert prepare_folder(source, tmp_path, workers=2).made == 12
    assert files(tmp_path) == files(folder)
    monkeypatch.setattr(preparation, "_prepared", _deadly)
    jobs = [
        preparation.VesselJob(str(source), f"sample_{k:04d}", "scipy", True, False)
        for k in range(4)
    ]
    with preparation._Pool(2) as pool:
        errors = [outcome.error for outcome in pool.run(jobs)]
    died = "cannot prepare sample_0002: its process died"
    assert errors == ["not prepared", "not prepared", died, "not prepared"]


def test_every_fifty_samples_are_worth_a_process(monkeypatch):
    monkeypatch.setattr(preparation.os, "cpu_count", lambda: 8)
    wanted = {0: 1, 49: 1, 99: 1, 100: 2, 150: 3, 10_000: 8}
    assert {count: preparation._workers(None, count) for count in wanted} == wanted
    assert preparation._workers(3, 10) == 3


def test_the_raw_totals_are_kept_and_verified(source, folder, monkeypatch):
    raws = [read_raw(source, f"sample_{k:04d}") for k in NUMBERS]
    nodes = [raw.nodes for raw in raws]
    stress = [np.linalg.norm(raw.wss.astype(float), axis=1) for raw in raws]
    truth = {
        "nodes, mean": np.mean(nodes),
        "nodes, least": min(nodes),
        "nodes, most": max(nodes),
        "faces, mean": np.mean([len(raw.face) for raw in raws]),
        "inlet nodes, mean": np.mean([len(raw.inlet) for raw in raws]),
        "|WSS|, mean": np.concatenate(stress).mean(),
        "|WSS|, most": max(x.max() for x in stress),
    }
    monkeypatch.setattr(verification, "SAMPLES", 12)
    monkeypatch.setattr(verification, "PUBLISHED", truth)
    found = {check.what: check for check in verify(folder)}
    assert all(found[f"raw {what}"].expected is not None for what in truth)
    assert all(check.passed for check in found.values())
    monkeypatch.setattr(verification, "PUBLISHED", {**truth, "nodes, most": 12160})
    assert [check.what for check in verify(folder) if not check.passed] == ["raw nodes, most"]
    _, header = read_index(folder / "shard_0000.safetensors")
    assert header["raw"]["nodes"] == nodes[:3]


def test_numbers_as_published_agree_to_their_printed_digits():
    for difference, passed in ((9e-4, True), (1.1e-3, False)):
        assert verification.Check("scale", 53.836 + difference, 53.836).passed == passed


def test_the_label_scale_is_compared_only_where_it_is_known(tmp_path, monkeypatch):
    prepare_folder(write_all(tmp_path / "raw", range(4)), tmp_path / "made", workers=1)
    monkeypatch.setattr(verification, "SCALES", {4: 53.836})
    assert [check.what for check in verify(tmp_path / "made") if not check.passed] == [
        "train label scale"
    ]
    monkeypatch.setattr(verification, "SCALES", {5: 53.836})
    assert all(check.passed for check in verify(tmp_path / "made"))


@pytest.mark.skipif(not COPY.is_dir(), reason="FLASHGATR_ARTERIES does not name a compact copy")
def test_the_compact_copy_is_the_published_data():
    checks = {check.what: check for check in verify(COPY)}
    assert checks["train label scale"].expected == 54.357
    assert all(check.passed for check in checks.values())
    assert [checks[f"{name} meshes"].found for name in ("train", "val", "test")] == [800, 100, 100]
    assert [mesh.index for mesh in load(COPY, "test", limit=2)] == [1799, 1800]


def run(*arguments):
    result = CliRunner().invoke(cli.application(), ["data", *map(str, arguments)])
    error = "" if result.exception is None else str(result.exception)
    return result.exit_code, f"{result.output} {error}"


def test_the_command_prepares_describes_and_verifies(tmp_path):
    raw, made = write_all(tmp_path / "raw", range(3)), tmp_path / "made"
    code, output = run("arteries", "--source", raw, "-f", made, "--workers", 1)
    assert code == 0, output
    assert "3 made, 0 kept, 0 failed" in output
    assert "train: 3 meshes" in output
    (raw / "sample_0001.hdf5").write_bytes(b"junk")
    (made / "shard_0000.safetensors").unlink()
    code, output = run("arteries", "--source", raw, "-f", made, "--workers", 1)
    assert code == 1
    assert "2 made, 0 kept, 1 failed" in output
    assert "error: cannot use" in output
    code, output = run("arteries", "--verify", "-f", made)
    assert code == 0
    assert "train label scale" in output
    assert "nothing to compare with" in output


def test_twenty_errors_are_told_and_the_other_samples_named(capsys):
    for count in (20, 23):
        failed = {f"sample_{k}": f"sample_{k} is bad" for k in range(count)}
        command._show(preparation.PreparationResult(1200, 3, failed), Path("made"))
        out, err = capsys.readouterr()
        rest = ["error: also failed: sample_20, sample_21, sample_22"] * (count > 20)
        told = [f"error: sample_{k} is bad" for k in range(20)]
        assert err.splitlines() == [*told, *rest]
        assert out == f"made: 1,200 made, 3 kept, {count} failed\n"


def test_the_command_refuses_what_makes_no_sense(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, text in (
        (["arteries"], "expected --source with raw data to prepare, --synthetic NUMBER"),
        (["arteries", "--source", "nowhere"], "there is no nowhere"),
        (["arteries", "--verify", "--division", "mine"], "unknown division 'mine'"),
        (["arteries", "--verify"], "there are no meshes in data/arteries"),
        (["arteries", "--train", 5], "No such option: --train"),
        (["nbody", "--source", "x"], "No such option: --source"),
        (["robots"], "unknown experiment 'robots'; known: nbody, arteries"),
    ):
        code, output = run(*arguments)
        assert code != 0
        assert text in output
    assert list(tmp_path.iterdir()) == []
