"""Benchmarks of data and of rounding record what they measure. All cases are small."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from flashgatr import extract_point, io
from flashgatr.experiments import results
from flashgatr.experiments.arteries.anchoring import AnchorChoice
from flashgatr.experiments.bench import equivariance, numerics
from flashgatr.experiments.bench.data import (
    anchored_accuracy,
    artery_preprocessing,
    kuka_expert,
    kuka_harness,
    nbody_labels,
    simulator,
)
from flashgatr.experiments.bench.timing import Found
from flashgatr.experiments.nbody.simulate import Gravity, evolve, sample
from flashgatr.experiments.robotics.demonstrations.expert import PlanError
from flashgatr.experiments.robotics.demonstrations.stream import Demonstration

from .recorded import lines

CPU = torch.device("cpu")


# ---- rounding ----


def test_scenes_are_moved_by_the_distance():
    (near, s), (far, same) = equivariance.scene(0.0, 1), equivariance.scene(1e3, 1)
    assert (near.shape, s.shape, near.dtype) == ((4, 16, 2, 16), (4, 16, 1), torch.float64)
    moved = extract_point(far[..., 0, :]) - extract_point(near[..., 0, :])
    torch.testing.assert_close(moved.norm(dim=-1), torch.full((4, 16), 1e3, dtype=torch.float64))
    assert torch.equal(far[..., 1, :], near[..., 1, :])  # velocities do not move
    assert torch.equal(s, same)


def test_errors_far_from_the_origin_are_those_of_the_recentring(monkeypatch):
    monkeypatch.setattr(equivariance, "SEEDS", 1)
    error = lambda *case: equivariance.error(*case, CPU)  # noqa: E731
    assert 0 < error(100.0, "float64", True) < 1e-10
    near, far = error(0.0, "float32", True), error(1e3, "float32", True)
    assert 1e-7 < near < 1e-4
    assert 1e-7 < far < 1e-4
    assert error(1e3, "float32", False) > 10 * far
    assert error(0.0, "bfloat16 autocast", True) > 100 * near


def test_errors_are_means_over_seeds(monkeypatch):
    found = []
    for seeds in (1, 2):
        monkeypatch.setattr(equivariance, "SEEDS", seeds)
        found.append(equivariance.error(0.0, "float32", True, CPU))
    assert 0.3 * found[0] < found[1] < 3 * found[0]


def test_every_precision_and_distance_is_recorded(monkeypatch, capsys):
    monkeypatch.setattr(equivariance, "error", lambda distance, *_: distance / 8)
    equivariance.run()
    found = lines("equivariance")
    cases = [tuple(line["settings"].values()) for line in found]
    assert cases == [
        (precision, distance, recenter, 3)
        for precision in ("float64", "float32", "bfloat16 autocast")
        for recenter in (True, False)
        for distance in (0.0, 100.0, 1e3, 1e4)
    ]
    assert all(line["value"] == line["settings"]["distance"] / 8 for line in found)
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_the_largest_ratio_of_a_fused_error_to_a_plain_one_is_told(monkeypatch, capsys):
    def measure(name, items, precision, device):
        fused = 6.0 if (name, items) == ("arteries", 17) else 1.0
        metrics = {"forward error": 2.0, "gradient error": 4.0}
        return {
            "plain": Found(dict(metrics)),
            "fused": Found({**metrics, "forward error": fused}),
        }

    monkeypatch.setattr(numerics, "measure", measure)
    numerics.run()
    found = [
        (*line["settings"].values(), line["metric"], line["value"]) for line in lines("numerics")
    ]
    assert len(found) == 2 * 4 * 2 * 2
    assert {case[4] for case in found} == {1, 7, 17, 129}
    about = 3, 5, "arteries", "float32", 17
    assert (*about, "plain", "forward error", 2.0) in found
    assert (*about, "fused", "forward error", 6.0) in found
    assert "largest error of a fused path: 3.00 times" in capsys.readouterr().out


# ---- data ----


def test_the_rate_of_the_simulator_is_of_its_best_round(monkeypatch, capsys):
    assert (simulator.CHUNKS, simulator.ROUNDS) == (40, 5)  # as the page says
    clock = iter([0.0, 4.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr(simulator, "CHUNKS", 2)
    monkeypatch.setattr(simulator, "ROUNDS", 3)
    monkeypatch.setattr(simulator.time, "perf_counter", lambda: next(clock))
    assert simulator.rate(1) == 2 * simulator.CHUNK / 2.0
    monkeypatch.setattr(simulator, "rate", lambda workers: 1000.0 * workers)
    simulator.run()
    found = lines("simulator-rate")
    assert [(line["settings"]["workers"], line["value"]) for line in found] == [
        (1, 1000.0), (2, 2000.0),
    ]  # fmt: skip
    assert all(line["settings"]["chunk"] == simulator.CHUNK for line in found)
    assert all(line["settings"]["steps"] == Gravity().steps for line in found)
    assert "2 workers      2,000 systems/s" in capsys.readouterr().out


def test_hardly_softened_gravity_is_that_of_the_released_integrator():
    settings = Gravity()
    state = sample(settings, 20, np.random.default_rng(0))
    exact = evolve(state, settings)
    found = nbody_labels.softened(state, settings, 0.0)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
    gap = [
        np.median(np.abs(nbody_labels.softened(state, settings, distance) - exact))
        for distance in (0.01, 0.1, 1.0)
    ]
    assert 0 < gap[0] < gap[1] < gap[2]


def test_labels_are_compared_with_finer_and_with_softened_ones(monkeypatch):
    assert nbody_labels.FINER == (50, 800, 200)
    assert nbody_labels.SOFTENED == (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    generate = nbody_labels.data.generate

    def fewer(folder, *, others, **given):
        assert others == 5000
        generate(folder, others=20, **given)

    monkeypatch.setattr(nbody_labels.data, "generate", fewer)
    monkeypatch.setattr(nbody_labels, "FINER", (1, 4))
    monkeypatch.setattr(nbody_labels, "SOFTENED", (0.0, 0.1))
    nbody_labels.run()
    found = {}
    for line in lines("nbody-labels"):
        settings = line["settings"]
        assert settings["set"] == "eval"
        key = line["model"], settings.get("finer"), settings.get("distance"), settings["integrator"]
        found.setdefault(key, {})[line["metric"]] = line["value"]
    euler = Gravity().integrator
    fine, soft = "fine integration", "softened"
    assert list(found) == [
        (fine, 1, None, "leapfrog"),
        (fine, 4, None, "leapfrog"),
        (soft, None, 0.0, euler),
        (soft, None, 0.1, euler),
    ]
    assert all(tuple(values) == nbody_labels.METRICS for values in found.values())
    assert found[soft, None, 0.0, euler]["median"] < 1e-9  # the released integrator itself
    for values in found.values():
        assert values["median"] < 0.1  # the same systems, after the same time


def test_fine_meshes_are_timed_by_stage(monkeypatch):
    monkeypatch.setattr(artery_preprocessing, "REFINED", (1,))
    artery_preprocessing.fine_meshes()
    found = {
        (line["settings"]["stage"], line["metric"]): line for line in lines("artery-preprocessing")
    }
    assert {metric for stage, metric in found if stage == "all"} == {"memory", "difference"}
    stages = {stage for stage, metric in found if metric == "processor time"}
    assert stages >= {"write", "read"}
    assert found["all", "difference"]["value"] == 0  # the mesh is as fine as the usual one
    assert found["all", "memory"]["value"] > 50


def test_preprocessing_is_timed_with_both_methods(monkeypatch):
    monkeypatch.setattr(artery_preprocessing, "VESSELS", 2)
    monkeypatch.setattr(artery_preprocessing, "MESH", (2, 2, 20))
    monkeypatch.setattr(artery_preprocessing, "find_spec", lambda name: None)
    monkeypatch.setattr(artery_preprocessing, "fine_meshes", lambda: None)
    artery_preprocessing.run()
    found = lines("artery-preprocessing")
    assert [(line["settings"]["edges"], line["settings"]["method"]) for line in found] == [
        ("even", "scipy"), ("uneven", "scipy"),
    ]  # fmt: skip
    (results.FOLDER / "artery-preprocessing.jsonl").unlink()
    seen = []

    def timed(raw, method):
        seen.append((raw.index, method))
        _, mesh = real(raw, "scipy")
        if method == "scipy":
            return 1.0 + raw.index, mesh
        return 5.0 + raw.index, replace(mesh, geodesic=mesh.geodesic + 0.25)

    real = artery_preprocessing.timed
    monkeypatch.setattr(artery_preprocessing, "find_spec", lambda name: name == "potpourri3d")
    monkeypatch.setattr(artery_preprocessing, "timed", timed)
    artery_preprocessing.run()
    found = lines("artery-preprocessing")
    assert [(line["settings"]["method"], line["metric"], line["value"]) for line in found] == [
        ("scipy", "processor time", 1.5),
        ("potpourri3d", "processor time", 5.5),
        ("both", "difference", pytest.approx(0.25)),
    ] * 2
    assert all(line["settings"]["vessels"] == 2 for line in found)
    assert seen == 2 * [(n, method) for method in ("scipy", "potpourri3d") for n in (0, 0, 1)]


def test_even_edges_are_evenly_long():
    def lengths(edges):
        raw = artery_preprocessing.vessel(0, edges)
        a, b = raw.position[raw.face[:, 0]], raw.position[raw.face[:, 1]]
        return np.linalg.norm(a - b, axis=1)

    even, uneven = lengths("even"), lengths("uneven")
    assert 0.02 < np.median(even) < 0.04
    assert np.ptp(even) / np.median(even) < np.ptp(uneven) / np.median(uneven)


def test_rewards_without_a_network_are_recorded_for_every_planner(monkeypatch):
    monkeypatch.setattr(kuka_harness.physics, "installed", lambda engine: engine == "mujoco")
    asked = []

    def run(planner, start, *, engine, workers):
        asked.append((planner, len(start), engine))

    rewards = {"reward": 80.0, "reward_error": 2.0, "strict": 60.0, "strict_error": 3.0}
    monkeypatch.setattr(kuka_harness.planning, "run", run)
    monkeypatch.setattr(kuka_harness.planning, "summarise", lambda found: rewards)
    kuka_harness.run(2)
    found = lines("kuka-reward")
    assert [
        (line["model"], *line["settings"].values(), line["metric"], line["value"]) for line in found
    ] == [
        (planner, "mujoco", turned, 2, kind, metric, value)
        for turned in (False, True)
        for planner in ("expert", "do nothing", "noise")
        for kind, values in (("original", (80.0, 2.0)), ("strict", (60.0, 3.0)))
        for metric, value in zip(("reward", "standard error"), values, strict=True)
    ]
    planners = kuka_harness.PLANNERS.values()
    assert asked == 2 * [(planner, 2, "mujoco") for planner in planners]


def test_the_expert_is_measured_with_its_failures(monkeypatch):
    """One plan of three is not found, and one replay of two fails."""
    made = {
        0: Demonstration(None, np.array([90, 180, 280])),
        2: Demonstration(None, [80, 160, 240]),
    }

    def plan(recipe, number):
        if number not in made:
            raise PlanError("nothing found")
        return made[number]

    monkeypatch.setattr(kuka_expert, "demonstration", plan)
    monkeypatch.setattr(kuka_expert.physics, "installed", lambda engine: engine == "bullet")
    monkeypatch.setattr(kuka_expert, "failures", lambda made, engine, workers: [0])
    kuka_expert.run(3, 2)
    about = dict(diversity=0.5, seed=0)
    assert [(x["metric"], x["value"], x["settings"]) for x in lines("kuka-expert")] == [
        ("failures", 1, about | dict(plans=3)),
        ("mean frames of a stack", pytest.approx(520 / 6), about | dict(plans=3)),
        ("most frames of a stack", 100, about | dict(plans=3)),
        ("towers", 50, about | dict(replays=2, engine="bullet")),
    ]


def test_the_expert_without_an_engine_is_not_replayed_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(kuka_expert.physics, "installed", lambda engine: False)
    kuka_expert.run(2, 2)
    assert 'nothing is replayed: pip install "flashgatr[robotics]"' in capsys.readouterr().err
    assert len(lines("kuka-expert")) == 3


def test_accuracy_with_anchors_is_measured_once_per_network(monkeypatch, tmp_path):
    def trained(weights):
        """A run with these bytes as weights becomes the network that is measured."""
        file = tmp_path / weights / "model" / io.WEIGHTS
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(weights)
        monkeypatch.setattr(anchored_accuracy.shipped, "find", lambda path: tmp_path / weights)

    monkeypatch.setattr(anchored_accuracy, "load_meshes", lambda *_, **__: [])
    monkeypatch.setattr(anchored_accuracy, "load", lambda run, device: (run.name, None))
    monkeypatch.setattr(anchored_accuracy, "cases", lambda: iter([None, AnchorChoice(8, seed=3)]))
    errors = {"old": 1.0, "new": 2.0}
    seen = []

    def measured(model, meshes, choice, device):
        seen.append((model, choice))
        return Found({"epsilon_mean": errors[model]})

    monkeypatch.setattr(anchored_accuracy, "measured", measured)
    for weights in ("old", "old", "new", "new"):
        trained(weights)
        anchored_accuracy.run()
    choices = [None, AnchorChoice(8, seed=3)]
    assert seen == [(model, choice) for model in ("old", "new") for choice in choices]
    found = [(line["settings"]["network"], line["value"]) for line in lines("anchored-accuracy")]
    names = {model: hashlib.sha256(model.encode()).hexdigest()[:12] for model in errors}
    assert found == [(names[model], errors[model]) for model in ("old", "old", "new", "new")]
