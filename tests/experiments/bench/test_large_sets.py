"""Benchmarks of the artery and robotics networks: all cases run, and are recorded as such.

On a CPU the real steps run once, on small sizes. For the cases on a GPU, a stand-in for the
measurement notes what it is asked to measure.
"""

from functools import partial

import pytest
import torch
from torch import nn

from flashgatr.config import preset
from flashgatr.experiments import bench, results
from flashgatr.experiments.bench import (
    artery_ragged,
    artery_step,
    kuka_step,
    timing,
    walls,
    workload,
)

from .recorded import cases, printed

CPU = torch.device("cpu")


def test_the_artery_networks_are_measured_on_a_cpu(once, monkeypatch, capsys):
    monkeypatch.setattr(artery_step, "FEWER_MESHES", 1)
    monkeypatch.setattr(artery_step, "FEWER_VERTICES", 5)
    artery_step.run(["gatr", "transformer"])
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


def test_networks_with_neighbours_are_measured_on_a_cpu(once, monkeypatch, capsys):
    """Of a case that fails, a line says why; the others are measured."""
    small = {
        "segnn": dict(num_layers=1, hidden_channels=8, k=4),
        "pointnet2": dict(widths=[8, 8, 8, 8, 8]),
    }
    build = partial(walls.work, device=CPU)
    makes = {name: partial(build, name, options) for name, options in small.items()}
    monkeypatch.setattr(walls, "works", lambda device: makes | {"gem_cnn": lambda: 1 / 0})
    bench.run(["artery-step"], walls.MODELS)
    out = capsys.readouterr().out
    for model in small:
        assert f"artery-step: {model} cuda_graph=False compile=False: time 1 ms" in out
        assert f"best {model}: 1 ms" in out
    assert "gem_cnn cuda_graph=False compile=False failed: ZeroDivisionError" in out
    assert "gatr" not in out
    with pytest.raises(ValueError, match="artery-step has no model 'mlp'; there are gatr"):
        bench.run(["artery-step"], ["mlp"])


@pytest.mark.parametrize("model", walls.MODELS)
def test_random_walls_have_as_many_neighbours_as_the_published_ones(model):
    """Those have 13 finer nodes in a ball of PointNet++, and 7.6 of GEM-CNN's first scale."""
    work = walls.work(model, {}, CPU)
    (first, *_), target = work.draw((2, 1000))
    if model == "segnn":
        assert first.shape == target.shape == (2, 1000, 3)
        return
    assert target.shape == (2000, 3)
    near = first.levels[0].pooled if model == "pointnet2" else first.levels[0].linked
    expected = {"pointnet2": 12.7, "gem_cnn": 7.6}[model]
    assert int((near >= 0).sum()) / len(near) == pytest.approx(expected, rel=0.15)


def test_the_artery_step_on_a_gpu_is_eager_and_captured_and_compiled(stand_in):
    seen = stand_in(artery_step, "fixed_size")
    artery_step.run()
    modes = [(False, False), (True, False)]
    expected = [
        *(("gatr", width, *mode) for width in (1, 2) for mode in modes),
        *(("transformer", None, *mode) for mode in (*modes, (True, True))),
        *(("segnn", None, *mode) for mode in (*modes, (True, True))),
        *(("pointnet2", None, *mode) for mode in ((False, False), (False, True))),
        *(("gem_cnn", None, *mode) for mode in ((False, False), (False, True))),
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
