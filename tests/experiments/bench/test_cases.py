"""Every benchmark runs all of its cases, and records which ones they were.

On a CPU the real steps run once, on small sizes. For the cases on a GPU, a stand-in for the
measurement notes what it is asked to measure.
"""

import importlib.util
import sys
import types
from functools import partial

import pytest
import torch
from torch import nn

from flashgatr.config import preset
from flashgatr.experiments import bench, results
from flashgatr.experiments.bench import (
    artery_ragged,
    artery_step,
    inference_latency,
    kuka_step,
    largest,
    libraries,
    mesh_memory,
    nbody_step,
    operators,
    scaling,
    shortcuts,
    timing,
    workload,
)
from flashgatr.experiments.bench.cpu import packed_sets
from flashgatr.experiments.bench.cpu import step as cpu_step
from flashgatr.experiments.bench.timing import Found
from flashgatr.experiments.nbody import EXPERIMENT as NBODY

from .recorded import cases, lines

ON_PAIRS = (workload.segnn, workload.se3_transformer)
CPU = torch.device("cpu")


@pytest.fixture
def once(monkeypatch):
    """Every step runs once; the first of several takes 1 ms, the second 2 ms, and so on."""

    asked = []

    def in_turn(steps, device, **options):
        asked.append(options)
        for step in steps:
            step()
        return [[float(number)] * 3 for number in range(1, len(steps) + 1)]

    monkeypatch.setattr(timing, "in_turn", in_turn)
    return asked


@pytest.fixture
def stand_in(monkeypatch):
    """A pretended GPU, and a function that replaces a measurement and returns what it was given."""
    monkeypatch.setattr(timing, "pick_device", lambda: torch.device("cuda"))

    def replace(module, name, time=lambda given: 1.0):
        seen = []

        def measure(*given, **options):
            seen.append((given, options))
            return Found({"time": time(given)})

        monkeypatch.setattr(module, name, measure)
        return seen

    return replace


def printed(capsys, name):
    """The cases that a benchmark printed, none of which failed, with their results."""
    out = capsys.readouterr().out
    assert "failed" not in out
    head = f"{name}: "
    return [line.removeprefix(head) for line in out.splitlines() if line.startswith(head)]


# ---- networks on large sets ----


def test_the_artery_networks_are_measured_on_a_cpu(once, monkeypatch, capsys):
    monkeypatch.setattr(artery_step, "FEWER_MESHES", 1)
    monkeypatch.setattr(artery_step, "FEWER_VERTICES", 5)
    artery_step.run()
    out = capsys.readouterr().out
    for case in ("gatr width_factor=1", "gatr width_factor=2", "transformer"):
        assert f"artery-step: {case} cuda_graph=False compile=False: time 1 ms" in out
    assert "batch 1, items 5, precision float32" in out
    assert "best gatr: 1 ms\nbest transformer: 1 ms" in out
    assert not results.FOLDER.exists()  # the benchmark is meant for a GPU


def test_the_artery_networks_have_the_widths_that_are_recorded():
    made = {key: make() for key, make in artery_step.works(CPU).items()}
    for width in (1, 2):
        assert made["gatr", width].net.config == preset("arteries", attention_width=width)
    transformer = made["transformer", None]
    (features,), target = transformer.draw((2, 3))
    assert (features.shape, target.shape) == ((2, 3, 7), (2, 3, 3))
    assert len(transformer.net.blocks) == 10
    assert artery_step.width_setting(2) == {"width_factor": 2}
    assert artery_step.width_setting(None) == {}


def test_the_artery_step_on_a_gpu_is_eager_and_captured_and_compiled(stand_in):
    seen = stand_in(artery_step, "fixed_size")
    artery_step.run()
    modes = [(False, False), (True, False)]
    expected = [
        *(("gatr", width, *mode) for width in (1, 2) for mode in modes),
        *(("transformer", None, *mode) for mode in (*modes, (True, True))),
    ]
    keys = "width_factor", "cuda_graph", "compile"
    assert cases("artery-step", *keys) == expected
    assert cases("artery-step", "batch", "items", "precision")[0][1:] == (8, 7000, "bfloat16")
    assert all(given[1] == (8, 7000) for given, _ in seen)
    asked = [tuple(options.values()) for _, options in seen]
    assert asked == [case[2:] for case in expected]


