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

from flashgatr.experiments import cli, results, runs, sweep
from flashgatr.experiments.arteries import LABEL_SCALE, task
from flashgatr.experiments.arteries.batches import MeshPair, pack, turns
from flashgatr.experiments.arteries.data import orientation
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.data.shards import read_index, read_shard, write_shard
from flashgatr.experiments.arteries.metrics import mesh_errors, summarise
from flashgatr.experiments.config import ConfigError, override, save
from flashgatr.train.batch import mapped

from .walls import chosen, tube, walls

CPU = torch.device("cpu")
EARLIER = Path(__file__).parents[1] / "earlier"
SMALL = ["num_blocks=1", "hidden_mv_channels=4", "hidden_s_channels=8", "num_heads=2"]
FAST = ["train.steps=3", "train.batch_size=2", "train.validate_every=2", "device=cpu"]


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    monkeypatch.setattr(task, "load", walls)
    monkeypatch.setattr(task, "choose", chosen)


def config(*changes):
    small = [f"model.options.{option}" for option in SMALL]
    return override(runs.defaults("arteries"), [*small, "train.precision=float32", *changes])


def make(*changes):
    return task.ArteryTask(config(*changes), CPU)


def test_a_batch_holds_whole_meshes_one_after_another():
    made = make("data.options.orientation=canonical")
    meshes = walls("", "train")
    batch = made.batch(torch.tensor([4, 1]))
    position, normal, geodesic, target, mask, offsets, most, edges, neighbours = batch
    assert edges is None
    assert neighbours is None
    sizes = [meshes[4].nodes, meshes[1].nodes]
    assert made.samples == len(meshes)
    assert offsets.tolist() == [0, sizes[0], sum(sizes)]
    assert most.item() == max(sizes)
    last = slice(sizes[0], None)
    np.testing.assert_array_equal(position[last], meshes[1].position)
    np.testing.assert_array_equal(normal[last], meshes[1].normal)
    np.testing.assert_array_equal(geodesic[last], meshes[1].geodesic)
    np.testing.assert_array_equal(mask[last], meshes[1].mask)
    np.testing.assert_allclose(target[last] * LABEL_SCALE, meshes[1].wss, rtol=1e-6)


def test_edges_and_neighbours_of_a_mesh_are_renumbered_in_a_batch():
    small, large = tube(0, 12), tube(1, 18)
    small = replace(
        small, edges=np.array([[0, 1], [1, 11]]), neighbours=np.tile([[1, -1]], (12, 1))
    )
    large = replace(large, edges=np.array([[0, 17]]), neighbours=np.tile([[2, 3]], (18, 1)))
    packed = pack([small, large], CPU)
    batch = packed.batch([1, 0])
    assert batch.offsets.tolist() == [0, 18, 30]
    assert batch.edges.tolist() == [[0, 17], [18, 19], [19, 29]]
    expected = np.concatenate([large.neighbours, np.tile([[19, -1]], (12, 1))])
    np.testing.assert_array_equal(batch.neighbours, expected)
    moved = batch.position[batch.edges[1:]]
    np.testing.assert_array_equal(moved, small.position[small.edges])
    assert mapped(torch.clone, batch).edges.tolist() == batch.edges.tolist()
    with pytest.raises(ValueError, match="1 of 2 meshes have edges; expected all or none"):
        pack([small, tube(2)], CPU)


def test_random_orientations_are_fixed_by_the_samples_number():
    found = make().batch(torch.tensor([2]))
    mesh = walls("", "train")[2]
    matrix = orientation.matrices(2000)[2]
    np.testing.assert_allclose(found.position, mesh.position @ matrix.T, atol=1e-6)
    np.testing.assert_allclose(
        found.target * LABEL_SCALE, mesh.wss @ matrix.T, rtol=1e-4, atol=1e-3
    )


