"""The `flashgatr` command."""

import importlib.metadata
import inspect
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import flashgatr
from flashgatr.experiments import cli, demo, doctor, runs, table
from flashgatr.experiments.cli import presets
from flashgatr.experiments.nbody import EXPERIMENT, data
from flashgatr.experiments.nbody.metrics import summarise, system_errors
from flashgatr.experiments.nbody.report import data_efficiency, trajectories
from flashgatr.experiments.nbody.task import SETS
from flashgatr.experiments.report import learning_curves


def run(*arguments):
    return CliRunner().invoke(cli.application(), list(arguments))


def test_the_presets_have_the_known_numbers_of_parameters():
    assert {row.preset: row.parameters for row in presets.rows()} == {
        "nbody": 3_011_538,
        "arteries": 191_597,
        "kuka": 1_107_033,
        "scaling": 115_169,
    }


def test_parameters_prints_one_line_per_preset():
    result = run("parameters")
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if " M)" in line]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert cells == [
        ["nbody", "GATr", "10", "16", "128", "8", "multi-head x2", "3,011,538 (3.012 M)"],
        ["arteries", "GATr", "10", "8", "32", "4", "multi-query x1", "191,597 (0.192 M)"],
        ["kuka", "AxialGATr", "20", "16", "32", "8", "multi-head x1", "1,107,033 (1.107 M)"],
        ["scaling", "GATr", "10", "8", "16", "4", "multi-query x1", "115,169 (0.115 M)"],
    ]


def test_version():
    assert run("--version").output == f"flashgatr {flashgatr.__version__}\n"


def test_the_command_is_installed(monkeypatch, capsys):
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="flashgatr")
    monkeypatch.setattr(sys, "argv", ["flashgatr", "--version"])
    with pytest.raises(SystemExit) as stop:
        command.load()()
    assert not stop.value.code
    assert capsys.readouterr().out == f"flashgatr {flashgatr.__version__}\n"


@pytest.mark.parametrize("group", ["data", "predict"])
def test_without_an_experiment_help_is_shown(group):
    done = run(group)
    assert "EXPERIMENT [OPTIONS]..." in done.output
    assert "arteries" in done.output


def _options(function):
    """The defaults of a command's options; options without one are left out."""
    found = {name: x.default for name, x in inspect.signature(function).parameters.items()}
    return {k: x for k, x in found.items() if not (x is None or x is inspect.Parameter.empty)}


def test_options_have_the_known_defaults():
    for (name, kind), expected in {
        ("nbody", "data"): dict(
            folder=Path("data/nbody"), train=100_000, others=5_000, seed=0, preset="released",
            workers=0,
        ),
        ("arteries", "data"): dict(
            folder=Path("data/arteries"), division="original", verify=False, synthetic=0,
            spatial=False, workers=0,
        ),
        ("arteries", "predict"): dict(
            out=Path("predictions"), both_signs=False, inlet="auto", scale="auto",
            extensions="auto", reference="wss_reference", anchors=0, no_anchor_weights=False,
        ),
        ("kuka", "data"): dict(
            folder=Path("data/kuka"), demonstrations=11_200, seed=0, diversity=0.5, start="bent",
            workers=0,
        ),
        ("kuka", "predict"): dict(
            seed=0, turned=False, engine="mujoco", out=Path("predictions")
        ),
    }.items():  # fmt: skip
        assert _options(table.find(name).get(kind)) == expected


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_packages_the_command_says_what_to_install(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert 'pip install "flashgatr[experiments]"' in capsys.readouterr().err


def test_the_doctor_lists_versions_and_finds_this_installation_exact():
    done = run("doctor")
    assert done.exit_code == 0
    rows = dict(line.strip().split("  ", 1) for line in done.output.splitlines())
    assert rows["flashgatr"] == flashgatr.__version__
    assert rows["torch"] == torch.__version__
    assert rows["safetensors"] == importlib.metadata.version("safetensors")
    assert {"mujoco", "gymnasium", "potpourri3d", "pybullet", "huggingface-hub"} <= set(rows)
    assert rows["kernels on cpu"].startswith(("fused, C", "plain: "))
    for dtype, least, most in (("float64", 1e-17, 1e-12), ("float32", 1e-8, 2e-5)):
        error, verdict = rows[f"equivariance error, {dtype}"].split(" ")
        assert least < float(error) < most
        assert verdict == "(fine)"


def test_the_doctor_says_what_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("a-package-that-nobody-has",))
    monkeypatch.setattr(doctor, "equivariance_error", lambda *_, dtype: 1e-6)
    done = run("doctor")
    assert done.exit_code == 1
    assert "a-package-that-nobody-has  not installed" in done.output
    assert "equivariance error, float64  1.0e-06 (TOO LARGE, expected at most 1e-12)" in done.output
    assert "equivariance error, float32  1.0e-06 (fine)" in done.output


def test_the_demonstration_compares_two_models_and_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SYSTEMS", 24)
    for module in (data_efficiency, learning_curves, trajectories):
        monkeypatch.setattr(module, "draw", lambda *_: b"a picture")  # drawing takes seconds
    done = run("demo", "--folder", str(tmp_path), "--steps", "2")
    assert done.output.count("straight line") == len(SETS)
    for name in SETS:
        assert f"squared error on {name}" in done.output
    assert done.output.endswith(f"report: {tmp_path / 'report' / 'report.html'}\n")
    assert (tmp_path / "report" / "report.html").is_file()
    for name in SETS:
        assert len(data.load(tmp_path / "data", name)["mass"]) == 24
    for model in demo.MODELS:
        assert runs.read_results(tmp_path / model)["step"] == 2
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/results.json")}
    assert len(before) == 2
    results = demo.run(tmp_path, 2)  # nothing is trained again
    assert {file: file.stat().st_mtime_ns for file in before} == before
    systems = data.load(tmp_path / "data", "eval")
    end = systems["position"] + 0.1 * systems["velocity"]
    expected = summarise(system_errors(end, systems["target"]))["mse"]
    assert results["straight line"]["eval"]["mse"] == pytest.approx(expected)


def test_the_demonstration_trains_models_of_known_size(tmp_path):
    made = {name: demo.settings(name, tmp_path) for name in demo.MODELS}
    sizes = {}
    for name, config in made.items():
        model = EXPERIMENT.build(name, config.model.options)
        sizes[name] = sum(p.numel() for p in model.parameters())
        train = config.train
        assert (train.steps, train.lr, train.lr_final) == (1500, 2e-3, 2e-5)
        assert (train.log_every, train.validate_every, train.checkpoint_every) == (100, 300, 300)
        assert config.folder == str(tmp_path / name)
    assert sizes == {"gatr": 35_386, "transformer": 2_107_139}


def test_weights_are_converted(tmp_path):
    net = flashgatr.GATr.from_preset("scaling", num_blocks=1)
    given = {}

    def from_original(source):
        given["source"] = source
        return net

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashgatr.GATr, "from_original", from_original)
        done = run("convert", "weights.pt", str(tmp_path / "net"))
    assert given == {"source": Path("weights.pt")}
    assert done.output.rstrip().endswith(f"-> {tmp_path / 'net'}")
    again = flashgatr.GATr.from_pretrained(tmp_path / "net")
    for key, value in net.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
