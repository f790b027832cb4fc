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


@pytest.fixture
def tried(monkeypatch):
    """Every number of items fits into memory; those that were tried."""
    found = []
    monkeypatch.setattr(largest, "runs", lambda make, sets, n: found.append(n) or True)
    return found


def test_all_sizes_are_measured_and_drawn(stand_in, tried):
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
            *[(None, None)] * (models is pairs or not checkpointing),  # the largest one
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
    assert sizes.count((4, 16)) == 4 + 2
    assert sizes.count((4, 256)) == sizes.count((4, 64)) == 6 + 4  # and compiled
    assert sizes.count((4, 512)) == sizes.count((4, 1024)) == 4 + 4
    assert sizes.count((4, 2048)) == 2 + 2
    compiled = {
        (scaling.ON_PAIRS[ON_PAIRS.index(given[0].func)] if given[0].func in ON_PAIRS else "", n)
        for given, options in seen
        for n in given[1][1:]
        if options["compiled"]
    }
    pairs = {(model, n) for model in scaling.ON_PAIRS for n in (64, 256, 512, 1024)}
    assert compiled == pairs | {("", n) for n in (256, 2048, 16384)}
    overlap = {given[1][1] for given, options in seen if options["overlap"]}
    assert overlap == {n for n in scaling.SIZES if n <= 2048}
    assert scaling.FIGURE.read_bytes().startswith(b"\x89PNG")


def test_some_models_are_measured_without_the_others(stand_in, tried):
    stand_in(scaling, "fixed_size")
    bench.run(["scaling"], ["segnn"])
    assert {case[0] for case in cases("scaling")} == {"segnn"}
    with pytest.raises(ValueError, match="scaling has no model 'gnn'; there are gatr"):
        bench.run(["scaling"], ["gnn"])
    with pytest.raises(ValueError, match="for nbody-step, artery-step and scaling; cpu-step"):
        bench.run(["cpu-step"], ["gatr"])


def test_after_a_slow_size_larger_ones_are_tried_once_for_at_most_a_minute(stand_in, tried):
    stand_in(scaling, "fixed_size", lambda given: 9000.0 if given[1][1] >= 256 else 1.0)
    scaling.run()
    assert {n for _, n in cases("scaling", "n_items")} == {16, 64, 128, 256, 1024, None}
    assert cases("scaling", "n_items", "checkpointing").count(("gatr", 1024, True)) == 2
    limits = [x for x in lines("scaling") if x["metric"] == "largest"]
    assert {(x["value"], x["settings"]["limit"]) for x in limits} == {(512, "time")}
    assert tried == [512] * len(limits) == [512] * (3 + 4)


def test_sizes_beyond_the_last_one_are_tried_until_memory_or_time_ends(stand_in, monkeypatch):
    """Steps of 131,072 items take 5 s: one of 262,144 is expected to take 20 s, then 80 s."""
    stand_in(scaling, "fixed_size", lambda given: 5000.0 * (given[1][1] / 131_072) ** 2)
    for room, expected in (
        (10**6, (262_144, {"limit": "time"})),
        (200_000, (198_656, {"limit": "memory", "fails": 200_704})),
    ):
        monkeypatch.setattr(largest, "runs", lambda make, sets, n, room=room: n <= room)
        scaling.run(["transformer"])
        line = [x for x in lines("scaling") if x["metric"] == "largest"][-1]
        about = {"checkpointing": False, "batch": 4, "precision": "bfloat16"}
        assert (line["value"], line["settings"]) == (expected[0], expected[1] | about)


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


def test_the_networks_have_the_sizes_that_are_compared():
    """Networks of equal width, 144 numbers per item, do not have equally many parameters."""
    expected = {
        ("gatr", 1): 115_169,
        ("gatr", 2): 142_809,
        ("transformer", None): 1_367_440,
        ("segnn", None): 453_492,
        ("se3_transformer", None): 2_358_624,
    }
    meta = torch.device("meta")
    with meta:
        found = {which: scaling.make_of(*which, False, meta)().net for which in scaling.LABELS}
    assert {which: sum(p.numel() for p in x.parameters()) for which, x in found.items()} == expected


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
