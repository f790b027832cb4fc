"""`flashgatr train kuka`, `eval` and `sweep --record`, with an engine and without any."""

import json
import shlex
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from flashgatr.experiments import equivariance, results, runs, shipped, sweep, table
from flashgatr.experiments.bench import trained_equivariance
from flashgatr.experiments.config import override
from flashgatr.experiments.equivariance import DTYPES
from flashgatr.experiments.robotics import evaluation
from flashgatr.experiments.robotics.offline_rl.learners import LEARNERS
from flashgatr.experiments.robotics.options import Options
from flashgatr.experiments.robotics.world import physics

from .conftest import TINY, command, needs_physics, train

ROOT = Path(__file__).parents[2]


def results_of(run):
    return json.loads((run / "results.json").read_text())["results"]


def without_times(run):
    found = results_of(run)
    return {
        name: {key: x for key, x in numbers.items() if not key.endswith("_seconds")}
        for name, numbers in found.items()
    }


@needs_physics
def test_a_run_has_errors_and_rewards(trained):
    found = results_of(trained)
    assert list(found) == [
        "plan_mujoco", "plan_mujoco_turned", "test", "test_turned", "test_mirrored"
    ]  # fmt: skip
    plan = found["plan_mujoco"]
    assert 0 <= plan["strict"] <= plan["reward"] <= 100
    assert (plan["engine"], plan["scenes"], plan["scene_set"]) == ("mujoco", 1, "validation")
    assert (plan["sampler"], plan["sampling_steps"]) == ("dpm_solver", 2)
    assert len(plan["per_scene"]["reward"]) == 1
    assert len(plan["strip"]) == evaluation.PICTURES
    assert found["test"]["demonstrations"] == plan["demonstrations"] == 5
    assert plan["drawing_seconds"] > 0 < plan["execution_seconds"]
    assert "drawing_seconds" not in found["test"]


