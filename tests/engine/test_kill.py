"""`kill -9` at any instant, resume: the run ends as if nothing had happened, bit for bit."""

import json
import random
import re
import time

import pytest

from flashgatr.experiments.nbody import data

from . import victim
from .toy import lines

SETTINGS = {
    "device": "cpu",
    "model.options.num_blocks": 1,
    "model.options.hidden_mv_channels": 2,
    "model.options.hidden_s_channels": 4,
    "model.options.num_heads": 2,
    "train.steps": 40,
    "train.batch_size": 4,
    "train.lr": 1e-2,
    "train.decay_every": 7,
    "train.validate_every": 6,
    "train.checkpoint_every": 4,
    "train.log_every": 3,
    "train.ema": 0.9,
    "model.options.dropout": 0.2,
}


class Runs:
    """Runs of one configuration, and what the uninterrupted one gave."""

    def __init__(self, folder):
        self.folder, self.number = folder, 0
        data.generate(folder / "data", train=64, others=16, workers=1)
        self.start("first", kill_at=1).join()  # starts the fork server
        began = time.monotonic()
        code, output = self.go_on("whole")
        assert code == 0, output
        self.seconds = time.monotonic() - began
        self.operations = int(re.findall(r"file operations: (\d+)", output)[-1])
        self.expected = self.outcome("whole")

    def start(self, name, kill_at=0):
        changes = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.items()]
        changes.append(f"data.folder={json.dumps(str(self.folder / 'data'))}")
        command = ["train", "--resume", "--folder", str(self.folder / name)]
        for change in changes:
            command += ["--set", change]
        return victim.start(command, self.folder / f"{name}.txt", kill_at=kill_at)

    def go_on(self, name, *, kill_after=60.0, kill_at=0):
        """Run until the end or the kill; returns the exit code and what was printed so far."""
        process = self.start(name, kill_at)
        process.join(kill_after)
        process.kill()
        process.join()
        return process.exitcode, (self.folder / f"{name}.txt").read_text()

    def outcome(self, name):
        folder = self.folder / name
        weights = (folder / "model" / "model.safetensors").read_bytes()
        return weights, json.loads((folder / "results.json").read_text()), lines(folder)

    def survive(self, kills, source):
        """Kill runs so often, half of them by time, half at a file operation; all must end alike."""
        found = {"kills": 0, "inside a save": 0, "runs": 0}
        while found["kills"] < kills:
            found["runs"] += 1
            name, code = f"run-{found['runs']}", -9
            while code:
                if found["kills"] == kills:
                    code, output = self.go_on(name)
                elif source.random() < 0.5:
                    code, output = self.go_on(name, kill_after=source.uniform(0, self.seconds))
                else:
                    code, output = self.go_on(name, kill_at=source.randint(1, self.operations // 2))
                    found["inside a save"] += code == -9
                assert code in (0, -9), output
                found["kills"] += code == -9
            assert self.outcome(name) == self.expected
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def test_three_kills_change_nothing(runs):
    found = runs.survive(3, random.Random(1))
    assert found["kills"] == 3


@pytest.mark.slow
def test_fifty_kills_change_nothing(runs, capsys):
    found = runs.survive(50, random.Random(0))
    with capsys.disabled():
        print(f"\n{found}")
