"""The command, from data to evaluation: what it writes, what it says, how it ends."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli, runs
from flashgatr.experiments.config import RunConfig, override
from flashgatr.experiments.nbody import data
from flashgatr.train import checkpoint as checkpoints

from . import victim
from .toy import lines
from .victim import assignments, changes

COMMANDS = ["data", "train", "eval", "report", "sweep", "bench", "convert", "doctor", "parameters"]


class Shell:
    """Runs commands in a folder that has data."""

    def __init__(self, folder):
        self.folder, self.data = folder, str(folder / "data")
        self.output = folder / "output.txt"

    def start(self, *arguments):
        self.output.unlink(missing_ok=True)
        return victim.start([str(x) for x in arguments], self.output)

    def __call__(self, *arguments):
        """The exit code, and all that was printed, on one line."""
        return self.end(self.start(*arguments))

    def end(self, process, seconds=60):
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode, " ".join(self.output.read_text().split())

    def train(self, folder, *arguments, **more):
        return self("train", "-f", folder, *changes(data__folder=self.data, **more), *arguments)


@pytest.fixture(scope="module")
def sh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shell")
    data.generate(folder / "data", train=32, others=8, workers=1)
    return Shell(folder)


@pytest.fixture(scope="module")
def trained(sh):
    folder = sh.folder / "trained"
    code, output = sh.train(folder)
    assert code == 0, output
    return folder


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


# ---- all goes well ----


def test_data_train_eval(sh):
    run = sh.folder / "all"
    code, output = sh("data", "nbody", "-f", sh.folder / "more", "--train", 8, "--others", 4)
    assert (code, output.count("systems, sha256")) == (0, 5)
    code, output = sh("train", "-f", run, *changes(data__folder=str(sh.folder / "more")))
    assert code == 0, output
    assert "gatr: weights of step" in output
    assert {path.name for path in run.iterdir()} == {
        ".lock", "config.toml", "log.jsonl", "checkpoints", "model", "results.json",
    }  # fmt: skip
    found = json.loads((run / "results.json").read_text())
    assert set(found["results"]) == {"eval", "more_bodies", "translated", "eval_moved"}
    code, output = sh("eval", run)
    assert code == 0, output
    assert json.loads((run / "results.json").read_text()) == found
    out = run / "elsewhere.json"
    code, output = sh("eval", run, "-s", f"data.folder='{sh.data}'", "--out", out)
    assert code == 0, output
    assert "results.json stays as it is" in output
    assert json.loads((run / "results.json").read_text()) == found
    assert json.loads(out.read_text())["results"] != found["results"]


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(sh, trained):
    before = {path: path.read_bytes() for path in trained.rglob("*.*") if path.is_file()}
    assert sh("train", "--resume", "-f", trained)[0] == 0
    assert {path: path.read_bytes() for path in trained.rglob("*.*") if path.is_file()} == before


def test_a_run_starts_with_the_weights_of_another(sh, trained):
    """After one step with a learning rate of zero, the weights are still those of the other run.

    Resuming does not need the other run.
    """
    run, other = sh.folder / "on", sh.folder / "other"
    shutil.copytree(trained / "model", other / "model")
    few = dict(model__start=str(other), train__steps=1, train__lr=1e-30, train__lr_final=1e-30)
    code, output = sh.train(run, **few)
    assert code == 0, output
    assert (run / "model" / "model.safetensors").read_bytes() == (
        trained / "model" / "model.safetensors"
    ).read_bytes()
    shutil.rmtree(other)
    (run / "results.json").unlink()
    assert sh("train", "--resume", "-f", run)[0] == 0
    code, output = sh.train(sh.folder / "lost", **few)
    assert code == 2
    assert "cannot start with the weights of model.start" in output
    code, output = sh.train(
        sh.folder / "unlike", **few | dict(model__start=str(trained), model__options__num_blocks=2)
    )
    assert code == 2
    assert "with the same model.options" in output


def test_options_of_the_weights_it_starts_with_are_not_lost(sh, trained):
    """Some options change no shape, but change what the weights mean."""
    folder = sh.folder / "other options"
    shutil.copytree(trained / "model", folder)
    about = json.loads((folder / "config.json").read_text())
    about["config"]["norm_epsilon"] = 0.5
    (folder / "config.json").write_text(json.dumps(about))
    few = dict(model__start=str(folder), train__steps=1)
    code, output = sh.train(sh.folder / "unsaid", **few)
    assert code == 2
    assert "add --set model.options.norm_epsilon=0.5" in output
    assert sh.train(sh.folder / "said", **few, model__options__norm_epsilon=0.01)[0] == 0


def test_a_run_does_not_go_on_with_other_data(sh, trained):
    other = sh.folder / "other data"
    data.generate(other, train=32, others=8, seed=5, workers=1)
    code, output = sh("train", "--resume", "-f", trained, "-s", f"data.folder='{other}'")
    assert code == 2
    assert "holds a run on other training data" in output


def test_sets_that_the_end_needs_are_missed_at_the_beginning(sh):
    partly = sh.folder / "partly"
    data.generate(partly, train=32, others=8, sets=["train", "val", "eval"], workers=1)
    run = sh.folder / "no end"
    code, output = sh("train", "-f", run, *changes(data__folder=str(partly)))
    assert code == 2, output
    assert "there is no more_bodies set" in output
    assert not (run / "checkpoints").exists()


def test_the_experiment_may_be_set_too(sh):
    code, output = sh("train", "-f", sh.folder / "set", "--set", "experiment=arteries")
    assert code == 2, output
    assert "there are no meshes in data/arteries" in output


def test_a_moved_run_goes_on_where_it_is(sh, trained):
    moved = sh.folder / "Lauf 1, 'neu' 😀"
    trained_config = (trained / "config.toml").read_text()
    moved.mkdir()
    (moved / "config.toml").write_text(trained_config)
    assert runs.load_config(moved).folder == str(moved)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_explains_itself(name):
    result = CliRunner().invoke(cli.application(), [*name.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    if not name:
        assert all(command in result.output for command in COMMANDS)


# ---- what is refused ----

REFUSED = {
    "an unknown key": (["-s", "train.step=5"], 2, "did you mean train.steps?"),
    "a wrong value": (["-s", "train.steps=many"], 2, "train.steps must be an integer, got 'many'"),
    "an unknown model": (["-s", "model.name=gart"], 2, "did you mean 'gatr'?"),
    "an unknown option": (["-s", "model.options.num_block=1"], 2, "num_block"),
    "missing data": (["-s", "data.folder=nowhere"], 2, "make it with `flashgatr data nbody`"),
    "no device": (["-s", "device=cuda"], 2, "torch finds no GPU; use device = cpu or auto"),
    "an unknown experiment": (["rocket"], 2, "unknown experiment 'rocket'"),
    "an unknown flag": (["--stepz", "3"], 2, "No such option"),
    "a missing file": (["-c", "none.toml"], 2, "cannot read 'none.toml': No such file"),
    "a loss that is not finite": (
        ["-s", "train.lr=1e38", "-s", "train.max_bad_steps=2", "-s", "train.steps=30"],
        1,
        "2 steps in a row had a loss or gradient that is not finite",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_said_in_one_sentence(sh, case):
    arguments, expected, sentence = REFUSED[case]
    folder = sh.folder / f"refused {case}"
    code, output = sh.train(folder, *arguments)
    assert (code, sentence in output) == (expected, True), output
    assert "Traceback" not in output
    assert not (folder / "results.json").exists()


@pytest.mark.parametrize("what", ["checkpoints", "model", "results.json"])
def test_a_folder_that_holds_a_run_is_not_overwritten(sh, what):
    folder = sh.folder / f"has {what}"
    (folder / what).mkdir(parents=True)
    code, output = sh.train(folder)
    assert (code, "holds a run already; continue it with --resume" in output) == (2, True), output


def test_resuming_with_other_settings_is_refused_and_changes_nothing(sh, trained):
    before = (trained / "config.toml").read_bytes()
    code, output = sh("train", "--resume", "-f", trained, "-s", "train.lr=0.5")
    assert (code, "(train.lr was 0.0003, is 0.5)" in output) == (2, True), output
    assert (trained / "config.toml").read_bytes() == before


def test_to_spell_out_a_default_changes_nothing(sh, trained):
    code, output = sh("train", "--resume", "-f", trained, "-s", "data.options.scaling=0.0")
    assert code == 0, output
    code, output = sh("train", "--resume", "-f", trained, "-s", "data.options.scaling=0.1")
    assert (code, "data.options was" in output) == (2, True), output


def test_two_processes_do_not_train_in_one_folder(sh, trained):
    with (trained / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, output = sh("train", "--resume", "-f", trained)
    assert (code, "another process is training in" in output) == (2, True), output


def test_an_unfinished_run_is_not_evaluated(sh, trained):
    folder = sh.folder / "begun"
    folder.mkdir()
    shutil.copy(trained / "config.toml", folder)
    code, output = sh("eval", folder)
    assert code == 2
    command = f"flashgatr train --resume --folder {folder}"
    assert f"is not finished yet: it has no model; continue it with `{command}" in output


def test_what_is_no_run_is_not_evaluated(sh):
    code, output = sh("eval", sh.folder / "data")
    assert (code, "is not a run: it has no config.toml" in output) == (2, True), output


def test_a_full_disk_ends_the_run_with_a_sentence(sh):
    folder = sh.folder / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=44k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system")
    try:
        code, output = sh.train(folder)
        assert (code, "No space left on device; the" in output) == (1, True), output
        assert "resume" in output
        assert "Traceback" not in output
        subprocess.run(["mount", "-o", "remount,size=2m", str(folder)], check=True)
        assert sh("train", "--resume", "-f", folder)[0] == 0
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_results_are_written_last(sh):
    folder = sh.folder / "no model"
    config = override(RunConfig(folder=str(folder)), assignments(data__folder=sh.data))
    with mock.patch("flashgatr.io.save", side_effect=OSError("gone")), pytest.raises(OSError):
        runs.train(config)
    assert runs.read_results(folder) is None
    assert runs.train(config, resume=True) == runs.read_results(folder)


# ---- stopping ----


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_command_after_a_checkpoint(sh, number, code):
    run = sh.folder / f"stopped by {code}"
    command = [sys.executable, "-m", "flashgatr", "train", "-f", str(run)]
    command += changes(data__folder=sh.data, train__steps=5000)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: lines(run, "train"))
        process.send_signal(number)
        sent = len(lines(run, "train"))
        assert process.wait(30) == code
    finally:
        process.kill()
        process.wait()
    logged = lines(run, "train")
    assert checkpoints.load(run / "checkpoints").step == len(logged)
    assert len(logged) <= sent + 2  # the current step, and maybe one that ended in the meantime


def test_a_sweep_can_be_stopped_and_started_again(sh):
    recipe, folder = sh.folder / "recipe.toml", sh.folder / "sweep"
    recipe.write_text("[grid]\nseed = [0, 1, 2]\n")
    sweep = [
        "sweep",
        str(recipe),
        "-f",
        str(folder),
        *changes(data__folder=sh.data, train__steps=40),
    ]
    process = sh.start(*sweep)
    wait_for(lambda: lines(folder / "seed-1", "train"))
    os.kill(process.pid, signal.SIGTERM)
    assert sh.end(process)[0] == 143
    first = (folder / "seed-0" / "results.json").stat().st_mtime_ns
    code, output = sh(*sweep, "--list")
    assert output.split() == ["finished", "seed-0", "to", "do", "seed-1", "to", "do", "seed-2"]
    code, output = sh(*sweep)
    assert code == 0, output
    assert "1 of 3 runs are finished" in output
    assert "resumed at step" in output
    assert (folder / "seed-0" / "results.json").stat().st_mtime_ns == first
    for seed in range(3):
        assert runs.read_results(folder / f"seed-{seed}")["step"] == 40
        assert [x["step"] for x in lines(folder / f"seed-{seed}", "train")] == list(range(1, 41))
    before = (folder / "seed-0" / "config.toml").read_text()
    code, output = sh(*sweep, "--jobs", 2, "--set", "train.lr=1e-3")  # other runs in these folders
    assert code == 1
    assert "these runs failed" in output
    assert (folder / "seed-0" / "config.toml").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_torchrun_trains_and_stops_and_goes_on(sh, trained, strategy):
    run = sh.folder / f"torchrun {strategy}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "flashgatr", "train", "--resume", "-f", str(run)]
    command += changes(data__folder=sh.data, train__steps=60, train__strategy=strategy)
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process = subprocess.Popen(command, **quiet)
    try:
        wait_for(lambda: lines(run, "train"), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    step = checkpoints.load(run / "checkpoints").step
    assert 0 < step < 60
    assert step == len(lines(run, "train"))
    subprocess.run(command, **quiet, check=True, timeout=300)
    alone = sh.folder / f"alone {strategy}"
    assert sh.train(alone, train__steps=60)[0] == 0
    found, expected = ([x["loss"] for x in lines(f, "train")] for f in (run, alone))
    assert found == pytest.approx(expected, rel=0, abs=1e-6)
    assert sh("eval", run)[0] == 0
