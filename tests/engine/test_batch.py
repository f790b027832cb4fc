"""The task defines what a batch is; the trainer sees a tree of tensors."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from flashgatr.train import batch as batches

from .toy import Toy, outcome, settings
from .toy import train as train_toy


class Named(NamedTuple):
    x: Tensor
    y: Tensor | None = None
    inner: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Record:
    x: Tensor
    y: Tensor | None = None


X, Y = torch.arange(6.0).view(2, 3), torch.ones(4)
TREES = [
    X,
    (X, Y),
    [X, None],
    {"x": X, "y": (Y, None)},
    Named(X),
    Named(X, None, (Y, X)),
    Record(X, Y),
    Named(Record(X, None), Y),
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_mapped_batch_is_of_the_same_kind_and_shapes(tree):
    made = batches.mapped(torch.clone, tree)
    assert type(made) is type(tree)
    assert batches.shapes(made) == batches.shapes(tree)
    for copy, x in zip(batches.tensors(made), batches.tensors(tree), strict=True):
        assert torch.equal(copy, x)
        assert copy.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_copying_fills_every_tensor(tree):
    buffers = batches.mapped(torch.zeros_like, tree)
    batches.copy_into(buffers, tree)
    for buffer, x in zip(batches.tensors(buffers), batches.tensors(tree), strict=True):
        assert torch.equal(buffer, x)


def test_shapes_tell_apart_what_one_captured_graph_cannot_run():
    assert batches.shapes(Named(X)) != batches.shapes(Named(X, Y))
    assert batches.shapes((X, 3)) != batches.shapes((X, 4))
    assert batches.shapes(Named(X, Y)) == batches.shapes(Named(X + 1, Y + 1))


def test_the_kind_of_batch_changes_no_weight(tmp_path, monkeypatch):
    before = outcome(train_toy(tmp_path / "tuple"))
    batch, loss = Toy.batch, Toy.loss
    monkeypatch.setattr(Toy, "batch", lambda self, indices: Record(*batch(self, indices)))
    monkeypatch.setattr(Toy, "loss", lambda self, model, b: loss(self, model, (b.x, b.y)))
    after = outcome(train_toy(tmp_path / "record"))
    assert after == before
    assert settings(tmp_path).train.steps == 20
