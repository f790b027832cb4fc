"""Batches of meshes: packed, in parts, thinned, padded and turned."""

import numpy as np
import pytest
import torch

from flashgatr.experiments import runs
from flashgatr.experiments.arteries import LABEL_SCALE, task
from flashgatr.experiments.arteries.batches import MeshPair, pack, turns
from flashgatr.experiments.arteries.data import orientation
from flashgatr.experiments.arteries.data.levels import with_levels
from flashgatr.experiments.baselines.surfaces.levels import Hierarchy
from flashgatr.experiments.config import override
from flashgatr.train.batch import mapped

from .small_task import CPU, SMALL, make
from .walls import tube, walls

pytestmark = pytest.mark.usefixtures("no_files")


def test_a_batch_holds_whole_meshes_one_after_another():
    made = make("data.options.orientation=canonical")
    meshes = walls("", "train")
    batch = made.batch(torch.tensor([4, 1]))
    position, normal, geodesic, target, mask, offsets, most, levels = batch
    assert levels is None
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


def test_models_see_the_stress_in_the_unit_of_the_networks_trained_so_far():
    mesh, batch = walls("", "train")[2], make("data.options.orientation=canonical").batch
    np.testing.assert_allclose(batch(torch.tensor([2])).target * 53.836, mesh.wss, rtol=1e-6)


def test_levels_of_a_mesh_are_renumbered_in_a_batch():
    scales = Hierarchy((0.5,), (1.0,), most=4, convolves=False)
    small, large = with_levels([tube(0, 12), tube(1, 18)], scales)
    batch = pack([small, large], CPU).batch([1, 0])
    (level,) = batch.levels
    assert batch.offsets.tolist() == [0, 18, 30]
    own = batch.position[level.pooled[9:]]  # the large mesh keeps 9 nodes
    np.testing.assert_array_equal(own, small.position[small.levels[0].pooled])
    np.testing.assert_array_equal(level.near[:18], large.levels[0].near)
    assert mapped(torch.clone, batch).levels[0].kept.tolist() == level.kept.tolist()
    with pytest.raises(ValueError, match="1 of 2 meshes have levels; expected all or none"):
        pack([small, tube(2)], CPU)


def test_pairs_are_meshes_of_similar_size_padded_to_the_larger_one():
    sizes = 12, 600, 18, 300, 24
    packed = pack([tube(k, size) for k, size in enumerate(sizes)], CPU)
    assert packed.pairs(range(5)) == [([1, 3], 768), ([4, 2], 256), ([0], 256)]


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


def test_a_draw_that_rounds_up_to_the_end_of_a_mesh_stays_in_it(monkeypatch):
    """In float32, 39 plus the largest random number below 1 is 40."""
    meshes = [tube(0, 12), tube(1, 18)]
    largest = lambda *size, device: torch.full(size, 1 - 2**-24, device=device)  # noqa: E731
    monkeypatch.setattr(torch, "rand", largest)
    batch = pack(meshes, CPU).thinned(torch.tensor([0, 1]), 40)
    for mesh, position in zip(meshes, batch.position, strict=True):
        np.testing.assert_array_equal(position[-1], mesh.position[-1])


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
    position, normal, geodesic, target, mask, valid = packed.padded(given)[:6]
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
