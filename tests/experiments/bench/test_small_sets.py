"""Benchmarks of the n-body networks: all cases run, and are recorded as such.

On a CPU the real steps run once, on small sizes. For the cases on a GPU, a stand-in for the
measurement notes what it is asked to measure.
"""

import pytest
import torch

from flashgatr.experiments import results
from flashgatr.experiments.bench import (
    inference_latency,
    nbody_step,
    shortcuts,
    timing,
)
from flashgatr.experiments.bench.cpu import packed_sets
from flashgatr.experiments.bench.cpu import step as cpu_step
from flashgatr.experiments.nbody import EXPERIMENT as NBODY
from flashgatr.train.compiled import blocks

from .recorded import cases, printed

CPU = torch.device("cpu")


def test_n_body_steps_run_in_every_way(stand_in, monkeypatch, capsys):
    seen = stand_in(nbody_step, "measure")
    monkeypatch.setattr(torch, "zeros", lambda *size, device: None)  # starts the device
    nbody_step.run()
    keys = "precision", "cuda_graph", "compile", "path", "optimizer"
    found = cases("nbody-step", *keys)
    assert {case[0] for case in found} == set(NBODY.get("models"))
    for precision in ("tf32", "float32"):
        of_gatr = [
            *([("gatr", precision, False, False, "plain", None)] * (precision == "float32")),
            ("gatr", precision, False, False, "fused", None),
            ("gatr", precision, False, False, "fused", False),
            ("gatr", precision, True, False, "fused", None),
        ]
        modes = [(False, False), (True, False)]
        others = [
            (model, precision, *mode, None, None)
            for model in nbody_step.MODELS[1:]
            for mode in (*modes, *[(True, True)] * (model in nbody_step.COMPILED))
        ]
        assert [case for case in found if case[1] == precision] == [*of_gatr, *others]
    first = [given[0] for given, options in seen if options["first_call"]]
    assert first == [nbody_step.Case("gatr", "tf32")]
    assert {options["repeats"] for _, options in seen} == {20}
    assert cases("nbody-step", "batch", "items")[0] == ("gatr", 64, 4)
    monkeypatch.setattr(timing, "pick_device", lambda: CPU)
    capsys.readouterr()
    nbody_step.run()
    out = capsys.readouterr().out
    assert out.count("nbody-step: ") == 3 + len(nbody_step.MODELS[1:])  # GATr has three cases
    assert "nbody-step on " in out  # the head of the table


def test_every_baseline_with_blocks_has_a_compiled_case():
    """GATr runs its own kernels, and the MLP is hardly more than two products."""
    others = [name for name in nbody_step.MODELS if "gatr" not in name and name != "mlp"]
    assert sorted(others) == sorted(nbody_step.COMPILED)
    for name in others:
        assert blocks(NBODY.build(name, {}))


def test_an_n_body_step_updates_the_weights_unless_it_has_no_optimizer(once):
    torch.manual_seed(0)
    for optimizer in (True, False):
        case = nbody_step.Case("mlp", "float32", optimizer=optimizer)
        made = []

        class Systems(nbody_step.RandomSystems):
            def __init__(self, *given, made=made):
                super().__init__(*given)
                self.before = [p.detach().clone() for p in self.parameters]
                made.append(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nbody_step, "RandomSystems", Systems)
            found = nbody_step.measure(case, CPU, repeats=1, first_call=True)
        assert found.metrics["time"] == 1.0
        assert found.metrics["first_call"] > 0
        (task,) = made
        moved = [not torch.equal(a, b) for a, b in zip(task.before, task.parameters, strict=True)]
        assert any(moved) == optimizer
        assert all(p.grad is not None for p in task.parameters)


def test_plain_cases_run_the_plain_layers(once, monkeypatch):
    used = []
    inside = nbody_step.training_step

    def training_step(case, device):
        task = nbody_step.RandomSystems("gatr", device, batch=1)
        used.append(task.model.net.obstacle(torch.zeros(1, 4, 1, 16)))
        return inside(nbody_step.Case("mlp", "float32"), device)

    monkeypatch.setattr(nbody_step, "training_step", training_step)
    nbody_step.measure(nbody_step.Case("gatr", "float32", path="plain"), CPU, repeats=1)
    nbody_step.measure(nbody_step.Case("gatr", "float32"), CPU, repeats=1)
    assert used[0]
    assert used[0] != used[1]


def test_latency_is_of_one_system_with_one_thread_and_with_two(once, monkeypatch, stand_in):
    monkeypatch.setattr(timing, "pick_device", lambda: CPU)
    inference_latency.run()
    keys = "batch", "items", "precision", "threads"
    assert cases("inference-latency", *keys) == [
        (model, 1, 4, "float32", threads) for model in ("gatr", "transformer") for threads in (1, 2)
    ]
    assert once == [{"repeats": 50}] * 4
    (results.FOLDER / "inference-latency.jsonl").unlink()
    monkeypatch.setattr(timing, "pick_device", lambda: torch.device("cuda"))
    seen = stand_in(inference_latency, "measure")
    inference_latency.run()
    modes = [("float32", False), ("float32", True), ("tf32", True)]
    expected = [(model, *mode) for model in ("gatr", "transformer") for mode in modes]
    assert cases("inference-latency", "precision", "cuda_graph") == expected
    assert [options["graph"] for _, options in seen] == [case[2] for case in expected]


def test_the_two_models_of_the_cpu_step_take_turns(once):
    assert cpu_step.measure() == [[1.0] * 3, [2.0] * 3]
    assert once == [{"repeats": 60, "patience": 60_000.0}]


def test_packed_sets_have_the_sizes_that_the_page_names():
    assert (packed_sets.SMALLEST, packed_sets.LARGEST) == (5, 15)
    assert (packed_sets.MANY, packed_sets.FEWER) == (100_000, 10_000)
    assert packed_sets.NETWORK["num_blocks"] == 2


def test_a_shortcut_is_worth_the_time_without_it(once, capsys):
    shortcuts.run()
    assert printed(capsys, "shortcuts") == [
        f"gatr work={work} sets=64 items=4 without={without}: time {time} ms{worth}"
        for work, used in (
            ("training step", ["many tensors"]),
            ("small sets", ["direct calls", "block node", "flat tensors"]),
        )
        for time, without in enumerate(["nothing", *used], start=1)
        for worth in ["" if time == 1 else f", worth {time} 1"]
    ]
    assert once == [{"repeats": 30, "patience": 30_000.0}] * 2


def test_a_step_without_a_shortcut_does_not_use_it():
    seen = []
    for shortcut in shortcuts.SMALL:
        shortcuts.without(shortcut, lambda shortcut=shortcut: seen.append(shortcut.is_on))()
        assert shortcut.is_on
    assert seen == [False] * 3
