"""`flashgatr train kuka` with CQL and BCQ: training, resuming, evaluation, report, prediction."""

import json
import signal

import pytest
import torch
from safetensors import safe_open

from flashgatr.experiments import results, sweep
from flashgatr.experiments.config import RunConfig, override
from flashgatr.experiments.report import write
from flashgatr.experiments.robotics import prediction
from flashgatr.experiments.robotics.offline_rl.learners import LEARNERS
from flashgatr.experiments.robotics.offline_rl.task import OfflineTask
from flashgatr.experiments.robotics.task import TASK, RoboticsTask
from flashgatr.experiments.robotics.world import physics
from flashgatr.train import Trainer, distributed

from ..conftest import command, needs_physics

CPU = torch.device("cpu")
SMALL = [
    "device=cpu",
    "model.options.hidden=16",
    "train.cuda_graph=false",
    "train.clip=0.0",
    "train.batch_size=8",
    "train.steps=6",
    "train.validate_every=3",
    "data.options.held_out=4",
    "data.options.validation_windows=20",
    "data.options.test_windows=20",
    "data.options.scenes=1",
]
BCQ = ["model.name=bcq", "model.options.candidates=4"]


def configured(demonstrations, *changes):
    base = RunConfig(experiment="kuka", device="cpu")
    return override(base, [f"data.folder='{demonstrations}'", *SMALL, *changes])


def make(demonstrations, *changes):
    return TASK(configured(demonstrations, *changes), CPU)


@pytest.fixture(scope="module")
def trained(demonstrations, tmp_path_factory):
    """A run of each learner, which acted in one scene if MuJoCo is installed."""
    folder = tmp_path_factory.mktemp("offline") / "runs"
    for own in (["model.name=cql"], BCQ):
        every = [*SMALL, f"data.folder='{demonstrations}'", *own]
        sets = [x for c in every for x in ("--set", c)]
        command("train", "kuka", "--folder", folder / own[0][-3:], *sets)
    return folder


def results_of(run):
    return json.loads((run / "results.json").read_text())["results"]


def test_learners_have_a_task_of_their_own(demonstrations):
    for name in LEARNERS:
        assert isinstance(make(demonstrations, f"model.name={name}"), OfflineTask)
    other = override(
        configured(demonstrations),
        ["model.name=unet", "model.options={hidden_channels = 32, factors = [1, 2]}"],
    )
    assert isinstance(TASK(other, CPU), RoboticsTask)
    assert TASK.option_defaults == OfflineTask.option_defaults


def test_actor_and_critic_learn_at_the_rates_of_d3rlpy(demonstrations, tmp_path):
    config = configured(demonstrations, "model.name=cql", f"folder='{tmp_path}'")
    task = TASK(config, CPU)
    trainer = Trainer(task, config, distributed.join("cpu"))
    names = {id(p): name for name, p in task.model.named_parameters()}
    rates = {
        names[id(p)].split(".")[0]: float(group["lr"])
        for group in trainer.optimizer.param_groups
        for p in group["params"]
    }
    assert rates == pytest.approx(
        dict(critics=3e-4, target_critics=3e-4, actor=1e-4, log_temperature=1e-4, log_alpha=1e-4)
    )


def run_to_the_end(demonstrations, folder, own, *changes, stop=None):
    """The results and weights of a run; at the step `stop`, it gets a signal."""
    every = [*own, f"folder='{folder}'", "data.options.scenes=0", "train.checkpoint_every=2"]
    config = configured(demonstrations, *every, "train.ema=0.9", *changes)
    world = distributed.join(config.device)
    task = TASK(config, world.device)
    trainer = Trainer(task, config, world)
    follow = task.after_step

    def after_step():
        follow()
        if trainer.step == stop:
            signal.raise_signal(signal.SIGTERM)

    trainer._after_step = after_step
    return trainer.run(), trainer.weights()


@pytest.mark.parametrize("own", [["model.name=cql"], BCQ], ids=str)
def test_a_killed_run_ends_with_the_same_bits(own, demonstrations, tmp_path):
    summary, expected = run_to_the_end(demonstrations, tmp_path / "whole", own)
    with pytest.raises(SystemExit):
        run_to_the_end(demonstrations, tmp_path / "parts", own, stop=2)
    again, found = run_to_the_end(demonstrations, tmp_path / "parts", own)
    assert again["results"] == summary["results"]
    assert again["best_score"] == summary["best_score"]
    assert all(torch.equal(x, found[name]) for name, x in expected.items())
    initial = make(demonstrations, *own).model.state_dict()
    moved = [name for name in found if name.startswith("target") and "weights" in name]
    assert moved
    assert all(not torch.equal(found[name], initial[name]) for name in moved)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("own", [["model.name=cql"], BCQ], ids=str)
