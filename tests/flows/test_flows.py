"""The experiment on flows: batches, model, errors, and the commands."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr.experiments import results, runs
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.cli import application
from flashgatr.experiments.config import ConfigError, override
from flashgatr.experiments.flows import models, prediction
from flashgatr.experiments.flows.metrics import errors, summarise
from flashgatr.experiments.flows.task import FlowTask
from flashgatr.experiments.flows.vessels import CANDIDATES, SCALES, drawn, load, points_of

from .vessels import LUMEN, WALL, tube, write_tubes

CPU = torch.device("cpu")
SMALL = [
    *("model.options.num_blocks=2", "model.options.hidden_mv_channels=4"),
    *("model.options.hidden_s_channels=8", "model.options.num_heads=2"),
    *("data.options.lumen_anchors=12", "data.options.wall_anchors=8"),
    *("data.options.lumen_points=20", "data.options.wall_points=10"),
    *("train.precision=float32", "train.batch_size=2", "device=cpu"),
]
BOTH = torch.tensor([1, 4])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tubes(tmp_path_factory.mktemp("fields"))


def config(folder, *changes):
    given = [*SMALL, f"data.folder='{folder}'"]
    return override(runs.defaults("flows"), [*given, *changes])


@pytest.fixture
def task(folder):
    return FlowTask(config(folder), CPU)


def vessel_rows(task, number):
    return torch.cat([x[number] for x in task._train.kinds])


def test_a_batch_is_anchors_and_other_points_of_both_kinds_all_drawn_again(task):
    assert task.samples == 8
    first, second = task.batch(BOTH), task.batch(BOTH)
    kinds = [0.0] * 12 + [1.0] * 8 + [0.0] * 20 + [1.0] * 10
    assert first.kind.tolist() == [kinds, kinds]
    assert first.anchors.tolist() == [list(range(20))] * 2
    torch.testing.assert_close(first.weights[:, :12].sum(-1), torch.full((2,), 12.0))
    torch.testing.assert_close(first.weights[:, 12:].sum(-1), torch.full((2,), 8.0))
    assert not torch.equal(first.position[:, :20], second.position[:, :20])
    for row, number in enumerate(BOTH.tolist()):
        made = tube(number)
        place = torch.cdist(first.position[row], torch.from_numpy(made.position)).argmin(-1)
        assert len(set(place[:20].tolist())) == 20
        scale = torch.where(first.kind[row, :, None] > 0, SCALES[1], SCALES[0])
        expected = torch.from_numpy(made.target)[place]
        torch.testing.assert_close(first.target[row] * scale, expected)
        assert torch.equal(first.mask[row], torch.from_numpy(made.mask)[place])


def test_units_and_candidates_are_those_of_trained_runs():
    """Weights of a trained run give other predictions with other ones, without an error."""
    assert SCALES == (15.0, 15.0)  # cm/s, dyn/cm²
    assert models.MODELS["gatr"]().net.config.length_scale == 0.1  # cm
    assert CANDIDATES == 16


def test_training_and_prediction_are_the_same_function(task):
    task.model.double()
    batch = task.batch(BOTH)
    wide = [x.double() for x in batch[:4]]
    expected = task.model(*wide, batch.anchors, batch.weights.double())
    rows = vessel_rows(task, 0).new_zeros(2, 50, 12).double()
    columns = [*wide[:2], *(x[..., None] for x in wide[2:])]
    rows[..., :8] = torch.cat(columns, dim=-1)
    for row in range(2):
        found = task.model.predict(rows[row, :20], batch.weights[row].double(), rows[row])
        torch.testing.assert_close(found.double(), expected[row], rtol=1e-6, atol=1e-8)


def test_predictions_turn_with_the_vessel(task):
    vessels = task._train
    turn = torch.linalg.qr(torch.randn(8, 3, 3, generator=torch.Generator().manual_seed(0)))[0]
    turn = turn * torch.linalg.det(turn)[:, None, None]
    turned = vessels.turned(turn, torch.full((8, 3), 5.0))
    pairs = (task.predictions(task.model, x) for x in (vessels, turned))
    for before, after, matrix in zip(*pairs, turn, strict=True):
        gap = (after - before @ matrix.T).norm()
        assert float(gap) < 1e-3 * float(before.norm())


def test_augmented_batches_are_turned_and_not_mirrored(folder):
    torch.manual_seed(0)
    still, turned = (
        FlowTask(config(folder, f"data.options.augment={x}"), CPU) for x in ("false", "true")
    )
    torch.manual_seed(1)
    before = still.batch(BOTH)
    torch.manual_seed(1)
    after = turned.batch(BOTH)
    for row in range(2):
        matrix = torch.linalg.lstsq(before.position[row], after.position[row]).solution
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(3), atol=1e-4, rtol=0)
        assert torch.linalg.det(matrix) > 0
        for x, y in ((before.normal, after.normal), (before.target, after.target)):
            torch.testing.assert_close(x[row] @ matrix, y[row], atol=1e-4, rtol=0)


def test_both_kinds_have_the_same_weight_in_the_loss(task):
    batch = task.batch(BOTH)
    loss, told = task.loss(task.model, batch)
    assert loss.item() == pytest.approx((told["mse_velocity"] + told["mse_stress"]).item() / 2)
    found = task.model(*batch[:4], batch.anchors, batch.weights)
    own = batch.mask & (batch.kind == 1)
    expected = (found - batch.target)[own].square().mean()
    assert told["mse_stress"].item() == pytest.approx(expected.item(), rel=1e-5)
    outside = torch.where(batch.mask[..., None], batch.target, 1e3)
    assert task.loss(task.model, batch._replace(target=outside))[0].item() == loss.item()


def test_the_flow_of_tubes_is_learned(folder):
    """With start values and an epsilon for which so small a network leaves its first plateau."""
    task = FlowTask(config(folder, "seed=1", "model.options.initialization=geometric"), CPU)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=1e-2, eps=1e-20)
    batch, losses = task.batch(BOTH), []
    for _ in range(70):
        loss, _ = task.loss(task.model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_errors_are_relative_and_per_kind(task):
    rows = vessel_rows(task, 2)
    points = points_of(rows)
    assert set(errors(points.target, rows).values()) == {0.0}
    off = torch.where(points.kind[:, None] > 0, 1.1 * points.target, 0.0)
    off[~points.mask] = 1e3
    found = errors(off, rows)
    assert found["epsilon_stress"] == pytest.approx(10, rel=1e-4)
    assert found["epsilon_velocity"] == pytest.approx(100)
    both = summarise([found, {"epsilon_stress": 20.0, "epsilon_velocity": 0.0}])
    assert both == pytest.approx({"epsilon_stress": 15, "epsilon_velocity": 50, "vessels": 2})


def test_anchors_come_from_a_part_of_many_points(folder):
    """Their cost does not depend on the number of points, and neither do those of evaluation."""
    task = FlowTask(config(folder), CPU)
    every, part = (task._train.first(n) for n in (0, 195))  # 16 x 12 candidates
    found, expected = (x.fixed_anchors(3, (12, 8)) for x in (every, part))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_the_progress_is_that_of_all_vessels(folder, monkeypatch):
    monkeypatch.setattr(models, "CPU_TILE", 150)
    task, seen = FlowTask(config(folder), CPU), []
    vessels = task._train
    model, count = task.model.eval(), len(vessels.names) * (LUMEN + WALL)
    task.errors_at(model, vessels, 0, (12, 8), lambda *x: seen.append(x))
    assert seen[-1] == (count, count)
    assert seen == sorted(set(seen))
    assert len(seen) == len(vessels.names) * -(-(LUMEN + WALL) // 150)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.options.lumen_points=0", "lumen_points must be an integer of at least 1, got 0"),
        ("data.options.wall_anchors=201", "wall_anchors is 201, but the vessels have only 200"),
        ("data.options.val_points=11", "at least the number of anchors, 12, or 0 .* got 11"),
        ("data.options.anchor_method=near", "'random', 'medoids', got 'near'"),
    ],
)
def test_options_that_make_no_sense_are_refused(folder, change, message):
    with pytest.raises(ConfigError, match=message):
        assert FlowTask(config(folder, change), CPU).samples


@pytest.mark.parametrize(("total", "count"), [(6, 5), (6, 6), (7, 3), (4, 9)])
def test_no_point_is_drawn_twice_and_every_point_is_drawn(total, count):
    rows = torch.arange(total)[None, :, None]
    found = drawn(rows, torch.zeros(200, dtype=torch.long), count)[..., 0]
    assert found.shape == (200, min(total, count))
    assert bool((found.diff() > 0).all())
    assert set(found.flatten().tolist()) == set(range(total))


def test_results_say_how_many_vessels_were_trained_on(folder):
    task = FlowTask(config(folder, "data.train_samples=2"), CPU)
    assert task.evaluate(task.model)["test"]["train_vessels"] == task.samples == 2


def test_files_of_unequal_numbers_of_points_are_refused(tmp_path):
    write_tubes(tmp_path, 10)
    write_tubes(tmp_path, 1, lumen=50)
    with pytest.raises(ArteryError, match="must have equal numbers of points"):
        load(tmp_path, "train", CPU)


def test_a_run_is_trained_and_predicts_errors_and_pictures(folder, tmp_path):
    settings = [*SMALL, f"data.folder={folder}", "train.steps=2", "data.options.augment=true"]
    settings = [x for option in settings for x in ("--set", option)]
    shell, run = CliRunner(), str(tmp_path / "run")
    command = ["train", "flows", "--folder", run, *settings]
    shell.invoke(application(), command, catch_exceptions=False)
    results = runs.read_results(tmp_path / "run")["results"]
    assert list(results) == ["test", "val", "test_turned"]
    assert results["test"]["points"] == LUMEN + WALL
    assert results["test"]["anchors"] == 20
    assert results["test"]["train_vessels"] == 8
    assert 0 <= results["test_turned"]["change_max"] < 1e-3
    sizes = ["--points", "150", "--points", "200", "--anchors", "6", "--anchors", "9"]
    command = ["predict", "flows", run, "--out", str(tmp_path / "out"), *sizes]
    told = shell.invoke(application(), command, catch_exceptions=False).output
    assert "wrote" in told
    found = json.loads((tmp_path / "out" / "errors.json").read_text())
    pairs = [(x["points"], x["anchors"]) for x in found]
    assert pairs == [(300, 12), (300, 18), (400, 12), (400, 18)]
    assert all(np.isfinite(x["epsilon_stress"]) for x in found)
    for name in ("errors.png", "flow.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_recorded_errors_are_those_of_the_file(folder, tmp_path, monkeypatch):
    run = _untrained(folder, tmp_path)
    monkeypatch.chdir(tmp_path)
    sizes = ["--points", "150", "--anchors", "6", "--anchors", "9", "--record"]
    command = ["predict", "flows", "run", "--out", "out", *sizes]
    CliRunner().invoke(application(), command, catch_exceptions=False)
    found = json.loads((tmp_path / "out" / "errors.json").read_text())
    file = tmp_path / "benchmarks" / "results" / "flows-accuracy.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = {(x["settings"]["anchors"], x["metric"]): x["value"] for x in lines}
    names = ("epsilon_velocity", "epsilon_stress")
    assert told == {(x["anchors"], name): x[name] for x in found for name in names}
    about = dict(train_vessels=8, vessels=1, points=300, set="test", recipe="run")
    assert all(about.items() <= x["settings"].items() for x in lines)
    assert run.is_dir()


def test_errors_on_other_points_are_recorded_as_such(folder, tmp_path, monkeypatch):
    """With the folder of the points, and the number of vessels that the run was trained on."""
    run = _untrained(folder, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's other").mkdir()
    other = write_tubes(tmp_path / "it's other", 20)
    prediction.run(run, tmp_path / "out", anchors=[6], data=other, record=True)
    text = (results.FOLDER / "flows-accuracy.jsonl").read_text()
    for line in text.splitlines():
        told = json.loads(line)["settings"]
        assert (told["data.folder"], told["train_vessels"], told["vessels"]) == (str(other), 8, 2)


def test_a_part_of_the_test_vessels_can_be_predicted(tmp_path):
    (tmp_path / "fields").mkdir()
    run = _untrained(write_tubes(tmp_path / "fields", 20), tmp_path)
    every, _ = prediction.run(run, tmp_path / "out", anchors=[6])
    first, _ = prediction.run(run, tmp_path / "out", anchors=[6], limit=1)
    assert (every[0]["vessels"], first[0]["vessels"]) == (2, 1)
    assert first[0]["epsilon_velocity"] != every[0]["epsilon_velocity"]


def test_more_points_than_there_are_are_refused(folder, tmp_path):
    run = _untrained(folder, tmp_path)
    with pytest.raises(ArteryError, match=r"have 260 points of a kind, so --points 261 is too"):
        prediction.run(run, tmp_path / "out", points=[50, 261])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (dict(points=[50, -5]), r"--points must be at least 1, got -5"),
        (dict(anchors=[6, 0]), r"--anchors must be at least 1, got 0"),
        (dict(anchors=[60], points=[300, 50]), r"--anchors 60 is too many: .* 50 are used"),
        (dict(anchors=[201]), r"--anchors 201 is too many: .* 200 are used"),
    ],
)
def test_numbers_of_points_and_anchors_that_make_no_sense_are_refused(tmp_path, sizes, message):
    run = _untrained(write_tubes(tmp_path, lumen=300), tmp_path)
    with pytest.raises(ArteryError, match=message):
        prediction.run(run, tmp_path / "out", **sizes)


def test_a_folder_that_cannot_be_made_is_refused_before_predictions(folder, tmp_path, monkeypatch):
    run = _untrained(folder, tmp_path)
    monkeypatch.setattr(FlowTask, "errors_at", lambda *_: pytest.fail("predicted"))
    (tmp_path / "file").touch()
    with pytest.raises(ArteryError, match=r"--out must be a folder, but .*file is a file"):
        prediction.run(run, tmp_path / "file" / "deeper")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=0", r"has no val vessels; make more with `flashgatr data flows`"),
        ("data.train_samples=9", r"has 8 train vessels, 9 are needed"),
        ("data.options.test_limit=2", r"has 1 test vessels, 2 are needed"),
    ],
)
def test_missing_vessels_are_an_error_before_training(tmp_path, change, message):
    given = config(write_tubes(tmp_path), f"folder='{tmp_path / 'run'}'", change)
    runs.require(config(tmp_path))
    if change == "seed=0":
        (tmp_path / "sample_0008.safetensors").unlink()  # as if its flow had not converged
    with pytest.raises(ArteryError, match=message):
        runs.train(given)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_predict_takes_a_shipped_run_by_name_and_names_its_experiment():
    done = CliRunner().invoke(application(), ["predict", "flows", "pretrained:arteries"])
    assert "is a run of the arteries experiment, not of flows" in str(done.exception)


def test_a_run_can_be_tested_on_a_part_of_the_points(folder):
    task = FlowTask(config(folder, "data.options.test_points=30", "data.train_samples=2"), CPU)
    results = task.evaluate(task.model)
    assert results["test"]["points"] == results["test_turned"]["points"] == 60
    assert [x.shape[1] for x in task.test_vessels().kinds] == [LUMEN, WALL]


def _untrained(folder, tmp_path):
    """The folder of a run of two steps."""
    settings = [*SMALL, f"data.folder={folder}", "train.steps=2", "data.options.test_points=30"]
    settings = [x for option in settings for x in ("--set", option)]
    command = ["train", "flows", "--folder", str(tmp_path / "run"), *settings]
    CliRunner().invoke(application(), command, catch_exceptions=False)
    return tmp_path / "run"


def test_data_are_solved_and_drawn_by_one_command(tmp_path):
    command = [
        "data",
        "flows",
        "--folder",
        str(tmp_path),
        "--vessels",
        "3",
        "--mesh",
        "1",
        "1",
        "6",
    ]
    sizes = ["--lumen", "60", "--wall", "40", "--max-reduction", "0.06", "--workers", "1"]
    shell = CliRunner()
    told = shell.invoke(application(), [*command, *sizes], catch_exceptions=False)
    assert told.exit_code == 0
    assert "points of 3 vessels made, 0 kept, 0 failed" in told.output
    found = load(tmp_path, "train", CPU)
    assert [tuple(x.shape) for x in found.kinds] == [(1, 60, 12), (1, 40, 12)]
    again = shell.invoke(application(), [*command, *sizes], catch_exceptions=False)
    assert "points of 0 vessels made, 3 kept, 0 failed" in again.output
