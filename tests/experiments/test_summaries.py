"""Summaries of skewed numbers, worked out by hand: a mean is no median, a quantile no other."""

import math

import pytest
import torch

from flashgatr.experiments.arteries import metrics as arteries
from flashgatr.experiments.arteries.metrics import MeshErrors
from flashgatr.experiments.nbody import metrics as nbody
from flashgatr.experiments.nbody.report import tables
from flashgatr.experiments.nbody.report.titles import METRICS
from flashgatr.experiments.report.numbers import estimate, groups_of


def test_the_mean_over_seeds_is_no_median_and_has_the_standard_error_of_a_mean():
    found = estimate([1.0, 2.0, 9.0])
    assert found["mean"] == pytest.approx(4.0)
    spread = math.sqrt((9 + 4 + 25) / 2)  # of the sample: divided by n - 1
    assert found["standard_error"] == pytest.approx(spread / math.sqrt(3))
    assert estimate([5.0]) == {"mean": 5.0, "standard_error": None}


def test_n_body_errors_are_summarised_as_named():
    errors = torch.cat([torch.arange(1.0, 200.0), torch.tensor([1000.0])])
    found = nbody.summarise(errors[torch.randperm(200)])
    assert found == pytest.approx(
        {
            "mse": (199 * 100 + 1000) / 200,
            "median": 100.0,  # the lower one of two
            "q90": 180.1,
            "trimmed": 99.5,  # the mean of 1 to 198
            "systems": 200,
        }
    )


def test_artery_errors_are_summarised_as_named():
    rows = [(20, 7, 30, 1.0, 50), (1, 1, 2, 0.1, 10), (8, 4, 9, 0.4, 20), (2, 1, 5, 0.2, 80)]
    rows.append((4, 2, 4, 0.3, 40))
    found = arteries.summarise([MeshErrors(*map(float, row)) for row in rows])
    assert found == pytest.approx(
        {
            "epsilon_mean": 7.0,
            "epsilon_median": 4.0,
            "epsilon_q75": 8.0,
            "nmae": 100 * 3.0 / 80,
            "mean_error": 3.0,
            "max_error": 10.0,
            "cosine": 0.4,
            "meshes": 5,
        }
    )


def test_errors_of_one_mesh_differ_from_each_other_and_are_those_of_the_formulas():
    target = torch.tensor([[2.0, 0, 0], [0, 1, 0], [0, 0, 4], [9, 9, 9]])
    found = torch.tensor([[0.0, 2, 0], [0, 3, 0], [0, 0, 3], [0, 0, 0]])
    mask = torch.tensor([True, True, True, False])
    errors = arteries.mesh_errors(found, target, mask)
    distances = math.sqrt(8), 2.0, 1.0
    assert errors.mean_error == pytest.approx(sum(distances) / 3)
    assert errors.max_error == pytest.approx(math.sqrt(8))
    assert errors.cosine == pytest.approx((0 + 1 + 1) / 3)
    assert errors.epsilon == pytest.approx(100 * math.sqrt((8 + 4 + 1) / (4 + 1 + 16)))


class _Run:
    """As much of a run as groups need."""

    def __init__(self, seed, results, label="GATr", samples=100):
        self.label, self.samples, self.results = label, samples, results
        self.config = type("Config", (), {"seed": seed})()
        self.config.train = type("Train", (), {"steps": 7})()


def test_groups_average_each_metric_of_each_set_by_itself():
    runs = [
        _Run(0, {"a": {"x": 1.0, "y": 10.0}, "b": {"x": 5.0}}),
        _Run(1, {"a": {"x": 2.0, "y": 20.0}, "b": {"x": 6.0}}),
        _Run(2, {"a": {"x": 9.0, "y": 60.0}, "b": {"x": 13.0}}),
        _Run(0, {"a": {"x": 100.0, "y": 0.0}}, label="MLP"),
        _Run(0, {"a": {"x": 50.0, "y": 0.0}}, samples=1000),
    ]
    groups = groups_of(runs, ["a", "b"], ["x", "y"])
    means = {
        (group["label"], group["samples"], name, metric): found["mean"]
        for group in groups
        for name, metrics in group["results"].items()
        for metric, found in metrics.items()
    }
    assert means == pytest.approx(
        {
            ("GATr", 100, "a", "x"): 4.0,
            ("GATr", 100, "a", "y"): 30.0,
            ("GATr", 100, "b", "x"): 8.0,
            ("MLP", 100, "a", "x"): 100.0,
            ("MLP", 100, "a", "y"): 0.0,
            ("GATr", 1000, "a", "x"): 50.0,
            ("GATr", 1000, "a", "y"): 0.0,
        }
    )
    assert [group["seeds"] for group in groups] == [[0, 1, 2], [0], [0]]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(1e-3, 1.5e-3, "+50 %"), (1e-3, 0.9e-3, "-10 %"), (1e-3, 8e-3, "× 8.0")],
)
def test_the_change_of_moved_systems_is_after_over_before(before, after, text):
    def results(mse):
        return {metric: {"mean": mse, "standard_error": None} for metric in METRICS}

    group = dict(label="GATr", samples=100, steps=5, seeds=[0])
    group["results"] = {"eval": results(before), "eval_moved": results(after)}
    report = {
        "groups": [group],
        "straight_line": {},
        "reference": {"set": "", "samples": 1, "steps": 1, "mse": {}},
    }
    assert f"<td>{text}</td>" in tables.results(report, "eval_moved")
