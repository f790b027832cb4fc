"""The data that figures draw: points, bars, quantiles and predictions, not only that they exist."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flashgatr.experiments import runs as all_runs
from flashgatr.experiments.arteries.data.orientation import orientations
from flashgatr.experiments.arteries.report import errors, wall_maps, walls
from flashgatr.experiments.arteries.report.wall_maps import Wall
from flashgatr.experiments.config import override
from flashgatr.experiments.nbody import data
from flashgatr.experiments.nbody.report import data_efficiency, trajectories
from flashgatr.experiments.nbody.report.numbers import describe_data
from flashgatr.experiments.report import learning_curves, plots
from flashgatr.experiments.report.learning_curves import Curve
from flashgatr.experiments.report.protocol import Run

from ..arteries.walls import tube
from ..arteries.walls import walls as made_up


def _bars(container):
    """The points of an errorbar, and where their bars end: (x, y), (low, high)."""
    line, _, (segments,) = container
    ends = np.array([segment[:, 1] for segment in segments.get_segments()])
    return np.stack(line.get_data(), -1), ends


GROUPS = [
    dict(label="GATr", samples=n, results={"eval": {"mse": dict(mean=y, standard_error=e)}})
    for n, y, e in [(100, 4.0, 0.5), (1000, 1.0, 0.25), (10_000, 0.5, None)]
]


def test_error_bars_are_one_standard_error_to_either_side():
    figure, (ax,) = plots.panels(1, (4, 3))
    line = plots.means(GROUPS, "eval", "mse")["GATr"]
    plots.draw_means(ax, line, dict(color="black", marker="o"))
    points, ends = _bars(ax.containers[0])
    np.testing.assert_allclose(points, [[100, 4.0], [1000, 1.0], [10_000, 0.5]])
    np.testing.assert_allclose(ends, [[3.5, 4.5], [0.75, 1.25], [0.5, 0.5]])
    assert figure.axes == [ax]


def test_the_figure_of_data_efficiency_draws_the_means_of_its_set(figures):
    groups = [
        dict(group, results={**group["results"], "translated": group["results"]["eval"]})
        for group in GROUPS
    ]
    groups[0]["results"]["translated"] = {"mse": dict(mean=7.0, standard_error=1.0)}
    report = dict(
        groups=groups,
        reference=dict(set="eval", samples=1000, mse={"theirs": 0.1}),
        straight_line={"eval": {"mse": 9.0}},
    )
    figure = data_efficiency.draw(report, ["GATr"])
    drawn = {ax.get_title(loc="left"): ax for ax in figure.axes}
    assert len(drawn) == 3
    eval_ax, more, translated = drawn.values()
    assert not more.containers
    for ax, first in ((eval_ax, 4.0), (translated, 7.0)):
        points, _ = _bars(ax.containers[0])
        np.testing.assert_allclose(points, [[100, first], [1000, 1.0], [10_000, 0.5]])
    level = [line for line in eval_ax.lines if line.get_linestyle() == ":"]
    assert [list(line.get_ydata()) for line in level] == [[9.0, 9.0]]


def test_learning_curves_draw_the_scores_of_each_run_in_the_panel_of_its_samples(figures):
    curves = [
        Curve("GATr", 100, [(1, 5.0), (2, 4.0)]),
        Curve("GATr", 1000, [(1, 3.0), (2, 1.0)]),
        Curve("MLP", 100, [(1, 9.0), (2, 8.0)]),
    ]
    few, many = learning_curves.draw(curves, ["GATr", "MLP"], "systems", "score").axes
    assert [list(line.get_ydata()) for line in few.lines] == [[5.0, 4.0], [9.0, 8.0]]
    assert [list(line.get_ydata()) for line in many.lines] == [[3.0, 1.0]]
    assert few.get_title(loc="left") == "100 training systems"


def test_histograms_count_meshes_and_mark_their_mean(figures):
    figure = errors.histograms({"GATr": [1.1, 1.2, 1.3, 30.0]}, ["GATr"])
    (ax,) = figure.axes
    heights = [bar.get_height() for bar in ax.patches]
    assert (heights[1], heights[-1], sum(heights)) == (3, 1, 4)
    (mean,) = ax.lines
    assert mean.get_xdata()[0] == pytest.approx(33.6 / 4)


def _artery_run(folder, label, epsilon, per_mesh, *, model="gatr", samples=800, kind="random"):
    changes = [f"model.name={model}", f"folder='{folder}'", f"data.options.orientation={kind}"]
    (folder / "model").mkdir(parents=True)
    test = dict(epsilon_mean=epsilon, per_mesh=per_mesh, orientation=kind)
    return Run(
        folder,
        override(all_runs.defaults("arteries"), changes),
        {"results": {"test": test}},
        {"test": {"epsilon_mean": epsilon}},
        label,
        samples,
    )


NAMES = [f"sample_{k:04d}" for k in range(200, 204)]


@pytest.fixture
def predicted(monkeypatch):
    """Models predict the label times a factor that the name of the run's folder tells."""
    monkeypatch.setattr(walls.sets, "load", made_up)
    monkeypatch.setattr(walls, "load_model", lambda config: _Times(float(Path(config.folder).name)))
    monkeypatch.setattr(
        walls,
        "predict_meshes",
        lambda model, meshes, _: [torch.from_numpy(model.factor * mesh.wss) for mesh in meshes],
    )


