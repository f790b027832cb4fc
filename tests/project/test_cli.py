"""The `flashgatr` command."""

import sys
from importlib.metadata import entry_points

import pytest
from typer.testing import CliRunner

import flashgatr
from flashgatr.experiments import cli
from flashgatr.experiments.cli import presets


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
    (command,) = entry_points(group="console_scripts", name="flashgatr")
    monkeypatch.setattr(sys, "argv", ["flashgatr", "--version"])
    with pytest.raises(SystemExit) as stop:
        command.load()()
    assert not stop.value.code
    assert capsys.readouterr().out == f"flashgatr {flashgatr.__version__}\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_packages_the_command_says_what_to_install(missing, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert 'pip install "flashgatr[experiments]"' in capsys.readouterr().err