def test_a_captured_run_that_is_stopped_ends_as_one_that_is_not(own, demonstrations, tmp_path):
    graph = ["device=cuda", "train.cuda_graph=true", "train.restore_best=false"]
    _, expected = run_to_the_end(demonstrations, tmp_path / "whole", own, *graph)
    with pytest.raises(SystemExit):
        run_to_the_end(demonstrations, tmp_path / "parts", own, *graph, stop=2)
    _, found = run_to_the_end(demonstrations, tmp_path / "parts", own, *graph)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_losses_fall_and_values_stay_small(demonstrations):
    """A few steps of plain Adam on one batch."""
    for own in (["model.name=cql", "model.options.threshold=0.0"], BCQ):
        task = make(demonstrations, *own)
        batch, learner = task.batch(torch.arange(0, task.samples, 5)), task.model
        adam = torch.optim.Adam(learner.parameters(), lr=3e-3)
        history = []
        for step in range(60):
            torch.manual_seed(step % 3)
            loss, parts = task.loss(learner, batch)
            adam.zero_grad()
            loss.backward()
            adam.step()
            task.after_step()
            history.append({name: x.item() for name, x in parts.items()})
        name = "vae" if "vae" in history[0] else "conservative"
        assert history[-1][name] < 0.9 * history[2][name]
        assert task.validate(learner)["value"] < 10


@needs_physics
def test_results_have_the_keys_of_planning(trained):
    for name in LEARNERS:
        found = results_of(trained / name)
        assert list(found) == ["plan_mujoco", "test"]
        plan = found["plan_mujoco"]
        assert 0 <= plan["strict"] <= 100
        assert (plan["engine"], plan["scenes"], plan["scene_set"]) == ("mujoco", 1, "validation")
        assert {"reward_error", "strict_error", "success", "reached", "strip"} <= plan.keys()
        assert plan["demonstrations"] == found["test"]["demonstrations"] == 5
        assert 0 < found["test"]["action_mse"] < 4


@needs_physics
def test_evaluation_repeats(trained):
    for name in LEARNERS:
        before = (trained / name / "results.json").read_text()
        command("eval", trained / name)
        assert (trained / name / "results.json").read_text() == before


def test_without_an_engine_a_run_has_errors_of_actions(demonstrations, tmp_path, monkeypatch):
    monkeypatch.setattr(physics, "installed", lambda engine: False)
    every = [*SMALL, f"data.folder='{demonstrations}'", *BCQ]
    command("train", "kuka", "--folder", tmp_path, *(x for c in every for x in ("--set", c)))
    assert list(results_of(tmp_path)) == ["test"]


@needs_physics
def test_a_scene_is_played_and_stored(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction.save, "__kwdefaults__", {"every": 200})
    said = command("predict", "kuka", trained / "bcq", "--seed", 3, "--out", tmp_path)
    assert "reward after phase 3" in said
    assert "sampler" not in said
    with safe_open(tmp_path / "seed-3.safetensors", "numpy") as stored:
        assert stored.get_tensor("states").shape == (385, 39)
        assert stored.get_tensor("actions").shape == (3, 128, 11)
        assert "plans" not in stored.keys()  # noqa: SIM118 (no mapping)
    with pytest.raises(ValueError, match="acts frame by frame and has no sampler; leave out --sam"):
        prediction.predict(trained / "bcq", sampling_steps=3)


def test_a_report_has_policies_beside_the_papers_rows(trained, tmp_path):
    page = write([trained], tmp_path / "report").read_text()
    for text in (
        "CQL",
        "BCQ",
        "action mse",
        "CQL (from Janner et al.)" * physics.installed("mujoco"),
    ):
        assert text in page
    assert "estimated noise" not in page
    numbers = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [group["samples"] for group in numbers["groups"]] == [5, 5]
    if physics.installed("mujoco"):
        assert "none: acts in every frame" in page


@needs_physics
def test_a_sweep_records_rewards_and_errors_of_actions(demonstrations, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    lines = []
    monkeypatch.setattr(results, "record", lambda *line: lines.append(line))
    recipe = tmp_path / "offline.toml"
    recipe.write_text(
        f'[run]\nexperiment = "kuka"\n[run.data]\nfolder = "{demonstrations}"\n'
        '[grid]\n"model.name" = ["cql"]\n"data.train_samples" = [3]\n'
    )
    runs = sweep.plan(recipe, tmp_path / "runs", SMALL)
    sweep.execute(runs, lambda text: None)
    assert sweep.record_results(runs, recipe.stem) == 1
    rewards = [line for line in lines if line[:3] == ("kuka-reward", "cql", "reward")]
    assert [line[5]["reward"] for line in rewards] == ["original", "strict"]
    assert dict(engine="mujoco", scenes=1, demonstrations=3).items() <= rewards[0][5].items()
    assert any(line[2] == "action_mse" for line in lines if line[0] == "kuka-accuracy")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("data.options.sampler=ddim", "sampler is for denoisers; cql acts frame by frame"),
        ("data.options.augment=true", "augment is for denoisers"),
        ("train.strategy=fsdp", "use 'ddp'"),
        ("model.options.width=3", "the model 'cql' has no option 'width'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(demonstrations, change, complaint):
    with pytest.raises((ValueError, TypeError), match=complaint):
        make(demonstrations, "model.name=cql", change)
