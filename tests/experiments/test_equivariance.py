"""Equivariance errors of trained runs: measured in every dtype, recorded, and shown."""

import json

import pytest
import torch

from flashgatr.experiments import equivariance, results, runs, sweep, table
from flashgatr.experiments.charges.data import generate as generate_charges
from flashgatr.experiments.charges.simulate import STANDARD
from flashgatr.experiments.nbody.data import generate
from flashgatr.experiments.symmetry import equivariance_error, motions, turned
from flashgatr.train.settings import override

CPU = torch.device("cpu")
GATR = ("num_blocks=1", "hidden_mv_channels=4", "hidden_s_channels=8", "num_heads=2")
SMALL = {"gatr": GATR, "transformer": ("num_blocks=1",), "mlp": ()}
RECIPE = """
[run]
device = "cpu"
data.folder = "data"
train = {steps = 2, batch_size = 4}
[run.model.options]
num_blocks = 1
hidden_s_channels = 8
[grid]
seed = [0, 1]
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of both experiments on systems."""
    folder = tmp_path_factory.mktemp("systems")
    generate(folder / "nbody", train=8, others=16, workers=1)
    generate_charges(folder / "charges", STANDARD["charges"], train=8, others=8)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")
    return tmp_path


def measured(name, data, model):
    options = [f"model.options.{option}" for option in SMALL[model]]
    given = [f"data.folder={str(data / name)!r}", "data.train_samples=8", f"model.name={model}"]
    config = override(runs.defaults(name), [*given, *options])
    experiment = table.find(name)
    task = experiment.get("task")(config, CPU)
    return dict(equivariance.errors(experiment.get("symmetry"), task, task.model, CPU))


@pytest.mark.parametrize("name", ["nbody", "charges"])
def test_rounding_is_the_only_error_of_gatr(data, name):
    found = measured(name, data, "gatr")
    assert [*found] == ["float64", "float32", "bfloat16 autocast"]
    assert found["float64"] < 1e-10
    assert 1e-10 < found["float32"] < 1e-2
    assert found["float32"] < found["bfloat16 autocast"]


@pytest.mark.parametrize("name", ["nbody", "charges"])
@pytest.mark.parametrize("model", ["transformer", "mlp"])
def test_models_without_the_symmetry_have_an_error_in_every_dtype(data, name, model):
    assert min(measured(name, data, model).values()) > 1e-3


def test_the_error_is_relative_and_counts_the_worst_motion():
    """f(x) = (2, 0, 0) at any x: the error of a motion is |a - R a| for the unit vector a."""
    every = motions()
    constant = torch.tensor([[2.0, 0, 0]])
    first = every[:, :3, 0] - torch.tensor([1.0, 0, 0])
    expected = first.abs().max().item()
    assert equivariance_error(lambda g: constant, every) == pytest.approx(expected, rel=1e-6)
    assert equivariance_error(lambda g: turned(g, constant), every) < 1e-6
    for value in (0.0, torch.nan):
        with pytest.raises(ValueError, match="not finite, or all zero"):
            equivariance_error(lambda g, value=value: constant * value, every)


def test_a_dtype_that_fails_is_reported_and_the_others_are_measured(capsys):
    def symmetry(task, model, dtype):
        if dtype == torch.float64:
            raise RuntimeError("no kernel for float64")
        assert torch.get_float32_matmul_precision() == "highest"
        return 0.25

    model = torch.nn.Linear(3, 3)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        found = dict(equivariance.errors(symmetry, None, model, CPU))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == {"float32": 0.25, "bfloat16 autocast": 0.25}
    said = capsys.readouterr().err
    assert "no equivariance error in float64: RuntimeError: no kernel for float64" in said


def lines(name):
    text = (results.FOLDER / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_sweep_records_the_errors_of_every_run_with_its_settings(here):
    generate(here / "data", train=8, others=8, workers=1)
    (here / "small.toml").write_text(RECIPE)
    planned = sweep.plan(here / "small.toml", here / "runs")
    sweep.execute(planned, lambda text: None)
    assert sweep.record_results(planned, "small") == 2
    found = lines("nbody-equivariance")
    assert {(x["model"], x["metric"], x["unit"]) for x in found} == {("gatr", "equivariance", "1")}
    told = {"steps": 2, "recipe": "small", "train_samples": 0}
    assert [x["settings"] for x in found] == [
        told | {"seed": seed, "dtype": dtype} for seed in (0, 1) for dtype in equivariance.DTYPES
    ]
    times = [x for x in lines("nbody-accuracy") if x["metric"] == "training time"]
    assert times[0]["settings"] == told | {"seed": 0}


def test_a_run_whose_data_are_gone_is_reported_and_not_recorded(here, capsys):
    config = override(runs.defaults("nbody"), ["data.folder=gone", f"folder={str(here / 'run')!r}"])
    assert not list(equivariance.lines(config, {}))
    assert "is not measured: " in capsys.readouterr().err
