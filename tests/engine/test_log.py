"""The log of a run."""

import errno
import math
from unittest import mock

import pytest

from flashgatr.train import log as log_module
from flashgatr.train.log import Log, read

from .toy import lines, train


def test_the_log_forgets_steps_that_are_run_again(tmp_path):
    with Log(tmp_path, 9) as log:
        for step in (1, 2, 3):
            log.record(step, "train", {"loss": 0.1 * step})
    with Log(tmp_path, 9, start=2) as log:
        log.record(3, "train", {"loss": math.inf})
    assert [(x["step"], x["loss"]) for x in read(tmp_path)] == [(1, 0.1), (2, 0.2), (3, None)]


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 2, "ki', b"\xff\xfe\n", b"5\n", b'{"step": "x"}\n', b"[" * 9999 + b"\n", b"{}\n",
        b"\0\0\0",
    ],
)  # fmt: skip
def test_damaged_lines_of_the_log_are_left_out(tmp_path, damage):
    with Log(tmp_path, 9) as log:
        log.record(1, "train", {"loss": 0.5})
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(damage)
    assert [x["step"] for x in read(tmp_path)] == [1]
    with Log(tmp_path, 9, start=1) as log:
        log.record(2, "train", {"loss": 0.5})
    assert [x["step"] for x in read(tmp_path)] == [1, 2]


def test_a_log_that_nobody_reads_any_more_does_not_stop_the_run(tmp_path):
    with mock.patch("sys.stderr") as stderr:
        stderr.isatty.return_value = False
        stderr.write.side_effect = BrokenPipeError(errno.EPIPE, "Broken pipe")
        train(tmp_path, steps=2)
    assert [line["step"] for line in lines(tmp_path, "train")] == [1, 2]


def test_a_terminal_gets_a_progress_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    train(tmp_path, steps=3, validate_every=1, toy=dict(poison={1: math.nan}))
    shown = " ".join(capsys.readouterr().err.split())
    assert "3/3" in shown
    assert "validation score" in shown
    assert "not finite, update skipped" in shown


def test_other_processes_than_the_first_write_nothing(tmp_path, capsys):
    with Log(tmp_path / "quiet", 9, quiet=True) as log:
        log.record(1, "train", {"loss": 1.0})
        log.say("hello")
        log.sync()
    assert not (tmp_path / "quiet").exists()
    assert capsys.readouterr() == ("", "")


def test_time_goes_on_where_a_run_was_stopped(tmp_path, monkeypatch):
    """Also if the second process needs longer for its first line than the first one ran."""
    now = [100.0]
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now[0])
    for start, later in ((0, 5.0), (1, 40.0)):
        with Log(tmp_path, 9, start=start) as log:
            now[0] += later
            log.record(start + 1, "train", {"loss": 1.0})
        now[0] += 1000  # nothing runs
    assert log_module.seconds(tmp_path) == 45.0
