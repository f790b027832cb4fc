"""The earlier import path of the settings: defaults of the named or of the first experiment."""

import pytest

from flashgatr import train
from flashgatr.experiments.config import (
    ConfigError,
    DataConfig,
    RunConfig,
    dumps,
    from_dict,
    load,
    loads,
    override,
)
from flashgatr.train import fingerprint


def test_defaults_are_those_of_the_first_experiment():
    c = RunConfig()
    assert (c.experiment, c.model.name, c.data.train_samples) == ("nbody", "gatr", 0)
    assert (c.folder, c.data.folder, DataConfig().folder) == (
        "runs/nbody",
        "data/nbody",
        "data/nbody",
    )


def test_all_ways_to_make_settings_give_equal_ones():
    assert RunConfig() == loads("") == from_dict({}) == override(RunConfig(), [])
    assert loads(dumps(RunConfig(seed=3))) == RunConfig(seed=3)
    assert isinstance(RunConfig(), train.RunConfig)


def test_settings_made_in_either_place_are_the_same_run():
    same = train.RunConfig(experiment="nbody", data=train.DataConfig(folder="elsewhere"))
    assert fingerprint(same) == fingerprint(RunConfig())


def test_what_a_file_leaves_out_has_the_default_of_its_experiment(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('experiment = "arteries"\n[train]\nlr = 1e-3\n[data]\ntrain_samples = 5\n')
    config = load(file)
    assert (config.train.lr, config.train.batch_size, config.train.precision) == (
        1e-3,
        8,
        "bfloat16",
    )
    assert (config.data.folder, config.data.train_samples) == ("data/arteries", 5)
    assert config.folder == "runs/arteries"
    file.write_text("seed = 3\n")
    assert load(file) == RunConfig(seed=3)
    assert load(file, "arteries").train.steps == 200_000
    file.write_text('experiment = "arteries"\ntrain = 3\n')
    with pytest.raises(ConfigError, match="train must be a table"):
        load(file)
