"""Benchmarks measure what they say, go on when a case fails, and show what is recorded.

All cases are tiny and run on a CPU.
"""

import json
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

from flashgatr import GATr
from flashgatr.config import PRESETS
from flashgatr.experiments import bench, cli, results
from flashgatr.experiments.bench import (
    artery_ragged,
    kuka_step,
    nbody_figure,
    numerics,
    operators,
    page,
    scaling,
    timing,
    types_step,
    workload,
)
from flashgatr.experiments.bench.cpu import packed_sets
from flashgatr.experiments.bench.cpu import step as cpu_step
from flashgatr.experiments.bench.timing import CaseReport, Found

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Results go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tiny():
    """A network with a single parameter, as a workload on pairs (mv, s)."""

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))
            self.seen = []

        def forward(self, mv, s, **options):
            self.seen.append(options)
            return self.factor * mv, s

    return workload.multivector_work(Scale(), 1, 0, CPU)


def lines(folder):
    files = folder.glob("*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# ---- timing ----


def test_times_are_milliseconds():
    assert 20 <= timing.once(lambda: time.sleep(0.02), CPU) < 1000
    assert timing.measure(lambda: time.sleep(0.002), CPU, repeats=3).metrics["time"] >= 2


def test_a_slow_step_is_measured_once_after_its_first_call():
    calls = []
    step = lambda: (calls.append(0), time.sleep(0.002))  # noqa: E731
    assert [len(times) for times in timing.in_turn([step], CPU, patience=2.0)] == [1]
    assert len(calls) == 2


def test_steps_take_turns():
    calls = []
    steps = [lambda: calls.append("a"), lambda: calls.append("b")]
    found = timing.in_turn(steps, CPU, repeats=4)
    assert [len(times) for times in found] == [4, 4]
    assert calls == ["a", "b"] * (3 + 4)  # to compile, to estimate, to warm up


def test_slower_steps_are_repeated_less_often_but_three_times():
    step = lambda: time.sleep(0.002)  # noqa: E731
    assert [len(times) for times in timing.in_turn([step], CPU)] == [15]
    assert [len(times) for times in timing.in_turn([step], CPU, patience=6.0)] == [3]


def test_threads_and_precision_are_put_back():
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with timing.threads(before[0] + 1), timing.precision("tf32"):
        assert torch.get_num_threads() == before[0] + 1
        assert torch.get_float32_matmul_precision() == "high"
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_the_table_is_aligned_and_has_units():
    text = timing.table(
        [{"model": "gatr", "time": 2.0}, {"model": "mlp", "n": 16, "time": 12345.6}]
    )
    assert text.splitlines() == [
        "model   n  time (ms)",
        "gatr               2",
        "mlp    16     12,346",
    ]


# ---- cases ----


def test_a_case_that_raises_is_reported_and_the_rest_goes_on(here, capsys):
    report = CaseReport("toy", keep=True, batch=2)

    def broken():
        raise torch.OutOfMemoryError("CUDA out of memory.\nA second line")

    assert report.run("big", {"n": 9}, broken) is None
    assert report.run("small", {"n": 1}, lambda: Found({"time": 1.234567}, {"mode": "eager"}))
    report.show()
    said = capsys.readouterr().out
    assert "big n=9 failed: OutOfMemoryError: CUDA out of memory. (test_bench.py:" in said
    (line,) = lines(results.FOLDER)
    assert (line["benchmark"], line["model"], line["unit"]) == ("toy", "small", "ms")
    assert line["value"] == 1.2346
    assert line["settings"] == {"batch": 2, "n": 1, "mode": "eager"}


def test_what_is_not_meant_for_this_machine_is_not_recorded(here, capsys):
    report = CaseReport("toy", keep=False)
    report.run("small", {}, lambda: Found({"time": 1.0}))
    report.show()
    assert "not recorded" in capsys.readouterr().out
    assert not lines(results.FOLDER)


def test_ragged_steps_train_on_other_meshes_every_time():
    seen = []

    class Seen(artery_ragged.RandomMeshes):
        def batch(self, indices):
            seen.append([self.size(k) for k in indices.tolist()])
            return super().batch(indices)

    options = dict(num_blocks=1, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
    make = partial(Seen, "gatr", options, CPU, (20, 90))
    found = artery_ragged.ragged(make, 3, steps=4)
    assert found.metrics["time per 1,000 items"] > 0
    assert found.metrics["slow steps"] <= 4
    measured = seen[-4:]
    assert len({tuple(sizes) for sizes in measured}) == 4
    assert all(len(sizes) == 3 and all(20 <= n < 90 for n in sizes) for sizes in measured)


@pytest.mark.parametrize("model", kuka_step.MODELS)
@pytest.mark.parametrize("mode", kuka_step.BATCH)
def test_axial_networks_are_measured_in_both_modes(model, mode):
    make = partial(kuka_step.MODELS[model], CPU)
    found = kuka_step.measure(make, mode, (1, 3, 2), graph=False, compiled=False)
    assert found.metrics["time"] > 0


@pytest.mark.parametrize("network", types_step.NETWORKS)
def test_steps_with_types_are_measured_beside_steps_without(network, monkeypatch):
    monkeypatch.setattr(types_step, "FEWER_VERTICES", 20)
    small = dict(num_blocks=1, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
    for name in PRESETS:
        monkeypatch.setitem(PRESETS, name, {**PRESETS[name], **small})
    monkeypatch.setattr(types_step, "REPEATS", 1)
    without, with_types = types_step.measure(network, CPU, graph=False)
    ratio = with_types.metrics["time"] / without.metrics["time"]
    assert with_types.metrics["ratio"] == pytest.approx(ratio)


def test_the_faster_mode_of_a_size_counts(here, monkeypatch):
    times = {False: 3.0, True: 2.0}
    monkeypatch.setattr(
        scaling, "fixed_size", lambda make, size, graph, **_: Found({"time": times[graph]})
    )
    report = CaseReport("scaling", keep=False)
    for graph, mode in ((False, "eager"), (True, "graph")):
        found = scaling.best(report, "gatr", {"n_items": 16}, tiny, graph)
        assert found.settings == {"mode": mode}


@pytest.mark.parametrize(
    "way",
    [
        operators.plain_calls,
        pytest.param(operators.fused_calls, marks=pytest.mark.slow),
    ],  # compiles
)
def test_every_piece_of_a_block_has_gradients(way):
    net, block = operators.one_block("arteries", CPU)
    inputs = workload.multivector_work(net, 3, 1, CPU).sample(2, 3).inputs
    if way is operators.fused_calls and net.obstacle(inputs[0]):
        pytest.skip(net.obstacle(inputs[0]))
    calls = way(net, block, inputs)
    assert calls.keys() == set(operators.PIECES)
    given = [x for _, arguments in calls.values() for x in tree_leaves(arguments)]
    assert not any(isinstance(x, torch.Tensor) and x.grad_fn for x in given)  # capture needs that
    for call in calls.values():
        gradients = operators.gradient_step(call, list(block.parameters()))()
        assert any(g is not None and bool(g.any()) for g in gradients)


def test_ratios_are_recorded_with_their_times(here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cpu_step, "measure", lambda: [[1.0, 2.0, 3.0], [4.0, 4.0, 8.0]])
    cpu_step.run()
    found = {
        (x["model"], x["metric"], x["settings"]["statistic"]): x["value"]
        for x in lines(results.FOLDER)
    }
    assert found["gatr", "ratio", "median"] == 0.5
    assert found["gatr", "ratio", "minimum"] == 0.25
    assert found["transformer", "time", "minimum"] == 4.0


def test_packed_sets_are_compared_with_the_same_sets_padded(here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(packed_sets, "MANY", 3)
    monkeypatch.setattr(packed_sets, "FEWER", 2)
    packed_sets.run()
    found = {}
    for x in lines(results.FOLDER):
        settings = x["settings"]
        case = settings["sets"], settings["gradients"], settings["statistic"]
        found.setdefault(case, {})[x["metric"], settings["layout"]] = x["value"]
        assert 5 * settings["sets"] <= settings["items"] <= 15 * settings["sets"]
    assert {case[:2] for case in found} == {(3, False), (2, True)}
    for values in found.values():
        expected = values["processor time", "packed"] / values["processor time", "padded"]
        assert values["ratio", "packed"] == pytest.approx(expected, rel=1e-3)


# ---- names ----


@pytest.mark.parametrize(
    "name",
    [
        *bench.NAMES,
        *("anchored-accuracy", "trained-equivariance", "training-step"),
        *("scaling-figure", "nbody-figure", "page", "results"),
    ],
)
def test_every_name_can_be_called(name):
    assert callable(bench.find(name))


def test_an_unknown_name_is_a_clear_error_before_anything_runs():
    ran = CliRunner().invoke(cli.application(), ["bench", "libraries", "nbody-stop"])
    assert isinstance(ran.exception, ValueError)
    assert "unknown benchmark 'nbody-stop'; there are nbody-step, artery-step" in str(ran.exception)
    assert not ran.output


def test_a_benchmark_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    ran = []

    def find(name):
        return (lambda: 1 / 0) if name == "bad" else (lambda: ran.append(name))

    monkeypatch.setattr(bench, "find", find)
    assert bench.run(["bad", "good"]) == ["bad"]
    assert ran == ["good"]
    assert "ZeroDivisionError" in capsys.readouterr().err


# ---- what is recorded ----


def recorded(folder, monkeypatch, machine="GPU"):
    """Synthetic results of the scaling benchmark."""
    monkeypatch.setattr(results, "machine", lambda: machine)
    for (model, width), slope in zip(scaling.LABELS, (2.0, 3.0, 1.0, 20.0, 30.0), strict=True):
        for n in (16, 1024, 65536):
            told = {} if width is None else {"width_factor": width}
            settings = {**told, "n_items": n, "checkpointing": False, "mode": "eager"}
            for metric, unit in (("time", "ms"), ("memory", "MiB")):
                results.record("scaling", model, metric, slope * n, unit, settings, folder=folder)
        settings["checkpointing"] = True
        results.record("scaling", model, "time", 1e9, "ms", settings, folder=folder)
    return folder / "scaling.jsonl"


def test_the_figure_is_drawn_from_the_results(tmp_path, monkeypatch):
    source = recorded(tmp_path, monkeypatch)
    found = scaling.read(source)
    assert found["time"]["GATr, width factor 2"] == [(16, 48.0), (1024, 3072.0), (65536, 196608.0)]
    assert found["memory"].keys() == set(scaling.LABELS.values())
    assert found["time"]["SEGNN"][0] == (16, 320.0)
    settings = {"n_items": 16, "checkpointing": True}
    for model in ("segnn", "gatr"):  # with recomputation: for networks on pairs only
        results.record("scaling", model, "time", 7.0, "ms", settings, folder=tmp_path)
    found = scaling.read(source)
    assert found["time"]["SEGNN"][0] == (16, 7.0)
    assert found["time"]["GATr, width factor 2"][0] == (16, 48.0)
    target = tmp_path / "images" / "scaling.png"
    scaling.draw(source, target)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_nothing_is_an_error(tmp_path):
    with pytest.raises(
        ValueError, match="no results of the scaling benchmark; run flashgatr bench"
    ):
        scaling.draw(tmp_path / "none.jsonl", tmp_path / "scaling.png")


def test_numerics_compares_both_paths_with_float64():
    found = numerics.measure("arteries", 3, "float32", CPU, draws=1, num_blocks=1)
    assert found.keys() == set(numerics.PATHS)
    for errors in found.values():
        assert all(1e-9 < value < 1e-5 for value in errors.metrics.values())


def test_numerics_of_what_cannot_run_is_an_error(monkeypatch):
    monkeypatch.setattr(GATr, "obstacle", lambda net, mv: "no reason")
    with pytest.raises(RuntimeError, match="do not run here: no reason"):
        numerics.measure("arteries", 3, "float32", CPU, draws=1, num_blocks=1)


def test_the_nbody_figure_is_drawn_from_the_results(tmp_path):
    for seed, value in ((0, 5.0), (0, 1.0), (1, 3.0)):  # of seed 0, the last one counts
        settings = dict(recipe="nbody_figure", train_samples=100, set="eval", seed=seed)
        results.record("nbody-accuracy", "gatr", "mse", value, "length²", settings, folder=tmp_path)
    source = tmp_path / "nbody-accuracy.jsonl"
    (group,) = nbody_figure.read(source)
    assert (group["label"], group["samples"]) == ("GATr", 100)
    assert group["results"]["eval"]["mse"] == {"mean": 2.0, "standard_error": pytest.approx(1.0)}
    nbody_figure.draw(source, tmp_path / "nbody.png")
    assert (tmp_path / "nbody.png").read_bytes().startswith(b"\x89PNG")
    source.write_text("")
    with pytest.raises(ValueError, match="no runs of recipes/nbody_figure"):
        nbody_figure.draw(source, tmp_path / "nbody.png")


def test_days_before_the_last_are_history(tmp_path, monkeypatch):
    recorded(tmp_path, monkeypatch, "A")
    file = tmp_path / "scaling.jsonl"
    old = [json.loads(line) | {"date": "2001-01-01"} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert len(page.latest(file)) == 35
    settings = {"n_items": 7}
    results.record("scaling", "gatr", "time", 0.5, "ms", settings, folder=tmp_path)
    found = page.latest(file)
    assert [line["settings"] for line in found if line["model"] == "gatr"] == [settings]
    assert len(found) == 1 + 21  # those of models that were not measured again stay


def test_the_last_run_on_every_machine_is_shown(tmp_path, monkeypatch):
    for machine, commit in (("A", "old"), ("A", "new"), ("B", "old")):
        monkeypatch.setenv("FLASHGATR_COMMIT", commit)
        recorded(tmp_path, monkeypatch, machine)
    settings = {"width_factor": 1, "n_items": 16, "checkpointing": False, "mode": "eager"}
    results.record("scaling", "gatr", "time", 0.5, "ms", settings, folder=tmp_path)
    found = page.latest(tmp_path / "scaling.jsonl")
    assert {(line["machine"], line["commit"]) for line in found} == {("A", "new"), ("B", "old")}
    assert len(found) == 2 * 35
    assert 0.5 in [line["value"] for line in found]
    text = page.tables(tmp_path)
    assert text.count("**scaling**") == 2
    assert "| gatr | 1 | 16 | no | eager | 0.5 | 32 |" in text


def test_the_page_shows_what_is_recorded():
    text = (ROOT / page.PAGE).read_text()
    expected = page.filled(text, ROOT / results.FOLDER)
    assert text == expected, "run flashgatr bench page"


def test_the_page_names_every_benchmark():
    text = (ROOT / page.PAGE).read_text()
    for name in bench.NAMES:
        assert f"| `{name}` |" in text