def test_drawing_and_execution_are_timed_apart(monkeypatch):
    """A clock on which the sampler takes 5 seconds per phase and physics 2."""
    now = [0.0]

    def take(seconds, given):
        now[0] += seconds
        return given

    def run(planner, scenes, **how):
        return [take(2, planner(scenes, [])) for phase in range(3)]

    monkeypatch.setattr(evaluation.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(evaluation, "DiffusionPlanner", lambda *_, **how: lambda *x: take(5, x))
    monkeypatch.setattr(evaluation.planning, "run", run)
    scores = dict(reward=1.0, reward_error=0.0, strict=1.0, strict_error=0.0)
    monkeypatch.setattr(evaluation.planning, "summarise", lambda episodes: dict(scores))
    monkeypatch.setattr(evaluation, "details", lambda episodes: {})
    options = Options(engine="mujoco", scenes=1, turned=True)
    monkeypatch.setattr(physics, "installed", lambda engine: True)
    monkeypatch.setattr(evaluation, "say", lambda text: None)
    found = evaluation.rewards(evaluation.Planning(None, options), options)
    assert [(x["drawing_seconds"], x["execution_seconds"]) for x in found.values()] == [(15, 6)] * 2


@needs_physics
def test_evaluation_repeats_and_takes_other_scenes(trained, tmp_path):
    before = without_times(trained)
    command("eval", trained)
    assert without_times(trained) == before
    out = tmp_path / "test.json"
    changes = ["scene_set=test", "sampler=ddim", "turned=false"]
    sets = [x for c in changes for x in ("--set", f"data.options.{c}")]
    command("eval", trained, *sets, "--out", out)
    plan = json.loads(out.read_text())["results"]["plan_mujoco"]
    assert (plan["scene_set"], plan["sampler"], plan["sampling_steps"]) == ("test", "ddim", 2)
    assert without_times(trained) == before


@needs_physics
@pytest.mark.parametrize("seen", [["data.train_samples=3"], []], ids=["told", "unknown"])
def test_rewards_need_no_demonstrations(trained, seen, tmp_path):
    """A run from elsewhere plans without its data; errors on demonstrations are then left out."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before, out = results_of(run), tmp_path / "out.json"
    changes = ["data.folder=gone", "data.options.turned=false", *seen]
    said = command("eval", run, *(x for c in changes for x in ("--set", c)), "--out", out)
    assert "no demonstrations in gone: rewards are measured, errors are left out" in said
    found = json.loads(out.read_text())["results"]
    assert list(found) == ["plan_mujoco"]
    assert found["plan_mujoco"]["reward"] == before["plan_mujoco"]["reward"]
    assert found["plan_mujoco"].get("demonstrations") == (3 if seen else None)
    with pytest.raises(ValueError, match="no demonstrations in gone; make them with"):
        command("eval", run, "--set", "data.folder=gone", "--set", "data.options.scenes=0")


@needs_physics
def test_errors_that_were_measured_before_are_kept(trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    before = results_of(run)
    config = (run / "config.toml").read_text()
    folder = runs.load_config(run).data.folder
    (run / "config.toml").write_text(config.replace(folder, str(tmp_path / "gone")))
    command("eval", run)
    after = results_of(run)
    assert list(after) == list(before)
    assert after["test"] == before["test"]


def test_evaluation_is_recorded_with_what_was_changed(trained, tmp_path, monkeypatch):
    """Under the name of the run; facts about the scenes are told once."""
    monkeypatch.chdir(tmp_path)
    file = Path("benchmarks/results/kuka-accuracy.jsonl")
    changes = "data.options.scene_set=test", "data.options.scenes=0", "train.precision=tf32"
    command("eval", trained, *(x for c in changes for x in ("--set", c)), "--record")
    text = file.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {x["settings"]["set"] for x in lines} == {"test", "test_turned", "test_mirrored"}
    about = {"demonstrations": 5, "steps": 4, "recipe": trained.name, "seed": 0}
    about |= {"train.precision": "tf32", "set": "test"}
    assert [x["settings"] for x in lines if x["settings"]["set"] == "test"] == [about]
    assert lines[0]["value"] == results_of(trained)["test"]["mse"]
    command("eval", trained, *("--set", "data.options.scenes=0"))
    assert file.read_text() == text


def test_evaluation_on_other_data_is_recorded_as_such(trained, demonstrations, monkeypatch):
    """A run below the working directory has the name of its path."""
    monkeypatch.chdir(trained.parent)
    other = Path(shutil.copytree(demonstrations, trained.parent / "other")).name
    changes = f"data.folder={other}", "data.options.scenes=0"
    command("eval", trained, *(x for c in changes for x in ("--set", c)), "--record")
    line = json.loads(Path("benchmarks/results/kuka-accuracy.jsonl").read_text().splitlines()[0])
    assert line["settings"]["data.folder"] == "other"
    assert line["settings"]["recipe"] == trained.name


def test_the_equivariance_of_a_trained_run_is_recorded(trained, tmp_path, monkeypatch):
    """Also where its demonstrations are not, and without an engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGATR_RUNS", str(trained))
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    command("bench", "trained-equivariance")
    config = runs.load_config(trained)
    elsewhere = replace(config, data=replace(config.data, folder="gone"))
    monkeypatch.setattr(runs, "load_config", lambda run: elsewhere)
    command("bench", "trained-equivariance")
    text = (results.FOLDER / "kuka-equivariance.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    told = {"demonstrations": 5, "steps": 4, "recipe": trained.name, "seed": 0}
    made = told | {"measured_on": "8 demonstrations of seed 1"}
    expected = [about | {"dtype": x} for about in (told, made) for x in DTYPES]
    assert [x["settings"] for x in lines] == expected
    for line in lines[::3]:
        assert line["value"] < 1e-10


def test_all_runs_are_found_before_any_is_measured(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGATR_RUNS", f"{trained} pretrained:nobody")
    with pytest.raises(ValueError, match="there is no pretrained:nobody; flashgatr comes with"):
        trained_equivariance.run()
    assert not results.FOLDER.exists()


def test_vessels_are_those_of_the_environment(monkeypatch, tmp_path):
    """Every run that comes with the package is measured by default."""
    seen = {}
    monkeypatch.setenv("FLASHGATR_ARTERIES", str(tmp_path))
    monkeypatch.delenv("FLASHGATR_RUNS", raising=False)

    def lines(config, about):
        seen[about["recipe"]] = config.data.folder
        return []

    monkeypatch.setattr(equivariance, "lines", lines)
    trained_equivariance.run()
    assert set(seen) == {f"pretrained:{name}" for name in shipped.known(shipped.TRAINED)}
    assert seen["pretrained:arteries"] == str(tmp_path)


@pytest.mark.parametrize("model", ["transformer", "unet"])
def test_without_an_engine_a_run_has_errors_only(model, demonstrations, tmp_path, monkeypatch):
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    small = {
        "transformer": ["hidden_channels=16", "num_blocks=1", "num_heads=1"],
        "unet": ["hidden_channels=32", "factors=[1, 2]"],
    }[model]
    own = [f"model.options.{x}" for x in small]
    train(demonstrations, tmp_path / "run", *own, model=model)
    assert list(results_of(tmp_path / "run")) == ["test", "test_turned", "test_mirrored"]


def test_an_engine_that_is_missing_is_said_before_training(demonstrations, tmp_path, monkeypatch):
    monkeypatch.setattr(physics, "installed", lambda engine: engine == "mujoco")
    with pytest.raises(ValueError, match=r"needs the package pybullet: pip install"):
        train(demonstrations, tmp_path / "run", "data.options.engine=both")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_more_scenes_than_a_set_has_are_refused():
    with pytest.raises(ValueError, match="the set 'validation' has 50 scenes, got 51"):
        evaluation.draw("validation", 51)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"scenes": -1}, "at least 0, got -1"),
        ({"scene_set": "train"}, "one of 'validation', 'test', got 'train'"),
        ({"engine": "ode"}, "got 'ode'"),
        ({"sampler": "euler"}, "got 'euler'"),
        ({"sampling_steps": 1001}, "at most 1000, got 1001"),
        ({"scene": 3}, r"did you mean data\.options\.scenes"),
    ],
)
def test_options_that_make_no_sense_are_refused(values, complaint):
    with pytest.raises(ValueError, match=complaint):
        Options.read(values)


