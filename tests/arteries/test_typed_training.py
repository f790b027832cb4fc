"""Training a network with types, by the command's own loop."""

import pytest

from flashgatr.experiments import runs
from flashgatr.experiments.config import override
from flashgatr.nn import EquiLinear
from tests.typed.networks import masked_entries

from .small_task import config, make

pytestmark = pytest.mark.usefixtures("no_files")


def test_masked_parameters_of_a_trained_run_are_exactly_zero(tmp_path):
    """Also those of the averaged weights, which the run keeps."""
    about = ["model.name=gatr_e3", "train.steps=4", "train.batch_size=2", "train.ema=0.9"]
    settings = override(config(*about), ["device=cpu", f"folder='{tmp_path / 'run'}'"])
    start = make(*about).model.state_dict()
    runs.train(settings)
    model = runs.load_model(settings)
    assert any(not p.equal(start[name]) for name, p in model.named_parameters())
    layers = [layer for layer in model.modules() if isinstance(layer, EquiLinear)]
    places = [pair for layer in layers for pair in masked_entries(layer)]
    assert sum(int(where.sum()) for _, where in places) > 100
    assert not any(parameter[where].any() for parameter, where in places)