def test_compiled_steps_compile_every_block(monkeypatch):
    compiled = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    monkeypatch.setattr(nn.Linear, "compile", lambda block: compiled.append(block))
    make = partial(workload.feature_work, Net(), (2, 2), CPU)
    artery_step.fixed_size(make, (1, 3))
    kuka_step.measure(make, "training", (1, 3, 2), graph=False, compiled=False)
    assert compiled == []
    artery_step.fixed_size(make, (1, 3), compiled=True)
    assert len(compiled) == 2
    kuka_step.measure(make, "forward", (1, 3, 2), graph=False, compiled=True)
    assert len(compiled) == 4


def test_a_step_computes_gradients_of_the_mean_squared_difference():
    work = workload.feature_work(nn.Linear(2, 1, bias=False), (2, 1), CPU)
    sample = work.sample(3)
    work.predict(sample)
    assert work.net.weight.grad is None
    for _ in range(2):  # gradients of two steps are not added
        work.step(sample)
    (x,), target = sample.inputs, sample.target
    expected = 2 / 3 * (work.net(x) - target).T @ x
    torch.testing.assert_close(work.net.weight.grad, expected)


def test_unequal_meshes_are_compared_with_equal_ones(stand_in):
    regular, ragged = stand_in(artery_ragged, "fixed_size"), stand_in(artery_ragged, "ragged")
    artery_ragged.run()
    models = [("gatr", 1), ("gatr", 2), ("transformer", None)]
    found = cases("artery-ragged", "width_factor", "ragged", "items")
    equal, unequal = (False, 7000), (True, "3700 to 8000")
    assert found == [(*model, *kind) for model in models for kind in (equal, unequal)]
    assert [given[1] for given, _ in regular] == [(8, 7000)] * 3
    assert all(options == {"graph": True} for _, options in regular)
    assert [(given[1], options) for given, options in ragged] == [(8, {"steps": 30})] * 3
    widths = [given[0].args[1] for given, _ in ragged]
    assert widths == [{"attention_width": 1}, {"attention_width": 2}, {}]


def test_times_of_meshes_are_per_thousand_vertices(once, monkeypatch):
    make = partial(workload.feature_work, nn.Linear(2, 1), (2, 1), CPU)
    found = artery_ragged.regular(make, (4, 50), graph=False)  # 1 ms for 200 vertices
    assert found.metrics == {"time per 1,000 items": 5.0}

    def in_a_row(steps, device):
        for step in steps:
            step()
        return [2.0, 2.0, 2.0, 90.0], 3.0

    monkeypatch.setattr(timing, "in_a_row", in_a_row)
    monkeypatch.setattr(artery_ragged, "POOL", 4)
    options = dict(num_blocks=1, hidden_mv_channels=4, hidden_s_channels=8, num_heads=2)
    task = partial(artery_ragged.RandomMeshes, "gatr", options, CPU, (20, 21))
    assert artery_ragged.ragged(task, 2, steps=4).metrics == {
        "time per 1,000 items": 2.0 / 40 * 1000,
        "host time per 1,000 items": 3.0 / 40 * 1000,
        "slow steps": 1.0,
    }


