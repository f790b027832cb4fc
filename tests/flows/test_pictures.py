"""The data that the pictures of flows draw, not only that there are pictures."""

import numpy as np
import torch

from flashgatr.experiments.flows.picture import draw_errors, draw_flow
from flashgatr.experiments.flows.vessels import SCALES, load

from .vessels import write_tubes


def error(points, anchors, velocity, stress):
    return dict(points=points, anchors=anchors, epsilon_velocity=velocity, epsilon_stress=stress)


def lines(ax):
    return [line.get_xydata().tolist() for line in ax.lines]


def test_errors_are_drawn_against_anchors_with_a_line_per_number_of_points(figures):
    found = [error(200, 18, 3.0, 5.0), error(200, 6, 4.0, 9.0), error(3000, 6, 2.0, 8.0)]
    velocity, stress = draw_errors(found).axes[:2]
    assert "velocity" in velocity.get_title(loc="left")
    assert lines(velocity) == [[[6, 4.0], [18, 3.0]], [[6, 2.0]]]
    assert lines(stress) == [[[6, 9.0], [18, 5.0]], [[6, 8.0]]]
    assert [x.get_text() for x in velocity.get_xticklabels()] == ["6", "18"]


def test_errors_of_one_number_of_anchors_are_drawn_against_points(figures):
    velocity, _ = draw_errors([error(3000, 6, 2.0, 8.0), error(200, 6, 4.0, 9.0)]).axes[:2]
    assert lines(velocity) == [[[200, 4.0], [3000, 2.0]]]
    assert [x.get_text() for x in velocity.get_xticklabels()] == ["200", "3,000"]


def test_a_flow_is_drawn_as_truth_prediction_and_error_in_its_units(figures, tmp_path):
    vessels = load(write_tubes(tmp_path, 10, lumen=4000, wall=900), "test", torch.device("cpu"))
    rows = torch.cat([x[0] for x in vessels.kinds])
    true = rows[:, 8:11]
    axes = draw_flow("a vessel", rows, 1.5 * true).axes
    panels = [ax for ax in axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left").split(":")[0] for ax in panels] == [
        x for x in ("true", "predicted", "error") for _ in range(2)
    ]
    shown = [np.ma.masked_invalid(ax.collections[0].get_array()).compressed() for ax in panels]
    for kind in (0, 1):  # the speed in the lumen, the stress on the wall
        truth, found, off = shown[kind::2]
        assert len(truth) > 20
        np.testing.assert_allclose(found, 1.5 * truth, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(off, 0.5 * truth, rtol=1e-3, atol=1e-4)
        sizes = SCALES[kind] * true[rows[:, 7] == kind].norm(dim=-1).numpy()
        assert np.abs(truth[:, None] - sizes).min(axis=1).max() < 1e-3
