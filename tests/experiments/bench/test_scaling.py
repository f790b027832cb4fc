"""The scaling benchmark: sizes, the largest one that fits, and memory of networks on pairs.

On a CPU the real steps run once, on small sizes. For the cases on a GPU, a stand-in for the
measurement notes what it is asked to measure.
"""

import pytest
import torch

from flashgatr.config import preset
from flashgatr.experiments import bench, results
from flashgatr.experiments.bench import largest, scaling, workload
from flashgatr.experiments.bench.accuracy import mesh_memory

from .recorded import cases, lines

ON_PAIRS = (workload.segnn, workload.se3_transformer)
CPU = torch.device("cpu")


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
        net = scaling.make_of("gatr", width, True, CPU)().net
        assert net.config == preset("scaling", attention_width=width, checkpoint=True)
    work = scaling.make_of("transformer", None, True, CPU)()
    (features,), target = work.draw((2, 3))
    assert (features.shape, target.shape) == ((2, 3, 64), (2, 3, 16))
    assert work.net.checkpoint
    assert not scaling.make_of("transformer", None, False, CPU)().net.checkpoint


def test_the_networks_on_pairs_have_the_same_width_and_depth_and_take_a_step():
    for checkpointing in (False, True):
        segnn = scaling.make_of("segnn", None, checkpointing, CPU)()
        assert "10 layers of 36 channels in degrees 0 to 1" in repr(segnn.net)
        assert all(layer.checkpoint == checkpointing for layer in segnn.net.layers)
        other = scaling.make_of("se3_transformer", None, checkpointing, CPU)()
        assert "10 layers of degrees 0 to 1" in repr(other.net)
        assert other.net.basis.fiber.components * 36 == scaling.CHANNELS
        assert all(block.checkpoint == checkpointing for block in other.net.blocks)
    for work in (segnn, other):
        work.step(work.sample(1, 3))
        assert all(p.grad.isfinite().all() for p in work.net.parameters() if p.grad is not None)