def test_damaged_demonstrations_are_a_sentence(demonstrations, tmp_path):
    broken = tmp_path / "data"
    broken.mkdir()
    for file in demonstrations.iterdir():
        (broken / file.name).write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match="is damaged or not a set of demonstrations"):
        train(broken, tmp_path / "run")


def test_long_sampling_says_how_far_it_is(monkeypatch):
    said = []
    messages = evaluation.Messages("plan", said.append)
    monkeypatch.setattr(evaluation, "EVERY", -1.0)
    for _ in range(2):
        for step in (1, 2):
            messages(step, 2)
    assert said[-1] == "plan, phase 2 of 3: step 2 of 2"


@needs_physics
def test_a_sweep_records_rewards(demonstrations, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    lines = []
    monkeypatch.setattr(results, "record", lambda *line: lines.append(line))
    recipe = tmp_path / "kuka_small.toml"
    options = "[run.model.options]\nhidden_channels = 16\nnum_blocks = 1\nnum_heads = 1\n"
    recipe.write_text(
        f'[run]\nexperiment = "kuka"\n[run.model]\nname = "transformer"\n{options}'
        f'[run.data]\nfolder = "{demonstrations}"\n[grid]\n"data.train_samples" = [3]\nseed = [1]\n'
    )
    runs = sweep.plan(recipe, tmp_path / "runs", TINY)
    sweep.execute(runs, lambda text: None)
    assert sweep.record_results(runs, recipe.stem) == 1
    rewards = [line for line in lines if line[0] == "kuka-reward" and line[2] == "reward"]
    assert [(line[1], line[4], line[5]["reward"]) for line in rewards] == [
        ("transformer", "%", "original"),
        ("transformer", "%", "strict"),
    ]
    expected = dict(
        demonstrations=3, steps=4, recipe="kuka_small", engine="mujoco", scenes=1, seed=1
    )
    assert expected.items() <= rewards[0][5].items()
    assert {line[0] for line in lines} == {"kuka-reward", "kuka-accuracy", "kuka-equivariance"}


def test_a_sweep_that_lacks_demonstrations_fails_before_its_first_run(demonstrations, tmp_path):
    recipe = tmp_path / "kuka_more.toml"
    recipe.write_text(
        f'[run]\nexperiment = "kuka"\n[run.data]\nfolder = "{demonstrations}"\n'
        '[grid]\n"data.train_samples" = [3, 6]\n'
    )
    said = []
    with pytest.raises(ValueError, match=r"holds 9 demonstrations, .* 6 are needed for training"):
        sweep.execute(sweep.plan(recipe, tmp_path / "runs", TINY), said.append)
    assert said == ["0 of 2 runs are finished"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("kuka_*.toml")), ids=str)
