"""The examples run from end to end."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments, cwd):
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_centre_of_mass_trains_checks_moves_saves_and_reloads(tmp_path):
    output = run("centre_of_mass.py", "--steps", "8", cwd=tmp_path)
    assert "prediction for the moved scene" in output
    assert "the same prediction, bit for bit" in output
    files = sorted(file.name for file in (tmp_path / "runs" / "centre_of_mass").iterdir())
    assert files == ["config.json", "model.safetensors"]


def test_view_writes_a_picture(tmp_path):
    run("view.py", "view.png", cwd=tmp_path)
    assert (tmp_path / "view.png").read_bytes().startswith(b"\x89PNG")


def test_chirality_is_exact_before_it_is_trained(tmp_path):
    output = run("chirality.py", "--steps", "2", cwd=tmp_path)
    assert "every logit changes its sign, no distance changes, bit for bit" in output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_chirality_is_learned_within_400_steps(tmp_path, seed):
    output = run("chirality.py", "--seed", str(seed), cwd=tmp_path)
    assert float(output.split("told correctly: ")[1].split("%")[0]) > 99


def force_error(output):
    """The last error that examples/energy.py prints, relative to that of zero forces."""
    return float(output.splitlines()[-1].split("error ")[1].split()[0])


def test_energy_runs(tmp_path):
    assert force_error(run("energy.py", "--steps", "3", cwd=tmp_path)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_energy_learns_forces_within_500_steps(tmp_path, seed):
    assert force_error(run("energy.py", "--seed", str(seed), cwd=tmp_path)) < 0.1
