"""Adam's epsilon is a setting; its default changes nothing."""

from pathlib import Path

import pytest
import torch

from flashgatr.experiments import runs
from flashgatr.train import ConfigError, TrainConfig, fingerprint, identity
from flashgatr.train.order import batch_indices

from ..toy import Toy, settings, train

EARLIER = Path(__file__).parents[2] / "earlier"


@pytest.mark.parametrize("name", ["nbody_run", "artery_run"])
def test_a_run_from_before_the_setting_has_its_fingerprint(name):
    folder = EARLIER / name
    assert "\neps" not in (folder / "config.toml").read_text()
    config = runs.load_config(folder)
    assert config.train.eps == 1e-8
    assert fingerprint(config) == runs.read_results(folder)["run"]


def test_another_epsilon_is_another_run(tmp_path):
    config, other = settings(tmp_path), settings(tmp_path, eps=1e-20)
    assert "train.eps" not in identity(config)
    assert identity(other) == identity(config) | {"train.eps": 1e-20}
    train(tmp_path)
    with pytest.raises(ConfigError, match=r"train\.eps was 1e-08, is 0.5"):
        train(tmp_path, eps=0.5)


def test_the_update_is_that_of_adam_with_this_epsilon(tmp_path):
    trainer = train(
        tmp_path, eps=0.5, decay_every=1000, lr_final=1e-2, restore_best=False, clip=0.0
    )
    task = Toy()
    task.trainer = trainer
    adam = torch.optim.Adam(task.model.parameters(), lr=1e-2, eps=0.5)
    for k in range(20):
        adam.zero_grad()
        task.loss(task.model, task.batch(batch_indices(0, k, 8, 64)))[0].backward()
        adam.step()
    torch.testing.assert_close(trainer.weights(), task.model.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, -1e-8])
def test_epsilon_is_positive(value):
    with pytest.raises(ConfigError, match=r"train\.eps must be positive"):
        TrainConfig(eps=value)