class _Times(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor


def test_the_walls_shown_are_the_best_to_the_worst_of_the_best_run(tmp_path, predicted):
    rising = dict(zip(NAMES, (3.0, 9.0, 1.0, 5.0), strict=True))
    falling = dict(zip(NAMES, (9.0, 1.0, 8.0, 7.0), strict=True))
    given = [
        _artery_run(tmp_path / "2", "worse", 6.0, falling),
        _artery_run(tmp_path / "3", "best", 4.5, rising),
        _artery_run(tmp_path / "4", "Transformer", 20.0, falling, model="transformer"),
        _artery_run(tmp_path / "5", "a better one", 10.0, falling, model="transformer"),
    ]
    shown = walls.choose(given)
    # of four meshes, the one at the 90 % quantile is the worst
    assert [wall.title for wall in shown] == [
        "best: 1.0 %",
        "median: 5.0 %",
        "90 % quantile: 9.0 %",
    ]
    assert [wall.mesh.name for wall in shown] == [NAMES[2], NAMES[3], NAMES[1]]
    for wall in shown:
        assert list(wall.predictions) == ["best", "a better one"]


@pytest.mark.parametrize("kind", ["random", "canonical"])
def test_predictions_on_turned_meshes_are_turned_back(tmp_path, predicted, kind):
    per_mesh = dict(zip(NAMES, (3.0, 9.0, 1.0, 5.0), strict=True))
    (best, *_, worst) = walls.choose(
        [_artery_run(tmp_path / "2", "GATr", 4.5, per_mesh, kind=kind)]
    )
    for wall in (best, worst):
        np.testing.assert_allclose(wall.predictions["GATr"], 2 * wall.mesh.wss, atol=1e-3)
        assert not np.allclose(orientations([wall.mesh], "random")[0], np.eye(3), atol=0.1)


def test_histograms_are_of_the_best_run_with_the_most_meshes(tmp_path):
    given = [
        _artery_run(tmp_path / "1", "GATr", 2.0, {"a": 2.0}, samples=100),
        _artery_run(tmp_path / "2", "GATr", 6.0, {"a": 6.0}),
        _artery_run(tmp_path / "3", "GATr", 4.0, {"a": 3.0, "b": 5.0}),
        _artery_run(tmp_path / "4", "Transformer", 9.0, {"a": 9.0}),
    ]
    assert errors.best_per_label(given) == {"GATr": [3.0, 5.0], "Transformer": [9.0]}


@pytest.mark.parametrize("faces", [False, True])
def test_maps_paint_true_stress_prediction_and_error(figures, faces):
    mesh = replace(tube(3, 120, faces=faces), mask=np.ones(120, dtype=bool))
    figure = wall_maps.maps([Wall("a wall", mesh, {"GATr": 1.5 * mesh.wss})], ["GATr"])
    true, found, error = (ax.collections[0] for ax in figure.axes[:3])
    sizes = np.linalg.norm(mesh.wss, axis=-1)
    assert true.get_array().max() <= sizes.max() + 1e-6
    assert len(true.get_array()) > 20
    np.testing.assert_allclose(found.get_array(), 1.5 * true.get_array(), rtol=1e-5)
    np.testing.assert_allclose(error.get_array(), 0.5 * true.get_array(), rtol=1e-4)
    assert [x.get_clim() for x in (true, found, error)] == [
        pytest.approx((0, sizes.max() / d)) for d in (1, 1, 4)
    ]


def test_the_scatter_puts_prediction_over_truth(figures):
    mesh = tube(3, 120)
    figure = wall_maps.scatter([Wall("a wall", mesh, {"GATr": 0.5 * mesh.wss})], ["GATr"])
    hexagons = figure.axes[0].collections[0]
    centres = hexagons.get_offsets()[np.asarray(hexagons.get_array()) > 0]
    truth = np.linalg.norm(mesh.wss, axis=-1)[mesh.mask]
    np.testing.assert_allclose(centres[:, 1], 0.5 * centres[:, 0], atol=truth.max() / 50)
    assert centres[:, 0].max() == pytest.approx(truth.max(), rel=0.05)


class _Off(torch.nn.Module):
    """The truth, shifted by the number of the system times a factor."""

    def __init__(self, targets, factor):
        super().__init__()
        self.targets, self.factor = targets, factor

    def forward(self, mass, position, velocity):
        off = self.factor * torch.arange(len(mass))[:, None, None]
        return self.targets.float() + off, torch.zeros(())


def test_the_systems_shown_are_at_the_quantiles_of_the_best_runs_error(tmp_path, monkeypatch):
    data.generate(tmp_path / "data", train=2, others=21, workers=1)
    targets = data.load(tmp_path / "data", "eval")["target"]
    given = []
    for factor, mse in ((3, 9.0), (1, 1.0), (2, 4.0)):
        folder = tmp_path / str(factor)
        (folder / "model").mkdir(parents=True)
        changes = [f"folder='{folder}'", f"data.folder='{tmp_path / 'data'}'"]
        config = override(all_runs.defaults("nbody"), changes)
        given.append(Run(folder, config, {}, {"eval": {"mse": mse}}, f"GATr {factor}", 2))
    monkeypatch.setattr(
        trajectories, "load_model", lambda config: _Off(targets, float(Path(config.folder).name))
    )
    shown = trajectories.scenes(given, describe_data(given, []))
    assert [scene.title.split(":")[0] for scene in shown] == list(trajectories.SHOWN_SYSTEMS)
    assert [scene.title.split(": ")[1] for scene in shown] == [
        "1.0e2", "3.2e2", "3.6e2", "4.0e2",
    ]  # fmt: skip
    for scene, number in zip(shown, (10, 18, 19, 20), strict=True):
        np.testing.assert_allclose(scene.paths[-1], targets[number].numpy(), atol=1e-9)
        assert list(scene.predictions) == ["GATr 1"]
        off = scene.predictions["GATr 1"] - targets[number].numpy()
        np.testing.assert_allclose(off, number, atol=1e-3)