def test_axial_networks_on_a_cpu_and_on_a_gpu(stand_in, monkeypatch, capsys):
    seen = stand_in(kuka_step, "measure")
    kuka_step.run()
    gatr, transformer = ("gatr", False), [("transformer", False), ("transformer", True)]
    expected = [
        (model, mode, batch, compiled)
        for mode, batch in (("training", 32), ("forward", 200))
        for model, compiled in (gatr, *transformer)
    ]
    assert cases("kuka-step", "mode", "batch", "compile") == expected
    common = cases("kuka-step", "times", "objects", "precision", "cuda_graph")
    assert set(common) == {(model, 128, 5, "bfloat16", True) for model in kuka_step.MODELS}
    asked = [(*given[1:], options["graph"], options["compiled"]) for given, options in seen]
    assert asked == [
        (mode, (batch, 128, 5), True, compiled) for _, mode, batch, compiled in expected
    ]
    del seen[:]
    monkeypatch.setattr(timing, "pick_device", lambda: CPU)
    capsys.readouterr()
    kuka_step.run()
    assert len(seen) == len(printed(capsys, "kuka-step")) == 4
    assert {given[2] for given, _ in seen} == {(2, 8, 5)}
    assert not any(any(options.values()) for _, options in seen)


def test_axial_networks_are_those_of_the_paper():
    gatr, transformer = (make(CPU) for make in kuka_step.MODELS.values())
    assert gatr.net.config == preset("kuka")
    assert [x.shape for x in gatr.draw((1, 3, 2))[0]] == [(1, 3, 2, 5, 16), (1, 3, 2, 8)]
    assert len(transformer.net.blocks) == 20
    (features,), target = transformer.draw((1, 3, 2))
    assert features.shape == target.shape == (1, 3, 2, 9)


# ---- scaling ----


def out_of_memory(*given):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_all_sizes_are_measured_and_drawn(stand_in, monkeypatch):
    seen = stand_in(scaling, "fixed_size")
    scaling.run()
    attention = [("gatr", 1), ("gatr", 2), ("transformer", None)]
    pairs = [("segnn", None), ("se3_transformer", None)]
    expected = [
        (*model, n, checkpointing, mode)
        for checkpointing, sizes in ((False, scaling.SIZES), (True, (1024, 16384)))
        for models, sizes in ((attention, sizes), (pairs, scaling.PAIR_SIZES))
        for model in models
        for n, mode in (
            *((n, "eager") for n in sizes),
            *[(None, None)] * (models is pairs),  # the largest one
        )
    ]
    found = cases("scaling", "width_factor", "n_items", "checkpointing", "mode")
    assert found == expected
    sizes = [given[1] for given, _ in seen if given[0].func not in ON_PAIRS]
    assert set(sizes) == {(4, n) for n in scaling.SIZES}
    assert sizes.count((4, 16)) == sizes.count((4, 32768)) == 6  # eager and captured
    assert sizes.count((4, 65536)) == 3
    assert sizes.count((4, 16384)) == 6 + 1 + 3  # and compiled, and with checkpointing
    sizes = [given[1] for given, _ in seen if given[0].func in ON_PAIRS]
    assert sizes.count((4, 256)) == 4 + 2
    assert sizes.count((4, 512)) == 2 + 2
    overlap = {given[1][1] for given, options in seen if options["overlap"]}
    assert overlap == {n for n in scaling.SIZES if n <= 2048}
    assert scaling.FIGURE.read_bytes().startswith(b"\x89PNG")


def test_some_models_are_measured_without_the_others(stand_in):
    stand_in(scaling, "fixed_size")
    bench.run(["scaling"], ["segnn"])
    assert {case[0] for case in cases("scaling")} == {"segnn"}
    with pytest.raises(ValueError, match="scaling has no model 'gnn'; there are gatr"):
        bench.run(["scaling"], ["gnn"])
    with pytest.raises(ValueError, match="--model is for nbody-step and scaling; cpu-step"):
        bench.run(["cpu-step"], ["gatr"])


def test_after_a_slow_size_larger_ones_are_skipped(stand_in):
    stand_in(scaling, "fixed_size", lambda given: 9000.0 if given[1][1] >= 256 else 1.0)
    scaling.run()
    assert {n for _, n in cases("scaling", "n_items")} == {16, 64, 128, 256, 1024, None}
    assert cases("scaling", "n_items", "checkpointing").count(("gatr", 1024, True)) == 2
    largest = [x for x in lines("scaling") if x["metric"] == "largest"]
    assert {(x["value"], x["settings"]["limit"]) for x in largest} == {(256, "time")}


