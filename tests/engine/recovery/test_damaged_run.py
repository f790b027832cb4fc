"""A run of which every checkpoint is damaged."""

import subprocess
import sys

from flashgatr.experiments.nbody import data

from ..victim import changes


def test_the_command_ends_with_code_2_and_deletes_nothing(tmp_path):
    data.generate(tmp_path / "data", train=16, others=8, workers=1)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "flashgatr", "train", "-f", str(run), "--resume"]
    command += changes(data__folder=str(tmp_path / "data"), train__steps=2)
    subprocess.run(command, check=True, capture_output=True)
    weights = list(run.glob("checkpoints/step-*/model.safetensors"))
    assert weights
    for file in weights:
        file.write_bytes(file.read_bytes()[:-1])
    before = sorted(run.rglob("*"))
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2, found.stderr
    assert "error: no checkpoint in" in found.stderr
    assert "Traceback" not in found.stderr
    assert sorted(run.rglob("*")) == before
