"""Training on anchors and other nodes: data.options.anchors."""

import itertools

import pytest
import torch

from flashgatr import AnchoredGATr
from flashgatr.experiments import runs
from flashgatr.experiments.arteries import inference
from flashgatr.experiments.arteries.anchoring import AnchorChoice, GivenAnchors
from flashgatr.experiments.arteries.data.mesh import ArteryError
from flashgatr.experiments.arteries.inference import predict_meshes
from flashgatr.experiments.arteries.task import ArteryTask
from flashgatr.experiments.config import ConfigError, override

from .small_task import CPU, config, make
from .walls import walls

pytestmark = pytest.mark.usefixtures("no_files")
FEW = ["data.options.nodes=20", "data.options.anchors=12"]
BOTH = torch.tensor([1, 4])


def canonical(*changes):
    return make(*FEW, "data.options.orientation=canonical", *changes)


def numbers_of(batch, meshes):
    """The node numbers of a batch's rows, by position: (B, L)."""
    return torch.stack(
        [
            torch.cdist(rows, torch.from_numpy(meshes[k].position)).argmin(-1)
            for rows, k in zip(batch.position, BOTH.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("method", ["medoids", "farthest", "random"])
def test_a_batch_is_anchors_of_the_whole_mesh_and_other_nodes_all_drawn_again(method):
    made, meshes = canonical(f"data.options.anchor_method={method}"), walls("", "train")
    first, second = made.batch(BOTH), made.batch(BOTH)
    assert first.position.shape == (2, 12 + 20, 3)
    assert first.anchors.tolist() == [list(range(12))] * 2
    assert first.weights.sum(-1).tolist() == [meshes[k].nodes for k in BOTH.tolist()]
    chosen, again = (numbers_of(batch, meshes)[:, :12] for batch in (first, second))
    assert all(len(set(row)) == 12 for row in chosen.tolist())
    assert chosen.tolist() != again.tolist()
    given = torch.stack([torch.from_numpy(meshes[k].wss)[n] for k, n in zip(BOTH, chosen)])  # noqa: B905
    torch.testing.assert_close(first.target[:, :12] * 53.836, given)


def test_the_loss_counts_anchors_and_other_nodes():
    made = canonical("data.options.anchor_weights=false")
    batch = made.batch(BOTH)
    assert batch.weights is None
    loss, _ = made.loss(made.model, batch)
    found = made.model(*batch[:3], anchors=batch.anchors)
    expected = (found - batch.target)[batch.mask].square().mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for rows in (slice(12), slice(12, None)):
        mask = batch.mask.clone()
        mask[:, rows] = False
        assert made.loss(made.model, batch._replace(mask=mask))[0].item() != loss.item()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in made.model.parameters() if p.grad is not None)


def test_turned_batches_keep_their_anchors():
    """A turn of a mesh, which comes after the choice, turns predictions and labels alike."""
    torch.manual_seed(0)
    still = canonical("model.options.both_signs=true")
    torch.manual_seed(0)
    turned = canonical("model.options.both_signs=true", "data.options.augment=true")
    torch.manual_seed(1)
    plain = still.batch(BOTH)
    torch.manual_seed(1)
    moved = turned.batch(BOTH)
    assert not torch.allclose(plain.position, moved.position)
    assert torch.equal(plain.weights, moved.weights)
    losses = [still.loss(still.model, batch)[0].item() for batch in (plain, moved)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_validation_and_test_use_anchors_and_the_test_also_full_attention():
    made = make(*FEW)
    model = made.model.eval()
    assert isinstance(model.net, AnchoredGATr)
    meshes = walls("", "test")
    found = next(made.predictions(model, meshes))
    expected = next(predict_meshes(model, meshes, CPU, anchors=made.options.choice))
    assert torch.equal(found, expected)
    assert not torch.equal(found, next(predict_meshes(model, meshes, CPU)))
    results = made.evaluate(model)
    assert list(results) == ["test", "val", "test_full", "test_moved", "test_mirrored"]
    assert results["test_full"]["epsilon_mean"] != results["test"]["epsilon_mean"]


def test_moved_meshes_keep_the_anchors_of_the_test_meshes(monkeypatch):
    """Chosen again, they could be others: rounding moves nodes at a distance. Here they would be,
    because every choice has another seed.
    """
    made, seen, seeds = make(*FEW), [], itertools.count()
    choose, predict = AnchorChoice.on, inference.predict_wall

    def on(choice, position, **options):
        return choose(choice, position, **options | dict(seed=torch.tensor([next(seeds)])))

    def predict_wall(model, position, normal, geodesic, choice, **options):
        if isinstance(choice, GivenAnchors):
            seen.append((position, choice.on(position)[0]))
        return predict(model, position, normal, geodesic, choice, **options)

    monkeypatch.setattr(AnchorChoice, "on", on)
    monkeypatch.setattr(inference, "predict_wall", predict_wall)
    made.evaluate(made.model.eval())
    count = len(walls("", "test"))
    assert len(seen) == 5 * count  # of test, and twice each of the moved and the mirrored meshes
    (_, first), *others = seen[::count]
    assert all(torch.equal(index, first) for _, index in others)
    assert [float(place.abs().max()) > 400 for place, _ in seen[::count]] == [False, *[True] * 4]


def test_a_run_with_anchors_is_trained_and_read_again(tmp_path):
    fast = ["train.steps=2", "train.batch_size=2", "device=cpu", f"folder='{tmp_path / 'run'}'"]
    settings = override(config(*FEW), fast)
    runs.train(settings)
    assert "test_full" in runs.read_results(tmp_path / "run")["results"]
    assert type(runs.load_model(settings).net).__name__ == "GATr"  # the files are those of GATr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_draws_other_anchors_in_every_replay(tmp_path):
    made = ArteryTask(config(*FEW), torch.device("cuda"))
    numbers, graph = BOTH.cuda(), torch.cuda.CUDAGraph()
    made.batch(numbers)
    with torch.cuda.graph(graph):
        batch = made.batch(numbers)
    seen = []
    for _ in range(3):
        graph.replay()
        assert batch.weights.sum(-1).tolist() == [walls("", "train")[k].nodes for k in (1, 4)]
        seen.append(batch.position[:, :12].flatten().tolist())
    assert seen[0] != seen[1] != seen[2]
    run = ["train.steps=4", "train.batch_size=2", "train.cuda_graph=true", "device=cuda"]
    runs.train(override(config(*FEW), [*run, f"folder='{tmp_path / 'run'}'"]))
    assert runs.read_results(tmp_path / "run")["skipped"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.options.anchors=8"], "data.options.nodes is 0; set it to the number of nodes"),
        ([*FEW, "data.options.anchor_method=near"], "'random', 'medoids', got 'near'"),
        ([*FEW, "data.options.anchors=61"], "anchors is 61, but sample_0000 has 60 nodes only"),
    ],
)
def test_anchors_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        assert make(*changes).samples


def test_networks_without_anchors_refuse_them():
    small = config(*FEW)
    with pytest.raises(ArteryError, match="anchors are for models with a GATr inside"):
        type(make())(
            override(small, ["model.name=transformer", "model.options={hidden_channels=16}"]), CPU
        )
