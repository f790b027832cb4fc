"""SEGNN in the artery experiment: nodes hear their nearest others; predictions follow motions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flashgatr.experiments import runs
from flashgatr.experiments.arteries import EXPERIMENT, task
from flashgatr.experiments.arteries import symmetry as symmetries
from flashgatr.experiments.arteries.batches import pack
from flashgatr.experiments.arteries.inference import predicted
from flashgatr.experiments.arteries.vessel.predict import is_equivariant
from flashgatr.experiments.config import override

from .small_task import CPU
from .test_symmetry import errors
from .walls import tube

SMALL = dict(num_layers=2, hidden_channels=12, k=5)


def make(*changes):
    small = [f"model.options.{key}={value}" for key, value in SMALL.items()]
    always = ["model.name=segnn", "train.precision=float32", *small]
    return task.ArteryTask(override(runs.defaults("arteries"), [*always, *changes]), CPU)


def built(**options):
    torch.manual_seed(0)
    return EXPERIMENT.build("segnn", SMALL | options).eval()


def uneven(index, nodes):
    """A wall on which no two distances are equal, so that the nearest nodes have no order."""
    mesh = tube(index, nodes)
    moved = mesh.position + 0.01 * np.random.default_rng(index).normal(size=mesh.position.shape)
    return replace(mesh, position=moved.astype(np.float32))


def test_its_size_and_what_its_nodes_see():
    model = EXPERIMENT.build("segnn", {})
    assert sum(p.numel() for p in model.parameters()) == 288_416
    assert (model.net.k, len(model.net.layers), model.net.charge_as_node_scalar) == (16, 8, True)
    assert EXPERIMENT.build("segnn", dict(k=6)).net.k == 6


@pytest.mark.parametrize("sign", [1, -1], ids=["rotation", "reflection"])
def test_predictions_turn_move_and_mirror_with_the_wall(sign):
    model = built().double()
    batch = pack([uneven(0, 60), uneven(1, 90)], CPU).batch([0, 1])
    position, normal, geodesic = (x.double() for x in batch[:3])
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    turn, shift = sign * turn * turn.det(), torch.randn(3, dtype=torch.float64)
    moved = batch._replace(
        position=position @ turn + shift, normal=normal @ turn, geodesic=geodesic
    )
    still = batch._replace(position=position, normal=normal, geodesic=geodesic)
    out = predicted(model, still)
    assert out.abs().max() > 1e-2
    torch.testing.assert_close(predicted(model, moved), out @ turn, rtol=0, atol=1e-12)
    assert is_equivariant(model)


def test_packed_padded_and_single_meshes_are_the_same():
    model, meshes = built().double(), [uneven(0, 60), uneven(1, 90)]
    packed = pack(meshes, CPU)
    nodes = packed.batch([0, 1])
    together = model(*(x.double() for x in nodes[:3]), nodes.offsets, 90)
    for number, found in enumerate(together.split([60, 90])):
        alone = packed.batch([number])
        expected = model(*(x.double() for x in alone[:3]))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    (pair, size), *_ = packed.pairs([0, 1])
    assert size > 90
    numbers = torch.tensor(pair)
    padded = packed.padded(task.MeshPair(numbers, torch.arange(size)))
    found = model(*(x.double() for x in padded[:3]), mask=padded.valid)
    assert not found[~padded.valid].any()
    expected = torch.cat([together.split([60, 90])[i] for i in pair])
    torch.testing.assert_close(found[padded.valid], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("nodes", [0, 20])
def test_a_few_steps_learn(nodes, no_files):
    made = make(f"data.options.nodes={nodes}")
    optimizer = torch.optim.Adam(made.model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss, _ = made.loss(made.model, made.batch(torch.arange(6)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_a_run_is_validated_and_evaluated_on_moved_meshes(no_files):
    made = make()
    found = made.evaluate(made.model.eval())
    assert np.isfinite(made.validate(made.model)["score"])
    assert list(found) == ["test", "val", "test_moved", "test_mirrored"]


def test_the_measured_error_under_motions_is_rounding(no_files, monkeypatch):
    monkeypatch.setattr(task, "load", lambda *given, **how: [uneven(200, 60), uneven(201, 72)])
    found = errors(make())
    assert found["float64"] < 1e-12
    assert found["float32"] < 1e-4
    assert symmetries.NODES == 1000
