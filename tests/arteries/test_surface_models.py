"""PointNet++ and GEM-CNN in the artery experiment: whole meshes, and levels that are kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flashgatr.experiments import cli, runs
from flashgatr.experiments.arteries import EXPERIMENT, models, task
from flashgatr.experiments.arteries.batches import pack
from flashgatr.experiments.arteries.data import levels as kept
from flashgatr.experiments.arteries.data.levels import prepare_levels, with_levels
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.inference import predict_meshes, predicted
from flashgatr.experiments.baselines.surfaces.levels import Hierarchy
from flashgatr.experiments.config import ConfigError, override

from .small_task import CPU
from .vessel.predictions import SAMPLE, make_run
from .walls import tube

SMALL = {
    "pointnet2": dict(radii=[0.5, 0.8, 1.0, 2.0, 3.0], widths=[8, 8, 12, 12, 16]),
    "gem_cnn": dict(radii=[0.5, 0.8, 1.5], channels=4),
}
NAMES = sorted(models.ON_SURFACES)
SCALES = Hierarchy((0.5, 0.5), (0.5, 1.0), most=6, convolves=False)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The user's cache folder; ours is left alone."""
    found = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(kept, "cache_folder", lambda: found)
    return found


@pytest.fixture
def few(no_files, tmp_path):
    """A folder for levels; small walls stand in for its shards."""
    return tmp_path


def config(name, folder, *changes):
    small = [f"model.options.{key}={value}" for key, value in SMALL[name].items()]
    always = [f"model.name={name}", f"data.folder={folder}", "train.precision=float32"]
    return override(runs.defaults("arteries"), [*always, *small, *changes])


def make(name, folder, *changes):
    return task.ArteryTask(config(name, folder, *changes), CPU)


def built(name):
    torch.manual_seed(0)
    return EXPERIMENT.build(name, SMALL[name]).eval()


@pytest.mark.parametrize(("name", "size"), [("pointnet2", 1_028_975), ("gem_cnn", 1_024_522)])
def test_the_networks_have_the_sizes_of_the_datas_authors(name, size):
    assert sum(p.numel() for p in EXPERIMENT.build(name, {}).parameters()) == size


