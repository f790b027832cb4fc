"""Stopping and resuming on a GPU: eager steps, and a step as one CUDA graph."""

import signal

import pytest
import torch

from flashgatr.train.distributed import World

from . import toy
from .toy import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("graph", [False, True])
def test_a_run_that_is_stopped_and_resumed_ends_as_one_that_is_not(tmp_path, graph):
    device = torch.device("cuda:0")
    options = dict(dropout=0.3, device=device, poison={6: torch.nan})
    changes = dict(world=World(0, 1, device), ema=0.9, cuda_graph=graph)
    expected = train(tmp_path / "whole", toy=options, **changes)
    for step in (0, 11):
        with pytest.raises(SystemExit):
            train(tmp_path / "parts", toy=options | dict(signals={step: signal.SIGTERM}), **changes)
    found = train(tmp_path / "parts", toy=options, **changes)
    torch.testing.assert_close(found.weights(), expected.weights(), rtol=1e-5, atol=1e-6)
    assert found.summary["skipped"] == 1


class Divided(toy.Toy):
    """Batches in two pieces of different shape."""

    def parts(self, indices):
        for piece in indices.split([3, 5]):
            yield self.batch(piece), len(piece) / len(indices)


class Greedy(toy.Toy):
    """Allocates freed memory, on every stream, and overwrites it."""

    def batch(self, indices):
        self.taken = getattr(self, "taken", [])
        for _ in range(256):  # torch reuses its streams after 32
            with torch.cuda.stream(torch.cuda.Stream()):
                self.taken.append(torch.full((2,), torch.nan, dtype=torch.float64, device="cuda"))
        return super().batch(indices)


class GreedyDivided(Divided, Greedy):
    pass


@pytest.mark.parametrize(("modest", "greedy"), [(toy.Toy, Greedy), (Divided, GreedyDivided)])
def test_captured_steps_own_all_that_they_read(tmp_path, monkeypatch, modest, greedy):
    device = torch.device("cuda:0")
    changes = dict(toy=dict(device=device), world=World(0, 1, device), cuda_graph=True)
    monkeypatch.setattr(toy, "Toy", modest)
    expected = train(tmp_path / "alone", **changes)
    monkeypatch.setattr(toy, "Toy", greedy)
    found = train(tmp_path / "crowded", **changes)
    torch.testing.assert_close(found.weights(), expected.weights(), rtol=1e-5, atol=1e-6)


def test_captured_steps_keep_the_rates_of_parts_and_targets_follow_them(tmp_path, monkeypatch):
    """Against eager steps, and with a stop, after which the step is captured again."""
    device = torch.device("cuda:0")
    options, world = dict(device=device), World(0, 1, device)
    monkeypatch.setattr(toy, "Toy", toy.Follower)
    expected = train(tmp_path / "eager", toy=options, world=world).weights()
    stopped = dict(toy=options | dict(signals={11: signal.SIGTERM}), world=world, cuda_graph=True)
    with pytest.raises(SystemExit):
        train(tmp_path / "parts", **stopped)
    for folder in ("parts", "whole"):
        found = train(tmp_path / folder, toy=options, world=world, cuda_graph=True).weights()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(found["target"], found["last.weight"])


def test_a_run_in_parts_that_is_stopped_and_resumed_ends_as_one_that_is_not(tmp_path, monkeypatch):
    """Also with random numbers: the first step after a stop captures, and draws like any other."""
    device = torch.device("cuda:0")
    options = dict(dropout=0.3, device=device)
    changes = dict(world=World(0, 1, device), cuda_graph=True)
    monkeypatch.setattr(toy, "Toy", Divided)
    expected = train(tmp_path / "whole", toy=options, **changes)
    with pytest.raises(SystemExit):
        train(tmp_path / "parts", toy=options | dict(signals={11: signal.SIGTERM}), **changes)
    found = train(tmp_path / "parts", toy=options, **changes)
    torch.testing.assert_close(found.weights(), expected.weights(), rtol=1e-5, atol=1e-6)


def test_a_step_in_parts_of_several_shapes_equals_one_step(tmp_path, monkeypatch):
    device = torch.device("cuda:0")
    options = dict(device=device, poison={6: torch.nan})
    world = World(0, 1, device)
    expected = train(tmp_path / "whole", toy=options, world=world)
    monkeypatch.setattr(toy, "Toy", Divided)
    found = train(tmp_path / "divided", toy=options, world=world, cuda_graph=True)
    torch.testing.assert_close(found.weights(), expected.weights(), rtol=1e-5, atol=1e-6)
    assert found.summary["skipped"] == expected.summary["skipped"] == 1
    losses = [
        torch.tensor([x["loss"] or torch.nan for x in toy.lines(run.folder, "train")])
        for run in (found, expected)
    ]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4, equal_nan=True)
