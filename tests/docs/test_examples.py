"""The examples run from end to end."""

import subprocess
import sys
from pathlib import Path

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
