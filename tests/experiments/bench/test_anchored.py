"""Benchmarks of anchored networks: all cases are run, and recorded with their settings."""

import torch

from flashgatr.experiments import results
from flashgatr.experiments.bench import anchored, timing
from flashgatr.experiments.bench.cpu import anchored as on_cpu

from .recorded import cases


def test_forward_passes_and_training_steps_of_every_size_are_measured(stand_in):
    forward, training = stand_in(anchored, "forward"), stand_in(anchored, "training")
    anchored.run()
    sizes = [(n, m) for m in (4096, 16384) for n in (10**5, 10**6, 10**7)]
    assert [given[1:] for given, _ in forward] == sizes
    assert [given[1:] for given, _ in training] == [(4, 8192, False), (4, 8192, True)]
    found = cases("anchored", "n_items", "anchors", "pass", "cuda_graph")
    expected = [("gatr", n, m, "forward", None) for n, m in sizes]
    assert found == expected + [("gatr", 16384, 8192, "training", x) for x in (False, True)]


def test_small_cases_run_on_a_cpu_and_are_not_recorded(capsys, monkeypatch):
    monkeypatch.setattr(timing, "pick_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(timing, "PATIENCE", 0)
    monkeypatch.setattr(anchored, "FEWER", ((70,), (16,)))
    monkeypatch.setattr(anchored, "SMALLER_HALF", 8)
    anchored.run()
    out = capsys.readouterr().out
    assert "failed" not in out
    assert "not recorded" in out
    assert not (results.FOLDER / "anchored.jsonl").exists()


def test_a_field_and_a_vessel_are_measured_in_processes_of_their_own(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("FLASHGATR_POINTS", "1200")
    monkeypatch.setenv("FLASHGATR_REFINED", "1")
    asked = []
    monkeypatch.setattr(
        on_cpu, "_alone", lambda case, size: asked.append((case, size)) or on_cpu.field(1100, 1)
    )
    on_cpu.run()
    assert asked == [(on_cpu.field, 1200), (on_cpu.fine_vessel, 1)]
    assert "failed" not in capsys.readouterr().out
    assert not (results.FOLDER / "anchored-cpu.jsonl").exists()
