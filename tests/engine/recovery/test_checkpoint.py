"""Checkpoints are complete or absent, whatever happens while they are written or later."""

import json
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess

import pytest
import torch

from flashgatr.io.files import sha256
from flashgatr.train import checkpoint as checkpoints
from flashgatr.train.checkpoint import Checkpoint, CheckpointError, load, save

from ..faults import accident, fill_disk, in_child, kill

INTACT = "the previous one is intact; free some space or choose another folder"


def some(step, salt=0):
    """A checkpoint whose content tells its step and salt."""
    tensors = {
        "model": {"w": torch.full((3, 5), step + salt / 8), "b": torch.arange(4) + step},
        "optimizer": {"step.w": torch.tensor(float(step)), "none": torch.zeros(0, 2)},
        "ema": {},
    }
    state = {"score": 0.1 * step, "salt": salt, "inf": -float("inf"), "name": "ä", "no": None}
    return Checkpoint(step, tensors, state)


def same(a, b):
    def bits(x):
        return {
            g: {k: (v.dtype, v.shape, v.tolist()) for k, v in t.items()}
            for g, t in x.tensors.items()
        }

    return (a.step, a.state, bits(a)) == (b.step, b.state, bits(b))


def steps(folder):
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of steps 1 and 2."""
    for step in (1, 2):
        save(tmp_path / "checkpoints", some(step))
    return tmp_path / "checkpoints"


def test_folders_on_the_way_are_made(tmp_path):
    save(tmp_path / "a" / "b" / "checkpoints", some(1))
    assert same(load(tmp_path / "a" / "b" / "checkpoints"), some(1))


def test_what_is_loaded_is_what_was_saved(folder):
    found = load(folder)
    assert same(found, some(2))
    assert found.tensors["model"]["w"].dtype == torch.float32


def test_not_a_number_is_kept_too(tmp_path):
    save(tmp_path, Checkpoint(1, {}, {"score": float("nan")}))
    assert str(load(tmp_path).state["score"]) == "nan"


def test_a_folder_without_checkpoints_holds_none(tmp_path):
    assert load(tmp_path) is None
    assert load(tmp_path / "missing") is None


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_are_kept(tmp_path, keep):
    for step in range(1, 7):
        save(tmp_path, some(step), keep=keep)
        assert steps(tmp_path) == list(range(max(1, step - keep + 1), step + 1))
        assert (tmp_path / "latest").read_text() == f"step-{step:08d}\n"


def test_leftovers_are_cleared_and_other_files_are_not(folder):
    (folder / ".step-00000002.77").mkdir()
    (folder / ".step-00000002.77" / "model.safetensors").write_bytes(b"half")
    (folder / ".latest.77").write_bytes(b"")
    (folder / ".gitignore").write_bytes(b"*")
    save(folder, some(3))
    assert {path.name for path in folder.glob(".*")} == {".gitignore"}


# ---- accidents while saving ----


def _same_step(step):
    return lambda folder: save(folder, some(step, salt=1))


SAVES = {
    "the next step": (2, lambda folder: save(folder, some(3))),
    "the same step": (2, _same_step(2)),
    "the same step, with nothing before": (1, _same_step(1)),
    "the next step, keeping one": (2, lambda folder: save(folder, some(3), keep=1)),
}


@pytest.mark.parametrize("case", SAVES)
def test_a_process_killed_at_any_point_of_a_save_leaves_the_old_or_the_new_one(tmp_path, case):
    before, write = SAVES[case]
    base = tmp_path / "base"
    for step in range(1, before + 1):
        save(base, some(step))
    new_since = None
    for number in range(1, 1000):
        folder = tmp_path / "checkpoints"
        shutil.copytree(base, folder)

        def body(folder=folder, number=number):
            with accident(number, kill):
                write(folder)

        code = in_child(body)
        assert code in (0, -signal.SIGKILL)
        found = load(folder)
        if same(found, some(before)):
            assert new_since is None, f"new at point {new_since}, old again at {number}"
        else:
            assert found.step + 8 * found.state["salt"] > before
            new_since = new_since or number
        save(folder, some(9))
        assert same(load(folder), some(9))
        assert not list(folder.glob(".*"))
        shutil.rmtree(folder)
        if code == 0:
            break
    assert new_since > 25  # there were accidents before
    assert number > new_since  # and after


@pytest.mark.parametrize("case", SAVES)
def test_a_disk_that_fills_at_any_point_of_a_save_spares_the_previous_one(tmp_path, case):
    before, write = SAVES[case]
    refused = 0
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        for step in range(1, before + 1):
            save(folder, some(step))
        error = None
        with accident(number, fill_disk) as points:
            try:
                write(folder)
            except CheckpointError as caught:
                error = str(caught)
        found = load(folder)
        is_new = found.step + 8 * found.state["salt"] > before
        assert is_new or same(found, some(before))
        assert is_new or error
        if error:
            refused += 1
            assert error.startswith(
                f"cannot save a checkpoint in {folder}: No space left on device"
            )
            assert INTACT in error
            assert "\n" not in error
        save(folder, some(9))
        assert same(load(folder), some(9))
        assert not list(folder.glob(".*"))
        if points.passed < number:
            break
    assert refused > 25


def _large(step):
    return Checkpoint(step, {"model": {"w": torch.full((16_000,), float(step))}}, {})


def test_a_full_disk_spares_the_previous_one(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system")
    try:
        save(tmp_path / "checkpoints", _large(1))
        with pytest.raises(CheckpointError, match="No space left on device; the previous one is"):
            save(tmp_path / "checkpoints", _large(2))
        assert load(tmp_path / "checkpoints").tensors["model"]["w"][0] == 1
        assert not list((tmp_path / "checkpoints").glob(".*"))
        subprocess.run(["mount", "-o", "remount,size=1m", str(tmp_path)], check=True)
        save(tmp_path / "checkpoints", _large(3))
        assert load(tmp_path / "checkpoints").step == 3
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        with pytest.raises(CheckpointError, match="Read-only file system; the previous one is"):
            save(tmp_path / "checkpoints", _large(4))
        assert load(tmp_path / "checkpoints").step == 3
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_that_grows_too_large_spares_the_previous_one(tmp_path):
    save(tmp_path, some(1))

    def body():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))
        with pytest.raises(CheckpointError, match="File too large; the previous one is intact"):
            save(tmp_path, _large(2))

    assert in_child(body) == 0
    assert same(load(tmp_path), some(1))
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_cannot_be_written_to_spares_the_previous_one(folder):
    def body():
        if os.geteuid() == 0:  # root may write anywhere
            os.chdir(folder)
            os.seteuid(65534)
        with pytest.raises(CheckpointError, match=r"Permission denied; the previous one is intact"):
            save(checkpoints.Path() if os.getuid() == 0 else folder, some(3))

    folder.chmod(0o555)
    assert in_child(body) == 0
    folder.chmod(0o755)
    assert same(load(folder), some(2))


# ---- damage afterwards ----


def _flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_flipped_bit_is_detected_and_the_previous_checkpoint_used(folder, name):
    path, source = folder / "step-00000002" / name, random.Random(0)
    for bit in {*range(128), *source.sample(range(8 * path.stat().st_size), 200)}:
        _flip(path, bit)
        with pytest.warns(UserWarning, match="step-00000002 is damaged: .*; trying the"):
            assert same(load(folder), some(1))
        _flip(path, bit)
    assert same(load(folder), some(2))


def test_with_all_checkpoints_damaged_there_is_an_error(folder):
    for step in (1, 2):
        _flip(folder / f"step-0000000{step}" / "model.safetensors", 800)
    with (
        pytest.warns(UserWarning, match="model.safetensors does not match its hash"),
        pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact: checkpoint step-"),
    ):
        load(folder)


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_checkpoints_do_not_push_out_intact_ones(tmp_path, keep):
    for step in (10, 20, 30):
        save(tmp_path, some(step), keep=3)
    for step in (20, 30):
        _flip(tmp_path / f"step-000000{step}" / "model.safetensors", 800)
    with pytest.warns(UserWarning, match="damaged"):
        assert load(tmp_path).step == 10
    save(tmp_path, some(15), keep=keep)
    assert steps(tmp_path) == [10, 15][-keep:]
    assert same(load(tmp_path), some(15))


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(folder):
    _flip(folder / "step-00000002" / "model.safetensors", 800)
    save(folder, some(2))
    assert same(load(folder), some(2))
    assert steps(folder) == [1, 2]


def test_a_renamed_checkpoint_is_refused(folder):
    (folder / "step-00000002").rename(folder / "step-00000007")
    with pytest.warns(UserWarning, match="step-00000007 is damaged: it holds step 2"):
        assert load(folder).step == 1


def test_a_checkpoint_of_another_format_is_refused(folder):
    _forge(folder / "step-00000002", {"format": 2})
    with pytest.warns(UserWarning, match="it has format 2, this version reads 1"):
        assert load(folder).step == 1


def _forge(path, changes):
    """Change the header and seal it again."""
    header = json.loads((path / "state.json").read_text()) | changes
    (path / "state.json").write_bytes(checkpoints._sealed(header))


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_nothing_that_is_read_can_run_code(folder, tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    path = folder / "step-00000002"
    (path / "model.safetensors").write_bytes(bomb)
    digest = sha256(bomb)
    _forge(path, {"sha256": {"model": digest}})
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        assert load(folder).step == 1
    (path / "state.json").write_bytes(bomb)
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        assert load(folder).step == 1
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"sha256": {"../../../secret": "0"}},
        {"sha256": {"a/b": "0"}},
        {"sha256": ["model"]},
        {"sha256": None},
        {"state": 5},
        {"step": "2"},
        {"step": None},
    ],
)
def test_forged_headers_are_refused(folder, changes):
    _forge(folder / "step-00000002", changes)
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        assert load(folder).step == 1


_JUNK = [
    b"", b"\0" * 9, b"\xff", b"{", b"}", b"[" * 5000, b'"', b"9" * 5000, b"null", b"NaN", b"1e999",
]  # fmt: skip


def _mutate(source, path):
    """One to three small accidents to one file of a checkpoint."""
    file = source.choice(sorted(path.iterdir()))
    content = file.read_bytes()
    for _ in range(source.randint(1, 3)):
        a, b = sorted(source.choices(range(len(content) + 1), k=2))
        content = source.choice(
            [
                content[:a],
                content[:a] + content[b:],
                content[:a] + bytes([source.randrange(256)]) + content[a + 1 :],
                content[:a] + source.choice(_JUNK) + content[a:],
                content[:a] + content[a:b][::-1] + content[b:],
                content[:b] + content[a:],
            ]
        )
    file.write_bytes(content)
    if source.random() < 0.05:
        file.unlink()
    if source.random() < 0.05:
        file.unlink(missing_ok=True)
        file.mkdir()


def _check_mutations(number, tmp_path):
    source, refused = random.Random(0), 0
    save(tmp_path / "good", some(2))
    for _ in range(number):
        path = tmp_path / "step-00000002"
        shutil.copytree(tmp_path / "good" / "step-00000002", path)
        _mutate(source, path)
        try:
            found = checkpoints._read(path)
        except CheckpointError:
            refused += 1
        else:
            assert same(found, some(2))
        shutil.rmtree(path)
    assert 0.5 < refused / number < 1


def test_damaged_files_give_the_same_content_or_our_own_error(tmp_path):
    _check_mutations(300, tmp_path)


@pytest.mark.slow
def test_ten_thousand_damaged_files_give_the_same_content_or_our_own_error(tmp_path):
    _check_mutations(10_000, tmp_path)
