"""An experiment is a value, declared without heavy imports; one table lists them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import flashgatr
from flashgatr.experiments import runs, table
from flashgatr.experiments.experiment import Experiment, Metric
from flashgatr.train import ConfigError
from flashgatr.train.settings import TrainConfig

ROOT = Path(flashgatr.__file__).parent
SWEETS = Experiment(
    "sweets",
    task="flashgatr.train:Task",
    metrics={"sugar": Metric("sugar, g", "g", ".1f"), "salt": Metric("salt", "g", recorded=False)},
    count="pieces",
)
LIGHT = """
import sys, types
package = types.ModuleType("flashgatr")  # without the package's own __init__, which imports torch
package.__path__ = [{root!r}]
sys.modules["flashgatr"] = package
{code}
assert not {{"torch", "numpy"}} & set(sys.modules), "imported"
"""


def light(code):
    """Run code in a new process; it must import neither torch nor numpy."""
    program = LIGHT.format(root=str(ROOT), code=code)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_declaring_every_experiment_imports_neither_torch_nor_numpy():
    light("from flashgatr.experiments import table; [table.find(name) for name in table.names()]")


@pytest.mark.parametrize(
    "arguments", ["", "data", *(f"data {name}" for name in table.BUILT_IN), "train", "sweep"]
)
def test_help_imports_neither_torch_nor_numpy(arguments):
    code = (
        "from flashgatr.experiments.cli import application\n"
        "try:\n"
        f"    application()([*{arguments.split()!r}, '--help'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code"
    )
    assert "Usage:" in light(code)


@pytest.mark.parametrize("name", table.BUILT_IN)
def test_every_field_that_is_named_as_text_is_there(name):
    experiment = table.find(name)
    assert experiment.name == name
    assert callable(experiment.get("task"))
    assert all(map(callable, experiment.get("models").values()))
    for field in ("data", "predict", "report"):
        assert experiment.get(field) is None or experiment.get(field)


def test_settings_without_an_experiment_are_of_the_first():
    assert runs.make_settings({}).experiment == next(iter(table.BUILT_IN))
    for name in table.BUILT_IN:
        config = runs.make_settings({"experiment": name})
        assert config == runs.defaults(name)
        assert (config.folder, config.data.folder) == (f"runs/{name}", f"data/{name}")


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"unknown experiment 'arterie'; did you mean arteries\?"):
        table.find("arterie")


def test_tables_and_records():
    assert SWEETS.titles == ["sugar, g", "salt", "pieces"]
    assert SWEETS.row({"sugar": 1.26, "pieces": 3.0}) == ["1.3", "", "3"]
    assert SWEETS.row({"sugar": 1.26}) == ["1.3", "", ""]
    ((metric, name, value),) = SWEETS.records({"sugar": 2.0, "salt": 1.0})
    assert (metric, name, value) == (SWEETS.metrics["sugar"], "sugar", 2.0)


def test_defaults_are_laid_over_folders_named_after_the_experiment():
    experiment = Experiment("a", task=None, defaults={"data": {"train_samples": 3}, "seed": 1})
    assert experiment.settings() == {
        "experiment": "a",
        "folder": "runs/a",
        "seed": 1,
        "data": {"folder": "data/a", "train_samples": 3},
    }


def test_defaults_are_the_papers():
    """Steps, samples per step, precision: appendix C of the paper. Diffuser averages weights."""
    made = {name: runs.make_settings({"experiment": name}).train for name in ("arteries", "kuka")}
    plain = runs.make_settings({"experiment": "nbody"}).train
    assert plain == TrainConfig()
    arteries = replace(plain, steps=200_000, batch_size=8, precision="bfloat16")
    assert made == {
        "arteries": arteries,
        "kuka": replace(arteries, batch_size=32, cuda_graph=True, ema=0.999),
    }


def test_a_wrong_declaration_is_refused():
    with pytest.raises(ValueError, match="letters, digits"):
        Experiment("../a", task=None)
    with pytest.raises(TypeError, match="must be a Metric"):
        Experiment("a", task=None, metrics={"mse": "mse"})
    with pytest.raises(ValueError, match="sweets has no model 'gatr'; it lists no models"):
        SWEETS.build("gatr", {})