def test_recipes_build_their_options_and_networks(recipe, tmp_path):
    runs = sweep.plan(recipe, tmp_path)
    assert runs
    for run in runs:
        options = Options.read(run.config.data.options)
        assert run.config.model.name in table.find("kuka").get("models")
        assert options.engine in ("bullet", "both")  # MuJoCo judges poor plans too well


def test_recipes_run_the_unet_in_tf32_and_store_it_rarely(tmp_path):
    """Autocast rounds its input to bfloat16; a checkpoint of it has more than a gigabyte."""
    found = [
        run.config.train
        for recipe in sorted((ROOT / "recipes").glob("kuka_*.toml"))
        for run in sweep.plan(recipe, tmp_path)
        if run.config.model.name == "unet"
    ]
    assert len(found) > 20
    assert {train.precision for train in found} == {"tf32"}
    assert max(train.steps / train.checkpoint_every for train in found) <= 20
    lines = (ROOT / "docs" / "kuka.md").read_text().replace("\\\n", "").splitlines()
    shown = [line for line in lines if line.startswith("flashgatr") and "model.name=unet" in line]
    assert ["train.precision=tf32" in line for line in shown] == [True]


def test_other_sizes_are_trained_as_those_of_the_figure(tmp_path):
    """But for the number of blocks or channels, and the scenes."""

    def settings(name):
        found = {}
        for run in sweep.plan(ROOT / "recipes" / name, tmp_path):
            config = run.config
            if config.seed == 0 and config.data.train_samples == 11_000:
                predict = config.model.options["predict"]
                train = replace(config.train, checkpoint_every=1000)
                found[config.model.name] = train, predict
        return found

    figure = settings("kuka_figure.toml")
    sizes, wide = settings("kuka_sizes.toml"), settings("kuka_wide_transformer.toml")
    assert sizes == {name: figure[name] for name in ("gatr", "transformer")}
    assert wide == {"transformer": figure["transformer"]}


def test_the_quick_start_shows_the_settings_of_the_figure(tmp_path):
    text = (ROOT / "docs" / "kuka.md").read_text().replace("\\\n", "")
    line = next(x for x in text.splitlines() if x.startswith("flashgatr train kuka --folder"))
    words = shlex.split(line, comments=True)
    shown = override(runs.defaults("kuka"), [b for a, b in pairwise(words) if a == "--set"])
    wanted = {"model.name": "gatr", "data.train_samples": 11_000, "seed": 0}
    figure = sweep.plan(ROOT / "recipes" / "kuka_figure.toml", tmp_path)
    same = next(run.config for run in figure if run.values == wanted)
    assert shown.train == same.train == runs.load_config(ROOT / "pretrained" / "kuka").train
    assert shown.model == same.model


def test_policies_are_not_averaged_and_denoisers_are(tmp_path):
    """Diffuser's code averages the weights of denoisers; CQL and BCQ were published without."""
    for recipe in sorted((ROOT / "recipes").glob("kuka_*.toml")):
        for run in sweep.plan(recipe, tmp_path):
            assert bool(run.config.train.ema) == (run.config.model.name not in LEARNERS)


def test_the_figure_reads_test_scenes_and_the_choice_of_rates_does_not(tmp_path):
    def options(name):
        return Options.read(sweep.plan(ROOT / "recipes" / name, tmp_path)[-1].config.data.options)

    figure, rates = options("kuka_figure.toml"), options("kuka_rates.toml")
    assert (figure.scene_set, figure.scenes, figure.sampler) == ("test", 200, "ancestral")
    assert (figure.engine, figure.turned) == ("bullet", True)  # of all demonstrations
    assert (rates.scene_set, rates.scenes) == ("validation", 50)
