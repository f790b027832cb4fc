"""The artery experiment as the engine sees it."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr.experiments import cli, recording, results, runs, sweep
from flashgatr.experiments.arteries import LABEL_SCALE, task
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.shards import read_index, read_shard, write_shard
from flashgatr.experiments.arteries.metrics import mesh_errors, summarise
from flashgatr.experiments.arteries.symmetry import symmetry
from flashgatr.experiments.config import ConfigError, override, save

from .small_task import CPU, SMALL, config, make
from .walls import chosen, tube, walls

pytestmark = pytest.mark.usefixtures("no_files")
EARLIER = Path(__file__).parents[1] / "earlier"
FAST = ["train.steps=3", "train.batch_size=2", "train.validate_every=2", "device=cpu"]


def test_a_mesh_without_labels_that_count_is_refused(monkeypatch):
    def blank(folder, split, **options):
        first, *rest = walls(folder, split, **options)
        return [replace(first, mask=np.zeros_like(first.mask)), *rest]

    monkeypatch.setattr(task, "load", blank)
    with pytest.raises(ArteryError, match="on the nodes that count"):
        assert make().samples


@pytest.mark.parametrize("kind", ["mse", "l1", "relative", "epsilon"])
def test_the_loss_is_the_error_on_masked_nodes(kind):
    made = make(f"data.options.loss={kind}")
    batch = made.batch(torch.tensor([0, 1, 2]))
    *inputs, target, mask, offsets, most = batch[:7]
    loss, _ = made.loss(made.model, batch)
    with torch.no_grad():
        found = made.model(*inputs, offsets, int(most))
    if kind == "mse":  # pooled over the nodes of the batch
        assert loss.item() == pytest.approx((found - target)[mask].square().mean().item())
    elif kind == "l1":
        assert loss.item() == pytest.approx((found - target)[mask].abs().mean().item())
    else:
        parts = zip(*(x.split(offsets.diff().tolist()) for x in (found, target, mask)), strict=True)
        errors = torch.tensor([mesh_errors(*part).epsilon for part in parts]) / 100
        expected = errors.square().mean() if kind == "relative" else errors.mean()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    loss.backward()
    gradients = [p.grad for p in made.model.parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)


def test_what_lies_outside_the_mask_is_not_learned():
    made = make()
    batch = made.batch(torch.tensor([0, 1]))
    loss, _ = made.loss(made.model, batch)
    changed = batch._replace(target=torch.where(batch.mask[:, None], batch.target, 1e3))
    assert made.loss(made.model, changed)[0].item() == loss.item()


def test_evaluation_reports_every_mesh_and_what_motions_change():
    made = make()
    found = made.evaluate(made.model.eval())
    assert list(found) == ["test", "val", "test_moved", "test_mirrored"]
    test = found["test"]
    assert list(test["per_mesh"]) == [mesh.name for mesh in walls("", "test")]
    assert test["epsilon_mean"] == pytest.approx(
        sum(test["per_mesh"].values()) / test["meshes"], abs=1e-3
    )
    assert test["train_meshes"] == 6
    moved = found["test_moved"]
    assert moved["change_mean"] <= moved["change_max"] < 1e-3
    assert moved["epsilon_mean"] == pytest.approx(test["epsilon_mean"], abs=0.05)
    json.dumps(found)
    assert made.validate(made.model)["score"] == pytest.approx(found["val"]["epsilon_mean"])


def test_evaluation_in_bfloat16_says_what_its_rounding_costs():
    full, half = make(), make("train.precision=bfloat16")
    half.model.load_state_dict(full.model.state_dict())
    exact, rounded = (made.evaluate(made.model.eval()) for made in (full, half))
    assert rounded["test_float32"]["epsilon_mean"] == pytest.approx(exact["test"]["epsilon_mean"])
    assert rounded["test"]["epsilon_mean"] != exact["test"]["epsilon_mean"]


def test_moving_breaks_a_model_that_is_not_equivariant():
    plain = override(
        runs.defaults("arteries"),
        ["model.name=transformer", "model.options.num_blocks=1", "train.precision=float32"],
    )
    made = task.ArteryTask(plain, CPU)
    assert made.evaluate(made.model.eval())["test_moved"]["change_max"] > 0.1


def test_predictions_are_in_the_units_of_the_labels_and_mesh_by_mesh():
    made = make()
    meshes = [tube(k, 60 + 6 * (k % 3)) for k in range(10)]  # more than one batch
    found = list(made.predictions(made.model.eval(), meshes))
    assert [len(y) for y in found] == [mesh.nodes for mesh in meshes]
    inputs = (meshes[9].position, meshes[9].normal, meshes[9].geodesic)
    with torch.no_grad():
        alone = made.model(*map(torch.from_numpy, inputs)) * LABEL_SCALE
    torch.testing.assert_close(found[9], alone, rtol=1e-4, atol=1e-4)
    errors = [
        mesh_errors(y, torch.from_numpy(m.wss), torch.from_numpy(m.mask))
        for y, m in zip(found, meshes, strict=True)
    ]
    assert summarise(errors)["epsilon_mean"] > 1  # it has learned nothing yet


def test_bfloat16_training_is_validated_in_bfloat16():
    full, half = make(), make("train.precision=bfloat16")
    mesh = [tube(0)]
    with torch.no_grad():
        exact = next(full.predictions(full.model, mesh))
        assert not torch.equal(next(half.predictions(half.model, mesh)), exact)
        assert torch.equal(next(half.predictions(half.model, mesh, "float32")), exact)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "data.options.orientations=random",
            r"unknown key .*did you mean data\.options\.orientation",
        ),
        ("data.options.orientation=upright", "one of 'random', 'canonical', got 'upright'"),
        ("data.options.augment=1", "must be true or false, got 1"),
        ("data.options.val_limit=-1", "at least 0, got -1"),
        ("data.options.test_limit=true", "at least 0, got True"),
    ],
)
def test_options_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        make(change)


def test_unlabelled_meshes_are_refused(monkeypatch):
    monkeypatch.setattr(task, "load", lambda *_, **__: [replace(tube(7), wss=None)])
    with pytest.raises(ArteryError, match="sample_0007 has no wall shear stress"):
        assert make().samples


def test_limits_take_the_first_meshes():
    made = make("data.train_samples=2", "data.options.val_limit=1", "data.options.test_limit=2")
    assert made.samples == 2
    found = made.evaluate(made.model.eval())
    assert (found["val"]["meshes"], found["test"]["meshes"]) == (1, 2)
    assert found["test"]["train_meshes"] == 2


def test_a_run_can_be_trained_evaluated_and_recorded(tmp_path, monkeypatch):
    settings = [*(f"model.options.{option}" for option in SMALL), *FAST]
    settings = [x for option in settings for x in ("--set", option)]
    shell, app = CliRunner(), cli.application()
    arguments = ["train", "arteries", "--folder", str(tmp_path / "run"), *settings]
    printed = shell.invoke(app, arguments, catch_exceptions=False).output
    assert "ε, %" in printed
    assert "test_mirrored" in printed
    before = runs.read_results(tmp_path / "run")["results"]["test"]
    again = shell.invoke(app, ["eval", str(tmp_path / "run")], catch_exceptions=False).output
    assert f"{before['epsilon_mean']:.2f}" in again

    lines = []
    monkeypatch.setattr(results, "record", lambda *line: lines.append(line))
    planned = sweep.Planned("run", {}, runs.load_config(tmp_path / "run"))
    assert sweep.record_results([planned], "arteries_test") == 1
    name, model, metric, value, unit, about = lines[0]
    assert (name, model, metric, unit) == ("arteries-accuracy", "gatr", "epsilon_mean", "%")
    assert value == pytest.approx(before["epsilon_mean"], rel=1e-3)
    assert about == {
        "train_meshes": 6,
        "steps": 3,
        "recipe": "arteries_test",
        "orientation": "random",
        "split": "test",
        "seed": 0,
    }
    assert {line[2] for line in lines} >= {"epsilon_median", "epsilon_q75", "nmae", "cosine"}
    assert results.FOLDER  # nothing was written there


def test_errors_on_a_folder_without_training_meshes_are_recorded(monkeypatch):
    """`flashgatr eval RUN --set data.folder=OTHER --record`."""

    def choose(folder, split, **options):
        if split == "train":
            raise ArteryError("there are none")
        return chosen(folder, split, **options)

    monkeypatch.setattr(task, "choose", choose)
    lines, made = [], make()
    monkeypatch.setattr(results, "record", lambda *line: lines.append(line))
    found = made.evaluate(made.model.eval())
    recording.record_run(config(*FAST), found, "run", {"data.folder": "other"})
    *_, settings = lines[0]
    assert settings["data.folder"] == "other"
    assert "train_meshes" not in settings


def test_a_file_of_settings_says_which_experiment_it_is(tmp_path):
    save(config(*FAST, "train.steps=1"), tmp_path / "mine.toml")
    arguments = [
        "train",
        "--config",
        str(tmp_path / "mine.toml"),
        "--folder",
        str(tmp_path / "run"),
    ]
    CliRunner().invoke(cli.application(), arguments, catch_exceptions=False)
    assert "test_moved" in runs.read_results(tmp_path / "run")["results"]


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path):
    settings = config(*FAST, "data.options.augment=true", "train.checkpoint_every=2")
    whole = override(settings, [f"folder='{tmp_path / 'whole'}'"])
    runs.train(whole)
    parts = override(settings, [f"folder='{tmp_path / 'parts'}'"])
    original = task.ArteryTask.batch

    def stops(self, indices, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, indices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task.ArteryTask, "batch", stops)
        with pytest.raises(KeyboardInterrupt):
            runs.train(parts)
    runs.train(parts, resume=True)
    first, second = (runs.load_model(c).state_dict() for c in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_the_end_needs_is_missed_at_the_beginning(monkeypatch):
    def choose(folder, split, **options):
        assert split == "test"
        raise ArteryError("no test meshes")

    monkeypatch.setattr(task, "choose", choose)
    with pytest.raises(ArteryError, match="no test meshes"):
        make()


def test_settings_are_compared_without_reading_the_test_meshes(monkeypatch):
    """With data.options.test = false, the end of a run evaluates `val`, as validation does."""

    def no_test(folder, split, **options):
        assert split != "test"
        return walls(folder, split, **options)

    def choose(folder, split, **options):
        return chosen(folder, split)[0], no_test(folder, split)

    monkeypatch.setattr(task, "load", no_test)
    monkeypatch.setattr(task, "choose", choose)
    made = make("data.options.test=false")
    found = made.evaluate(made.model.eval())
    assert set(found) == {"val"}
    assert found["val"]["epsilon_mean"] == made.validate(made.model)["score"]
    assert list(found["val"]["per_mesh"]) == [mesh.name for mesh in walls("", "val")]
    assert symmetry(made, made.model.double(), torch.float64) < 1e-9


def test_test_meshes_alone_can_be_evaluated(monkeypatch):
    def only_test(folder, split, **options):
        if split != "test":
            raise ArteryError(f"no {split} meshes")
        return walls(folder, split, **options)

    def choose(folder, split, **options):
        return chosen("", "test")[0], only_test(folder, split, **options)

    monkeypatch.setattr(task, "load", only_test)
    monkeypatch.setattr(task, "choose", choose)
    made = make()
    found = made.evaluate(made.model.eval())
    assert found.keys() == {"test", "test_moved", "test_mirrored"}
    assert "train_meshes" not in found["test"]
    with pytest.raises(ArteryError, match="no val meshes"):
        assert made.samples


def test_data_are_known_by_their_numbers(monkeypatch):
    first, same, turned = make(), make(), make("data.options.orientation=canonical")
    assert first.data_hash == same.data_hash == turned.data_hash
    assert make("data.train_samples=3").data_hash != first.data_hash


def test_changed_data_are_refused_also_without_assertions(tmp_path):
    """`python -O` skips assert statements; the check must not depend on one."""
    folder = tmp_path / "earlier"
    shutil.copytree(EARLIER / "artery_data", folder / "artery_data")
    shutil.copytree(EARLIER / "artery_run", folder / "artery_run")
    shutil.rmtree(folder / "artery_run" / "checkpoints" / "step-00000020")
    arguments = ["-O", "-m", "flashgatr", "train", "--resume", "--folder", "artery_run"]
    (file,) = (folder / "artery_data").glob("*.safetensors")
    first, *rest = read_shard(file)
    header = read_index(file)[1]
    write_shard(file, [replace(first, wss=1.01 * first.wss), *rest], header)
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode
    assert "holds a run on other training data" in " ".join(done.stderr.split())


def test_no_more_nodes_are_drawn_than_there_are():
    with pytest.raises(ConfigError, match="nodes is 61, but sample_0000 has 60 nodes only"):
        assert make("data.options.nodes=61").samples
    assert make("data.options.nodes=60").samples == 6