def test_augmentation_turns_each_mesh_as_a_whole_and_mirrors_half_of_them():
    made = make("data.options.augment=true", "data.options.orientation=canonical")
    meshes = walls("", "train")
    determinants = []
    for step in range(8):
        torch.manual_seed(step)
        position, normal, geodesic, target, _, offsets, *_ = made.batch(torch.tensor([0, 3]))
        torch.manual_seed(step)
        assert torch.equal(
            made.batch(torch.tensor([0, 3])).position, position
        )  # a resumed step's, too
        for mesh, rows in zip(
            (meshes[0], meshes[3]), offsets.unfold(0, 2, 1).tolist(), strict=True
        ):
            own = slice(*rows)
            matrix = np.linalg.lstsq(mesh.position, position[own].numpy(), rcond=None)[0]
            np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-4)
            np.testing.assert_allclose(normal[own], mesh.normal @ matrix, atol=1e-4)
            np.testing.assert_allclose(
                target[own] * LABEL_SCALE, mesh.wss @ matrix, rtol=1e-3, atol=1e-2
            )
            np.testing.assert_array_equal(geodesic[own], mesh.geodesic)
            determinants.append(np.linalg.det(matrix))
    assert min(determinants) < 0 < max(determinants)


def test_parts_are_turned_before_they_are_looked_up():
    """Two parts may run at the same time, so random numbers must be drawn before."""
    made = make("data.options.augment=true")
    torch.manual_seed(1)
    before = [pair.matrices.clone() for pair, _ in made.parts(torch.tensor([2, 0, 3]))]
    torch.manual_seed(1)
    for (pair, _), matrices in zip(made.parts(torch.tensor([2, 0, 3])), before, strict=True):
        own = pair.matrices
        assert torch.equal(own, matrices)
        torch.testing.assert_close(own @ own.mT, torch.eye(3).expand(2, 3, 3), atol=1e-5, rtol=0)
        state = torch.random.get_rng_state()
        loss, _ = made.loss(made.model, pair)
        assert loss.isfinite()
        assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("augment", ["false", "true"])
def test_a_copied_batch_has_the_same_loss(augment):
    """The engine copies batches into buffers; absent fields stay absent."""
    made = make(f"data.options.augment={augment}")
    batches = [pair for pair, _ in made.parts(torch.tensor([2, 0, 3]))]
    batches.append(made.batch(torch.tensor([2, 0])))
    batches.append(make("data.options.nodes=20").batch(torch.tensor([2, 0])))
    for batch in batches:
        copy = mapped(torch.clone, batch)
        assert type(copy) is type(batch)
        assert [x is None for x in copy] == [x is None for x in batch]
        assert torch.equal(made.loss(made.model, copy)[0], made.loss(made.model, batch)[0])


def test_meshes_count_as_many_nodes_as_are_compared():
    made, alike = make(), make("data.options.loss=relative")
    meshes = walls("", "train")
    assert made.counts(torch.tensor([2, 0])) == [meshes[2].mask.sum(), meshes[0].mask.sum()]
    assert alike.counts(torch.tensor([2, 0])) == [1, 1]
    thinned = make("data.options.nodes=10")
    shares = [10 * meshes[k].mask.mean() for k in (2, 0)]
    assert thinned.counts(torch.tensor([2, 0])) == pytest.approx(shares)


def test_a_mesh_without_labels_that_count_is_refused(monkeypatch):
    def blank(folder, split, **options):
        first, *rest = walls(folder, split, **options)
        return [replace(first, mask=np.zeros_like(first.mask)), *rest]

    monkeypatch.setattr(task, "load", blank)
    with pytest.raises(ArteryError, match="on the nodes that count"):
        assert make().samples