@pytest.mark.parametrize("name", NAMES)
def test_packed_meshes_are_seen_one_by_one_with_levels_given_or_not(name):
    model = built(name)
    meshes = [tube(0, 60), tube(1, 90)]
    linked = with_levels(meshes, model.hierarchy)
    together = list(predict_meshes(model, meshes, CPU))
    given = list(predict_meshes(model, linked, CPU))
    alone = [next(predict_meshes(model, [mesh], CPU)) for mesh in meshes]
    for found, expected, single in zip(together, given, alone, strict=True):
        assert torch.equal(found, expected)
        torch.testing.assert_close(found, single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_learn(name, few):
    made = make(name, few, "data.options.loss=l1")
    optimizer = torch.optim.Adam(made.model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss, more = made.loss(made.model, made.batch(torch.arange(6)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert more.keys() == {"mse"}


def test_a_turned_batch_has_the_same_loss_for_gem_cnn_only(few):
    torch.manual_seed(0)
    matrix = torch.linalg.qr(torch.randn(3, 3))[0]
    matrix = matrix * torch.linalg.det(matrix)
    for name in NAMES:
        made = make(name, few)
        plain = made.batch(torch.arange(6))
        vectors = ("position", "normal", "target")
        turned = plain._replace(**{x: getattr(plain, x) @ matrix.T for x in vectors})
        found, expected = (made.loss(made.model, batch)[0].item() for batch in (turned, plain))
        assert (found == pytest.approx(expected, rel=1e-4)) == (name == "gem_cnn")


@pytest.mark.parametrize("name", NAMES)
def test_meshes_that_are_turned_in_training_keep_their_levels(name, few):
    made = make(name, few, "data.options.augment=true")
    first, second = (made.batch(torch.tensor([2, 4])) for _ in range(2))
    assert not torch.equal(first.position, second.position)
    assert torch.equal(first.levels[1].kept, second.levels[1].kept)
    assert made.loss(made.model, first)[0].isfinite()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_validated_and_evaluated_on_moved_meshes(name, few):
    made = make(name, few)
    found = made.evaluate(made.model.eval())
    assert np.isfinite(made.validate(made.model)["score"])
    assert list(found) == ["test", "val", "test_moved", "test_mirrored"]
    assert found["test_mirrored"]["change_max"] > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_both_orientations_share_their_levels(name, few):
    random, canonical = (
        make(name, few, f"data.options.orientation={kind}").batch(torch.tensor([3, 1]))
        for kind in ("random", "canonical")
    )
    assert not torch.equal(random.position, canonical.position)
    for one, other in zip(random.levels, canonical.levels, strict=True):
        for x, y in zip(one, other, strict=True):
            assert (x is None and y is None) or torch.equal(x, y)
    assert len(list((few / "levels").iterdir())) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.options.nodes=8", "needs whole meshes, but data.options.nodes is 8; set it to 0"),
        ("train.cuda_graph=true", "does not run as CUDA graphs"),
    ],
)
def test_settings_without_meaning_are_refused(name, change, message, few):
    with pytest.raises(ConfigError, match=message):
        make(name, few, change)


@pytest.mark.parametrize("name", NAMES)
def test_padded_meshes_are_refused(name):
    mesh = pack([tube(0)], CPU).batch([0])
    with pytest.raises(ValueError, match="expected whole meshes, packed in positions"):
        built(name)(*mesh[:3], mask=mesh.mask)
    with pytest.raises(ValueError, match=r"got positions \(1, 60, 3\)"):
        built(name)(*(x[None] for x in mesh[:3]))


@pytest.mark.parametrize("name", NAMES)
def test_a_vessel_of_ones_own_is_predicted(name, tmp_path):
    run = make_run(tmp_path / "run", f"model.name={name}")
    line = ["predict", "arteries", str(run), str(SAMPLE), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.application(), line)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "sample_0001.vtp").is_file()


def test_a_mesh_with_too_many_neighbours_is_refused(monkeypatch):
    monkeypatch.setattr(models, "MOST_NEIGHBOURS", 200)
    with pytest.raises(ArteryError, match=r"too fine for this network: .* 200 are possible"):
        next(predict_meshes(built("gem_cnn"), [tube(0)], CPU))
    assert next(predict_meshes(built("pointnet2"), [tube(0)], CPU)).isfinite().all()


def meshes():
    return [tube(k, 60 + 6 * k) for k in range(3)]


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for level, wanted in zip(one.levels, other.levels, strict=True):
            for x, y in zip(level, wanted, strict=True):
                np.testing.assert_array_equal(x, y)


def test_levels_are_computed_once(tmp_path, monkeypatch):
    first = with_levels(meshes(), SCALES, tmp_path)
    monkeypatch.setattr(Hierarchy, "build", None)
    same(with_levels(meshes(), SCALES, tmp_path), first)


def test_levels_that_processes_prepare_are_those_that_training_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "TOGETHER", 2)
    expected = with_levels(meshes(), SCALES)
    seen = []
    prepare_levels(meshes(), SCALES, tmp_path, 2, lambda *numbers: seen.append(numbers))
    assert seen[-1] == (len(expected), len(expected))
    monkeypatch.setattr(Hierarchy, "build", lambda *given: pytest.fail("they are there"))
    same(with_levels(meshes(), SCALES, tmp_path), expected)
    with pytest.raises(ArteryError, match="missing is not a folder"):
        prepare_levels(meshes(), SCALES, tmp_path / "missing")


@pytest.mark.parametrize("changed", ["settings", "positions"])
def test_other_settings_or_meshes_have_other_levels(changed, tmp_path):
    with_levels(meshes(), SCALES, tmp_path)
    scales, own = SCALES, meshes()
    if changed == "settings":
        scales = replace(SCALES, radii=(0.6, 1.0))
    else:
        own[1] = replace(own[1], position=own[1].position * 1.5)
    same(with_levels(own, scales, tmp_path), with_levels(own, scales))
    assert len(list((tmp_path / "levels").iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "other file"])
