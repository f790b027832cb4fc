"""A user's experiment, in a file of its own, has all that the built-in ones have."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flashgatr.experiments import cli, results, runs, table
from flashgatr.train import ConfigError

SPRINGS = Path(__file__).with_name("springs.py")
EARLIER = Path(__file__).parents[1] / "earlier"
RECIPE = '[run.train]\nsteps = 4\n[grid]\nseed = [0, 1]\n"model.options.bias" = [true, false]\n'


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with the file, in a process that knows the built-in experiments only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "_files", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    shutil.copy(SPRINGS, "mine.py")
    return tmp_path


def run(*arguments, code=0):
    done = CliRunner().invoke(cli.application(), [str(x) for x in arguments])
    error = "" if done.exception is None else str(done.exception)
    if code == 0:
        assert done.exit_code == 0, done.output + error
    else:
        assert done.exit_code
    return f"{done.output} {error}"


def command_line(*arguments):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "flashgatr", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, text=True, check=False)


def forget():
    """As a new process: no file is known."""
    table._files.clear()


def begin(folder="runs/mine", *arguments):
    run("data", "mine.py")
    return run("train", "mine.py", "--folder", folder, *arguments)


def weights(folder):
    return (Path(folder) / "model" / "model.safetensors").read_bytes()


def test_its_data_command_has_its_own_options():
    shown = run("data", "mine.py", "--help")
    assert "--seed" in shown
    assert "--others" not in shown
    run("data", "mine.py", "--folder", "data/other")
    assert Path("data/other/springs.json").is_file()
    assert "No such option" in run("data", "mine.py", "--others", 5, code=2)


def test_it_trains_with_its_defaults_and_stores_its_name_and_hash_but_no_path():
    shown = begin()
    assert "linear: weights of step 6" in shown
    assert "springs" in shown
    folder = Path("runs/mine")
    stored = json.loads((folder / "experiment.json").read_text())
    assert stored == {"name": "springs", "sha256": table.source("springs").sha256}
    assert all("mine.py" not in f.read_text() for f in folder.glob("*.[jt]*"))
    config = runs.load_config(folder)
    assert (config.experiment, config.data.folder, config.train.steps) == (
        "springs",
        "data/springs",
        6,
    )


def test_a_built_in_run_has_no_such_file(place):
    earlier = EARLIER / "nbody_run"
    assert not (earlier / "experiment.json").exists()
    assert table.source("nbody") is None
    assert runs.load_config(earlier).experiment == "nbody"


@pytest.mark.parametrize(
    "command", [["eval", "runs/mine"], ["train", "--resume", "-f", "runs/mine"]]
)
def test_commands_without_the_file_say_what_to_do(command):
    begin()
    forget()
    assert "--experiment path/to/file.py" in run(*command, code=2)
    run(*command, "--experiment", "mine.py")


def test_evaluation_gives_the_results_of_training():
    begin()
    before = runs.read_results(Path("runs/mine"))["results"]
    forget()
    run("eval", "runs/mine", "--experiment", "mine.py", "--out", "again.json")
    assert json.loads(Path("again.json").read_text())["results"] == before
    assert runs.read_results(Path("runs/mine"))["results"] == before


@pytest.mark.parametrize("left", ["checkpoints", "model", "results.json"])
def test_a_folder_with_any_part_of_a_run_is_not_trained_in_anew(left):
    (Path("runs/mine") / left).mkdir(parents=True)
    assert "holds a run already" in run("train", "mine.py", "--folder", "runs/mine", code=2)


def test_evaluation_keeps_what_training_said_about_the_run():
    """Without its fingerprint, a sweep would train the run again."""
    begin()
    before = runs.read_results(Path("runs/mine"))
    assert {"run", "step", "best_step", "skipped"} <= before.keys()
    forget()
    run("eval", "runs/mine", "--experiment", "mine.py")
    assert runs.read_results(Path("runs/mine")) == before


def test_a_resumed_run_has_the_weights_of_one_that_was_not_stopped():
    begin("runs/whole", "--set", "train.checkpoint_every=3", "--set", "train.keep_checkpoints=9")
    shutil.copytree("runs/whole", "runs/half")
    for part in ("model", "checkpoints/step-00000006"):
        shutil.rmtree(Path("runs/half") / part)
    Path("runs/half/results.json").unlink()
    for given in (["mine.py"], ["--experiment", "mine.py"]):
        forget()
        run("train", *given, "--resume", "--folder", "runs/half")
        assert weights("runs/half") == weights("runs/whole")


def test_a_changed_file_is_noticed():
    begin()
    forget()
    Path("mine.py").write_text(SPRINGS.read_text() + "\n# changed\n")
    with pytest.warns(UserWarning, match=r"mine.py has changed since runs/mine was begun"):
        run("eval", "runs/mine", "-e", "mine.py")
    with pytest.warns(UserWarning, match=r"mine.py has changed"):
        run("train", "--resume", "-f", "runs/mine", "-e", "mine.py")


def test_the_warning_of_a_changed_file_appears_once():
    begin()
    Path("mine.py").write_text(SPRINGS.read_text() + "\n# changed\n")
    for command in (["train", "--resume", "-f", "runs/mine"], ["report", "runs"]):
        done = command_line(*command, "-e", "mine.py")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("has changed since runs/mine was begun") == 1


def test_a_start_that_is_refused_leaves_the_run_of_another_experiment_usable():
    shutil.copytree(EARLIER / "nbody_run", "runs/other")
    run("data", "mine.py")
    Path("run.toml").write_text("seed = 0\n")
    given = ["--config", "run.toml", "--folder", "runs/other"]
    told = run("train", "mine.py", "--resume", *given, code=2)
    assert "experiment was 'nbody', is 'springs'" in told
    forget()
    assert runs.load_config(Path("runs/other")).experiment == "nbody"


def test_a_folder_without_a_trained_run_may_get_another_experiment():
    assert "No such file" in run("train", "mine.py", "--folder", "runs/mine", code=1)  # no data
    assert Path("runs/mine/experiment.json").is_file()
    forget()
    small = ["train.steps=1", "train.batch_size=4", "model.name=mlp", "device=cpu"]
    changes = [f"--set={x}" for x in (*small, f"data.folder={EARLIER / 'nbody_data'}")]
    run("train", "nbody", "--folder", "runs/mine", *changes)
    assert runs.load_config(Path("runs/mine")).experiment == "nbody"
    assert not Path("runs/mine/experiment.json").exists()


def test_a_run_is_not_resumed_as_one_of_another_experiment():
    begin()
    told = run("train", "nbody", "--resume", "--folder", "runs/mine", code=2)
    assert "runs/mine is a run of 'springs', not of 'nbody'" in told


def test_an_error_of_the_file_names_its_line():
    run("data", "mine.py")
    text = SPRINGS.read_text()
    Path("mine.py").write_text(text.replace("[0].item()}\n", '[0].item() + "x"}\n', 1))
    number = 1 + Path("mine.py").read_text().split('+ "x"')[0].count("\n")
    done = command_line("train", "mine.py")
    assert done.returncode == 2
    assert f"mine.py, line {number})" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_validation_without_score_is_explained():
    run("data", "mine.py")
    Path("mine.py").write_text(SPRINGS.read_text().replace('"score"', '"loss"'))
    told = run("train", "mine.py", code=2)
    assert "validate must return a dictionary with a number 'score' (lower is better)" in told


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_model_may_have_counters(ema):
    text = SPRINGS.read_text()
    counting = "return nn.Sequential(nn.Linear(3, 3, bias=bias), nn.BatchNorm1d(3))"
    Path("mine.py").write_text(text.replace("return nn.Linear(3, 3, bias=bias)", counting))
    begin("runs/mine", "--set", f"train.ema={ema}")
    before = runs.read_results(Path("runs/mine"))["results"]
    forget()
    run("eval", "runs/mine", "--experiment", "mine.py", "--out", "again.json")
    assert json.loads(Path("again.json").read_text())["results"] == before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_trains_reports_as_finished_and_records(jobs, monkeypatch):
    run("data", "mine.py")
    Path("recipe.toml").write_text(RECIPE)
    kept = []
    monkeypatch.setattr(results, "record", lambda *given: kept.append(given))
    arguments = ("sweep", "recipe.toml", "--folder", "runs/all")
    told = run(*arguments, "--experiment", "mine.py", "--jobs", jobs, "--record")
    assert told.count(": finished\n") == (4 if jobs > 1 else 0)  # one run shows its own messages
    forget()
    shown = run(*arguments, "--experiment", "mine.py", "--list")
    assert shown.count("finished") == 4
    assert {(name, metric) for name, _, metric, *_ in kept} == {
        ("springs-accuracy", "mse"),
        ("springs-accuracy", "training time"),
    }


def test_a_recipe_of_another_experiment_is_refused():
    Path("recipe.toml").write_text('[run]\nexperiment = "nbody"\n')
    told = run("sweep", "recipe.toml", "-e", "mine.py", code=2)
    assert "is for the experiment 'nbody', but --experiment defines 'springs'" in told


def test_two_processes_train_it_as_one_does():
    begin("runs/one")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["-m", "flashgatr", "train", "mine.py", "--folder", "runs/two"]
    done = subprocess.run(
        [sys.executable, *torchrun, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=120,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, two = (
        runs.read_results(Path("runs") / name)["results"]["test"] for name in ("one", "two")
    )
    assert two["mse"] == pytest.approx(one["mse"], rel=1e-4)


def test_a_second_process_is_kept_out_of_its_folder():
    import fcntl

    run("data", "mine.py")
    Path("runs/mine").mkdir(parents=True)
    with Path("runs/mine/.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told = run("train", "mine.py", "--folder", "runs/mine", code=2)
    assert "another process is training in runs/mine" in told


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must define EXPERIMENT"),
        ("EXPERIMENT = 3", "got int"),
        (
            "from flashgatr.experiments.experiment import Experiment\n"
            "EXPERIMENT = Experiment('nbody', task=None)",
            "choose another name",
        ),
    ],
)
def test_a_file_that_defines_no_experiment_of_its_own_is_refused(text, complaint):
    Path("wrong.py").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        table.load_file(Path("wrong.py"))
    assert not table._files


def test_a_missing_file_is_named():
    assert "cannot read the experiment" in run("train", "none.py", code=2)


def test_settings_may_name_the_experiment_of_the_file():
    run("data", "mine.py")
    Path("run.toml").write_text("seed = 5\n")
    run("train", "mine.py", "--config", "run.toml", "--folder", "runs/file")
    config = runs.load_config(Path("runs/file"))
    assert (config.experiment, config.seed, config.model.name) == ("springs", 5, "linear")
