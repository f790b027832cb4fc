"""The tutorial's program, pasted as it stands, in processes of its own.

It can be started twice at once (the second one is refused), interrupted, resumed, started again
when it is finished, and started by torchrun.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUIET = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts the program, in one folder for all tests or in that of the given name."""
    folder = tmp_path_factory.mktemp("tutorial")
    text = (ROOT / "docs" / "tutorial.md").read_text()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}

    def start(*launcher, name="alone"):
        here = folder / name
        here.mkdir(exist_ok=True)
        (here / "train.py").write_text("\n\n".join(BLOCK.findall(text)))
        command = [sys.executable, *launcher, "train.py"]
        process = subprocess.Popen(command, cwd=here, env=environment, **QUIET)
        process.folder = here
        return process

    return start


def finish(process, seconds=200):
    """The exit code, and what the program printed."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output


def results(output):
    """What the program prints at the end; two processes may write on one line."""
    (found,) = set(re.findall(r"\{'mse'[^}]*\}", output))
    return found


def wait_for_a_record(folder, seconds=100):
    log, end = folder / "runs" / "forces" / "log.jsonl", time.monotonic() + seconds
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_one_process_trains_at_a_time_and_is_interrupted_and_resumed_and_started_again(start):
    first = start()
    try:
        wait_for_a_record(first.folder)
        first.send_signal(signal.SIGSTOP)  # it goes on when the second one has ended
        code, output = finish(start())
        assert code == 1, output
        assert "ConfigError: another process is training in runs/forces; wait for it" in output
        first.send_signal(signal.SIGINT)
        first.send_signal(signal.SIGCONT)
        code, output = finish(first)
        assert code == 130, output
        assert "a checkpoint is saved" in output
    finally:
        first.kill()
    code, resumed = finish(start())
    assert code == 0, resumed
    assert "resumed at step" in resumed
    code, again = finish(start())
    assert code == 0, again
    assert results(again) == results(resumed)


def test_torchrun_starts_it_with_two_processes_and_again(start):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, output = finish(start(*launcher, name="two"))
    assert code == 0, output
    code, again = finish(start(*launcher, name="two"))
    assert code == 0, again
    assert results(again) == results(output)
