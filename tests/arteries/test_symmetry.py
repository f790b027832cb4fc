"""The stress that an equivariant network predicts turns with the vessel, in every dtype."""

import pytest

from flashgatr.experiments import equivariance, runs
from flashgatr.experiments.arteries import anchoring
from flashgatr.experiments.arteries import symmetry as symmetries
from flashgatr.experiments.arteries.task import ArteryTask
from flashgatr.experiments.config import override

from .small_task import CPU, make
from .test_surface_models import config as on_surfaces


def errors(task):
    return dict(equivariance.errors(symmetries.symmetry, task, task.model, CPU))


@pytest.mark.parametrize("anchored", [False, True])
def test_the_stress_of_gatr_turns_with_the_vessel(no_files, anchored, monkeypatch):
    """A run with anchors is measured with anchors."""
    calls = []

    def predict_wall(*given):
        calls.append(given)
        return anchoring.predict_wall(*given)

    monkeypatch.setattr(symmetries, "predict_wall", predict_wall)
    nodes = "data.options.nodes=20", "data.options.anchors=12"
    found = errors(make(*nodes[: 2 * anchored]))
    assert found["float64"] < 1e-10
    assert 1e-10 < found["float32"] < 1e-3
    assert found["bfloat16 autocast"] < 0.3
    assert bool(calls) == anchored


def test_the_stress_of_a_transformer_does_not(no_files):
    small = ["model.name=transformer", "model.options.num_blocks=1"]
    task = ArteryTask(override(runs.defaults("arteries"), small), CPU)
    assert min(errors(task).values()) > 1e-3


def test_networks_on_surfaces_are_measured_on_whole_meshes(no_files, tmp_path, monkeypatch):
    monkeypatch.setattr(symmetries, "NODES", 10)  # fewer than a wall has
    found = errors(ArteryTask(on_surfaces("gem_cnn", tmp_path), CPU))
    assert found["float64"] < 1e-10
