"""Errors on meshes, against numbers worked out by hand."""

import math

import pytest
import torch

from flashgatr.experiments.arteries.metrics import mesh_errors, relative_change, summarise

TARGET = torch.tensor([[3.0, 4, 0], [0, 0, 2], [0, 100, 0]])
MASK = torch.tensor([True, True, False])


def test_errors_are_those_of_the_masked_nodes():
    prediction = torch.tensor([[3.0, 4, 1], [0, 0, 4], [7, 7, 7]])
    found = mesh_errors(prediction, TARGET, MASK)
    assert found.epsilon == pytest.approx(100 * math.sqrt((1 + 4) / (25 + 4)))
    assert (found.mean_error, found.max_error) == pytest.approx((1.5, 2.0))
    assert found.cosine == pytest.approx((25 / (5 * math.sqrt(26)) + 1) / 2)
    assert found.largest == 100  # of all nodes, masked or not


def test_a_perfect_prediction_has_no_error_and_zero_has_all():
    perfect, none = (mesh_errors(y, TARGET, MASK) for y in (TARGET, torch.zeros_like(TARGET)))
    assert (perfect.epsilon, perfect.cosine) == pytest.approx((0, 1))
    assert (none.epsilon, none.cosine) == pytest.approx((100, 0))


def test_meshes_count_alike_whatever_their_size():
    half = mesh_errors(TARGET / 2, TARGET, MASK)  # ε = 50 %
    perfect = mesh_errors(TARGET, TARGET, MASK)
    found = summarise([half, perfect, perfect, half, half])
    assert found["epsilon_mean"] == pytest.approx(30)
    assert found["epsilon_median"] == pytest.approx(50)
    assert found["epsilon_q75"] == pytest.approx(50)
    assert found["nmae"] == pytest.approx(100 * 0.6 * (2.5 + 1) / 2 / 100)
    assert found["max_error"] == pytest.approx(0.6 * 2.5)
    assert found["meshes"] == 5


def test_quantiles_lie_between_the_meshes_errors():
    errors = [mesh_errors((1 - x) * TARGET, TARGET, MASK) for x in (0.1, 0.2, 0.3, 0.4)]
    found = summarise(errors)
    assert found["epsilon_median"] == pytest.approx(25, rel=1e-5)
    assert found["epsilon_q75"] == pytest.approx(32.5, rel=1e-5)


def test_nmae_is_relative_to_the_largest_stress_of_all_meshes():
    weak = mesh_errors(0.5 * TARGET, TARGET, MASK)  # mean error 1.75, largest stress 100
    strong = mesh_errors(5 * TARGET, 10 * TARGET, MASK)  # 17.5 and 1,000
    expected = 100 * (1.75 + 17.5) / 2 / 1000
    assert summarise([weak, strong])["nmae"] == pytest.approx(expected)


def test_nothing_to_measure_is_said():
    with pytest.raises(ValueError, match="no node in its mask"):
        mesh_errors(TARGET, TARGET, torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="no meshes"):
        summarise([])


def test_numbers_that_are_none_are_not_hidden():
    bad = mesh_errors(TARGET * math.nan, TARGET, MASK)
    assert math.isnan(summarise([bad, bad])["epsilon_mean"])


def test_changes_are_relative():
    assert relative_change(TARGET * 1.01, TARGET) == pytest.approx(0.01, rel=1e-4)