def test_damaged_levels_are_made_again(damage, tmp_path):
    expected = with_levels(meshes(), SCALES, tmp_path)
    (file,) = (tmp_path / "levels").iterdir()
    content = file.read_bytes()
    middle = len(content) - 100
    broken = {
        "cut": content[:-7],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "emptied": b"",
        "other file": b"not a file of levels at all",
    }
    file.write_bytes(broken[damage])
    same(with_levels(meshes(), SCALES, tmp_path), expected)
    assert file.read_bytes() == content


def test_levels_of_other_meshes_are_not_believed(tmp_path):
    """A file with a valid hash whose entries are no nodes of these meshes."""
    with_levels(meshes(), SCALES, tmp_path)
    (file,) = (tmp_path / "levels").iterdir()
    larger = [own.levels for own in with_levels([tube(k, 300) for k in range(3)], SCALES)]
    file.write_bytes(kept._packed(larger))
    same(with_levels(meshes(), SCALES, tmp_path), with_levels(meshes(), SCALES))


def marked_read_only(folder, monkeypatch):
    folder.chmod(0o555)  # would not stop the root user, but the mark counts


def not_a_folder(folder, monkeypatch):
    (folder / "levels").write_text("a file: nothing can be written below it")


def refused_by_the_disk(folder, monkeypatch):
    def refuse(path, content):
        if folder in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        written(path, content)

    written = kept.files.write
    monkeypatch.setattr(kept.files, "write", refuse)


@pytest.mark.parametrize(
    "obstacle", [marked_read_only, not_a_folder, refused_by_the_disk], ids=lambda f: f.__name__
)
def test_levels_of_a_folder_that_cannot_be_written_to_are_kept_in_the_users_cache(
    obstacle, tmp_path, cache, monkeypatch
):
    obstacle(tmp_path, monkeypatch)
    expected = with_levels(meshes(), SCALES)
    same(with_levels(meshes(), SCALES, tmp_path), expected)
    assert not list(tmp_path.glob("levels/*"))
    (file,) = (cache / "levels").iterdir()
    assert file.suffix == ".safetensors"
    monkeypatch.setattr(Hierarchy, "build", lambda *given: pytest.fail("they are there"))
    same(with_levels(meshes(), SCALES, tmp_path), expected)
    prepare_levels(meshes(), SCALES, tmp_path, 1)


def test_levels_that_lie_in_a_read_only_folder_are_read(tmp_path, cache, monkeypatch):
    expected = with_levels(meshes(), SCALES, tmp_path)
    tmp_path.chmod(0o555)
    monkeypatch.setattr(Hierarchy, "build", lambda *given: pytest.fail("they are there"))
    same(with_levels(meshes(), SCALES, tmp_path), expected)
    assert not list(cache.iterdir())


def test_damaged_levels_in_the_cache_are_made_again(tmp_path, cache):
    tmp_path.chmod(0o555)
    expected = with_levels(meshes(), SCALES, tmp_path)
    (file,) = (cache / "levels").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-7])
    same(with_levels(meshes(), SCALES, tmp_path), expected)
    assert file.read_bytes() == content


def test_without_any_place_levels_are_computed_and_preparing_them_is_an_error(
    tmp_path, monkeypatch
):
    tmp_path.chmod(0o555)
    monkeypatch.setattr(kept, "cache_folder", lambda: None)
    same(with_levels(meshes(), SCALES, tmp_path), with_levels(meshes(), SCALES))
    with pytest.raises(ArteryError, match=r"neither in .* nor in the user's cache folder"):
        prepare_levels(meshes(), SCALES, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_everywhere_is_no_error(tmp_path, monkeypatch):
    def refuse(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(kept.files, "write", refuse)
    same(with_levels(meshes(), SCALES, tmp_path), with_levels(meshes(), SCALES))


def test_a_missing_folder_is_no_error(tmp_path):
    same(with_levels(meshes(), SCALES, tmp_path / "no"), with_levels(meshes(), SCALES))
    assert not (tmp_path / "no").exists()


def test_many_meshes_are_kept_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "TOGETHER", 2)
    found = with_levels(meshes(), SCALES, tmp_path)
    assert len(list((tmp_path / "levels").iterdir())) == 2
    same(found, with_levels(meshes(), SCALES))
    model = built("pointnet2")
    batch = pack(with_levels(meshes(), model.hierarchy), CPU).batch([0, 2])
    assert predicted(model, batch).shape == (60 + 72, 3)
