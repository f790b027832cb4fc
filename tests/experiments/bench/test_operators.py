"""Benchmarks of operators and of other packages: all cases run at the sizes of the experiments."""

import importlib.util
import sys
import types

import torch
from torch import nn

from flashgatr.config import preset
from flashgatr.experiments.bench import libraries, operators

from .recorded import printed


def test_every_part_of_a_block_is_measured_fused_and_plain(once, monkeypatch, capsys):
    taken = []

    def noted(way, name):
        return lambda *given: (taken.append(name), way(*given))[1]

    for path in ("plain", "fused"):
        name = f"{path}_calls"
        monkeypatch.setattr(operators, name, noted(getattr(operators, name), path))
    monkeypatch.setattr(operators, "shapes", lambda cuda: [("tiny", "arteries", (2, 3), "float32")])
    operators.run()
    assert taken == ["plain", "fused"] * 3
    assert printed(capsys, "operators") == [
        f"gatr operator={part} shape=tiny items=6 precision=float32 path={path}: time 1 ms"
        for part in ("queries", "update", "block")
        for path in ("plain", "fused")
    ]


def test_operators_are_measured_at_the_sizes_of_the_experiments():
    assert operators.shapes(cuda=True) == [
        ("n-body", "nbody", (64, 4), "tf32"),
        ("artery", "arteries", (8, 7000), "bfloat16"),
    ]
    assert operators.shapes(cuda=False) == [
        ("n-body", "nbody", (64, 4), "float32"),
        ("artery", "arteries", (2, 1000), "float32"),
    ]


def test_other_packages_are_compared_at_the_same_size(once, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gatr", None)
    monkeypatch.setitem(sys.modules, "lgatr", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: sys.modules[name])
    libraries.run()
    missing = "the package {} is not installed and is not compared"
    assert printed(capsys, "libraries") == [missing.format("gatr"), missing.format("lgatr")]
    given = {}

    class Network(nn.Module):
        def __init__(self, **options):
            super().__init__()
            given.update(options)
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, mv, s):
            assert (mv.shape, s.shape) == ((64, 4, 1, 16), (64, 4, 1))
            return self.factor * mv, s

    monkeypatch.setitem(sys.modules, "lgatr", types.SimpleNamespace(LGATr=Network))
    libraries.run()
    assert printed(capsys, "libraries") == [
        missing.format("gatr"), "flashgatr: time 1 ms", "lgatr: time 1 ms",
    ]  # fmt: skip
    config = preset("nbody")
    heads = given.pop("attention")
    assert heads == {"num_heads": config.num_heads, "multi_query": config.multi_query}
    assert given.pop("mlp") == {}
    assert len(given) == 7
    assert given == {name: getattr(config, name) for name in given}