def test_the_largest_number_that_fits_is_searched_after_running_out_of_memory(
    stand_in, monkeypatch, capsys
):
    """The stand-in needs 100 bytes per pair of four sets, and has room for 700² pairs of each."""

    def time(given):
        if given[1][1] > 700:
            out_of_memory()
        return 1.0

    stand_in(scaling, "fixed_size", time)
    monkeypatch.setattr(largest, "_run", lambda make, sets, n: out_of_memory() if n > 700 else None)
    scaling.run(["segnn"])
    found = [x for x in lines("scaling") if x["metric"] == "largest"]
    expected = {"limit": "memory", "fails": 704, "batch": 4, "precision": "bfloat16"}
    assert [x["value"] for x in found] == [688, 688]
    assert [x["settings"].pop("checkpointing") for x in found] == [False, True]
    assert [x["settings"] for x in found] == [expected, expected]
    assert "largest 688 items" in capsys.readouterr().out


def test_a_failure_for_another_reason_is_no_limit_of_memory(stand_in, monkeypatch, capsys):
    stand_in(scaling, "fixed_size", lambda given: 1 / abs(given[1][1] - 64))
    monkeypatch.setattr(largest, "_run", lambda make, sets, n: None)
    scaling.run(["segnn"])
    assert "largest" not in {x["metric"] for x in lines("scaling")}
    assert "64 items fits into memory; it failed for another reason" in capsys.readouterr().out


def test_memory_of_a_mesh_is_extrapolated_by_the_number_of_pairs(tmp_path):
    def record(n, mib, checkpointing):
        settings = {"n_items": n, "checkpointing": checkpointing, "batch": 4}
        results.record("scaling", "segnn", "memory", mib, "MiB", settings, folder=tmp_path)

    for n in (16, 64, 256, 512):  # 5 MiB, and 1,024 bytes per pair
        record(n, 5 + 4 * n**2 / 1024, False)
    record(16, 5.0, True)  # one number of items says nothing
    (found,) = mesh_memory.extrapolate(tmp_path / "scaling.jsonl", 7000)
    assert found[:3] == ("segnn", False, (256, 512))
    assert found.bytes_per_pair == pytest.approx(1024)
    assert found.gibibytes == pytest.approx((5 + 7000**2 / 1024) / 1024)


def test_the_networks_of_the_scaling_benchmark_are_those_it_names():
    for width in (1, 2):
        net = scaling._make("gatr", width, True, CPU)().net
        assert net.config == preset("scaling", attention_width=width, checkpoint=True)
    work = scaling._make("transformer", None, True, CPU)()
    (features,), target = work.draw((2, 3))
    assert (features.shape, target.shape) == ((2, 3, 64), (2, 3, 16))
    assert work.net.checkpoint
    assert not scaling._make("transformer", None, False, CPU)().net.checkpoint


def test_the_networks_on_pairs_have_the_same_width_and_depth_and_take_a_step():
    for checkpointing in (False, True):
        segnn = scaling._make("segnn", None, checkpointing, CPU)()
        assert "10 layers of 36 channels in degrees 0 to 1" in repr(segnn.net)
        assert all(layer.checkpoint == checkpointing for layer in segnn.net.layers)
        other = scaling._make("se3_transformer", None, checkpointing, CPU)()
        assert "10 layers of degrees 0 to 1" in repr(other.net)
        assert other.net.basis.fiber.components * 36 == scaling.CHANNELS
        assert all(block.checkpoint == checkpointing for block in other.net.blocks)
    for work in (segnn, other):
        work.step(work.sample(1, 3))
        assert all(p.grad.isfinite().all() for p in work.net.parameters() if p.grad is not None)


# ---- the n-body networks ----


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
            for mode in (*modes, *[(True, True)] * (model == "transformer"))
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


# ---- operators, and other packages ----


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