@pytest.mark.parametrize("numbers", [[0, 1, 2], [3, 0, 2, 1], [1]])
@pytest.mark.parametrize("model", ["gatr", "transformer"])
@pytest.mark.parametrize("kind", ["mse", "relative", "epsilon"])
def test_parts_of_a_batch_add_up_to_it(kind, model, numbers):
    sizes = SMALL if model == "gatr" else ["num_blocks=1", "hidden_channels=16", "num_heads=2"]
    options = [f"model.options.{option}" for option in sizes]
    changes = [f"model.name={model}", f"data.options.loss={kind}", "train.precision=float32"]
    made = task.ArteryTask(override(runs.defaults("arteries"), [*options, *changes]), CPU)
    made.model.double()
    batch = made.batch(torch.tensor(numbers))
    made._train = made._train._replace(nodes=made._train.nodes.double())
    whole = made.loss(made.model, _double(batch))[0]
    expected = torch.autograd.grad(whole, list(made.model.parameters()), allow_unused=True)
    parts = list(made.parts(torch.tensor(numbers)))
    assert len(parts) == -(-len(numbers) // 2)
    assert sum(share for _, share in parts) == pytest.approx(1)
    total = sum(share * made.loss(made.model, part)[0] for part, share in parts)
    torch.testing.assert_close(total, whole, rtol=1e-6, atol=0)
    found = torch.autograd.grad(total, list(made.model.parameters()), allow_unused=True)
    for x, y in zip(found, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7 * (1 + y.abs().max()))


def _double(batch):
    return mapped(lambda x: x.double() if x.is_floating_point() else x, batch)


def test_thinned_batches_draw_other_nodes_every_time_from_all_of_a_mesh():
    made = make("data.options.nodes=40", "data.options.orientation=canonical")
    drawn = [made.batch(torch.tensor([3, 0])) for _ in range(2)]
    assert not torch.equal(drawn[0].position, drawn[1].position)
    for batch in drawn:
        assert [x.shape for x in batch[:4]] == [(2, 40, 3), (2, 40, 3), (2, 40), (2, 40, 3)]
        assert batch.valid is None
        for k, *rows in zip((3, 0), *batch[:5], strict=True):
            mesh = walls("", "train")[k]
            apart = np.linalg.norm(mesh.position[:, None] - rows[0].numpy(), axis=-1)
            found = apart.argmin(0)
            assert (np.diff(found) >= 0).all()  # in order, hardly a node twice
            assert found[-1] - found[0] > 0.9 * mesh.nodes
            expected = mesh.position, mesh.normal, mesh.geodesic, mesh.wss / LABEL_SCALE, mesh.mask
            for x, y in zip(rows, expected, strict=True):
                np.testing.assert_allclose(x, y[found], rtol=1e-6)


def test_thinned_batches_are_turned_mesh_by_mesh():
    still, turned = (
        make("data.options.nodes=40", f"data.options.augment={augment}")
        for augment in ("false", "true")
    )
    determinants = []
    for step in range(8):
        torch.manual_seed(step)
        before = still.batch(torch.tensor([3, 0]))
        torch.manual_seed(step)
        after = turned.batch(torch.tensor([3, 0]))
        assert torch.equal(before[2], after[2])
        for row in range(2):
            matrix = torch.linalg.lstsq(before[0][row], after[0][row]).solution
            torch.testing.assert_close(matrix @ matrix.T, torch.eye(3), atol=1e-4, rtol=0)
            for k in (1, 3):
                torch.testing.assert_close(
                    before[k][row] @ matrix, after[k][row], atol=1e-4, rtol=0
                )
            determinants.append(torch.linalg.det(matrix))
    assert min(determinants) < 0 < max(determinants)
    assert turned.loss(turned.model, after)[0].isfinite()


def test_padded_meshes_are_whole_and_turned_one_by_one():
    packed = make("data.options.orientation=canonical")._train
    meshes = [walls("", "train")[k] for k in (3, 0)]
    given = MeshPair(torch.tensor([3, 0, -1]), torch.arange(256))
    position, normal, geodesic, target, mask, valid = packed.padded(given)
    assert valid.sum(1).tolist() == [mesh.nodes for mesh in meshes] + [0]
    assert not position[~valid].any()
    assert not mask[~valid].any()
    for row, mesh in enumerate(meshes):
        own = row, slice(mesh.nodes)
        for x, y in ((position, mesh.position), (normal, mesh.normal), (geodesic, mesh.geodesic)):
            np.testing.assert_array_equal(x[own], y)
        np.testing.assert_array_equal(mask[own], mesh.mask)
    turned = packed.padded(given._replace(matrices=turns(3, CPU)))
    matrix = torch.linalg.lstsq(position[:2], turned[0][:2]).solution
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(3).expand(2, 3, 3), atol=1e-4, rtol=0)
    for before, after in ((normal, turned[1]), (target, turned[3])):
        torch.testing.assert_close(before[:2] @ matrix, after[:2], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["mse", "relative", "epsilon"])
def test_the_loss_is_the_error_on_masked_nodes(kind):
    made = make(f"data.options.loss={kind}")
    batch = made.batch(torch.tensor([0, 1, 2]))
    *inputs, target, mask, offsets, most = batch[:7]
    loss, _ = made.loss(made.model, batch)
    with torch.no_grad():
        found = made.model(*inputs, offsets, int(most))
    if kind == "mse":  # pooled over the nodes of the batch
        assert loss.item() == pytest.approx((found - target)[mask].square().mean().item())
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
    monkeypatch.setattr(sweep, "record", lambda *line: lines.append(line))
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
