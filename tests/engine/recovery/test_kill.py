"""Kill a run with `kill -9` at any time and resume it: it ends as if uninterrupted, bit for bit."""

import itertools
import json
import random
import time

import pytest

from flashgatr.experiments.nbody import data

from .. import victim
from ..toy import lines

SETTINGS = dict(
    train__steps=40,
    train__lr=1e-2,
    train__decay_every=7,
    train__validate_every=6,
    train__checkpoint_every=4,
    train__log_every=3,
    train__ema=0.9,
    model__options__dropout=0.2,
)


class Runs:
    """Runs of one configuration, and what the uninterrupted one gave."""

    def __init__(self, folder):
        self.folder = folder
        data.generate(folder / "data", train=64, others=16, workers=1)
        self.start("first", kill_at=1).join(60)  # starts the fork server
        began = time.monotonic()
        code, output = self.go_on("whole")
        assert code == 0, output
        self.seconds = time.monotonic() - began
        self.operations = int((self.folder / "whole.points").read_text())
        self.expected = self.outcome("whole")

    def start(self, name, **kill):
        command = ["train", "--resume", "--folder", str(self.folder / name)]
        command += victim.changes(data__folder=str(self.folder / "data"), **SETTINGS)
        return victim.start(command, self.folder / f"{name}.txt", **kill)

    def go_on(self, name, *, kill_after=60.0, **kill):
        """Run until the end or the kill; returns the exit code and what was printed so far."""
        process = self.start(name, **kill)
        process.join(kill_after)
        process.kill()
        process.join()
        output = self.folder / f"{name}.txt"
        return process.exitcode, output.read_text() if output.exists() else ""

    def outcome(self, name):
        folder = self.folder / name
        weights = (folder / "model" / "model.safetensors").read_bytes()
        return weights, json.loads((folder / "results.json").read_text()), lines(folder)

    def leftovers(self, name):
        return set((self.folder / name / "checkpoints").glob(".*"))

    def survive(self, kills, source):
        """Kill runs this many times, at random; all must end with the same results."""
        ways = itertools.cycle(
            [
                lambda: dict(kill_at=source.randint(1, 150), in_saves=True),
                lambda: dict(kill_after=source.uniform(0, self.seconds)),
                lambda: dict(kill_at=source.randint(1, self.operations)),
            ]
        )
        found = dict(kills=0, inside_a_save=0, runs=0)
        while found["kills"] < kills:
            found["runs"] += 1
            name, code = f"{found['runs']} of {kills} kills", -9
            while code:
                way = next(ways)() if found["kills"] < kills else {}
                before = self.leftovers(name)
                code, output = self.go_on(name, **way)
                assert code in (0, -9), output
                found["kills"] += code == -9
                found["inside_a_save"] += bool(self.leftovers(name) - before)
            assert self.outcome(name) == self.expected
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def test_three_kills_change_nothing(runs):
    """The first one, at a fixed operation of a save, leaves an unfinished checkpoint behind."""
    assert runs.survive(3, random.Random(2))["inside_a_save"]


@pytest.mark.slow
def test_fifty_kills_change_nothing(runs, capsys):
    found = runs.survive(50, random.Random(0))
    with capsys.disabled():
        print(f"\n{found}: all ended bit-identical")
    assert found["inside_a_save"] >= 10
