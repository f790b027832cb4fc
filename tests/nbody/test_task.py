"""The n-body experiment as the engine sees it."""

import pytest
import torch

from flashgatr.experiments.config import ConfigError, RunConfig, override
from flashgatr.experiments.nbody.data import generate
from flashgatr.experiments.nbody.task import NBodyTask

SMALL = ["model.options.num_blocks=1", "model.options.hidden_s_channels=8"]


def _config(folder, *changes):
    return override(RunConfig(), [f"data.folder='{folder}'", *SMALL, *changes])


def test_options_that_nothing_reads_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no data\.options, got bodies"):
        NBodyTask(_config(tmp_path, "data.options.bodies=5"), torch.device("cpu"))


def test_the_errors_of_an_equivariant_model_do_not_depend_on_where_the_systems_are(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    task = NBodyTask(_config(tmp_path), torch.device("cpu"))
    found = task.evaluate(task.model)
    assert set(found) == {"eval", "more_bodies", "translated", "eval_moved"}
    assert found["eval_moved"]["mse"] == pytest.approx(found["eval"]["mse"], rel=1e-2)


def test_a_model_for_four_bodies_is_not_evaluated_on_six(tmp_path):
    generate(tmp_path, train=8, others=16, workers=1)
    config = override(RunConfig(), [f"data.folder='{tmp_path}'", "model.name=mlp"])
    task = NBodyTask(config, torch.device("cpu"))
    assert "more_bodies" not in task.evaluate(task.model)
