"""A run says how long it will take, and when its validation tells nothing."""

import math
import re

import pytest

from flashgatr.train import log as log_module
from flashgatr.train.log import Log

from .toy import lines, train

# ---- the time left ----


@pytest.fixture
def clock(monkeypatch):
    """The time, which passes only when a test says so."""
    now = [100.0]
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now[0])
    return now


def test_a_long_run_tells_the_time_left_before_its_first_record(tmp_path, clock, capsys):
    with Log(tmp_path, 50_000) as log:
        for step in range(1, 10):
            clock[0] += 60 if step == 1 else 3  # the first step compiles
            log.show_progress(step)
        assert capsys.readouterr().err.splitlines() == ["step       5/50000  (72 s, 41.7 h left)"]
        clock[0] += 3
        log.record(10, "train", {"loss": 0.5})
        assert "41.7 h left)" in capsys.readouterr().err


def test_short_runs_print_no_further_line(tmp_path, capsys):
    train(tmp_path, log_every=20)
    assert len(capsys.readouterr().err.splitlines()) == 5  # four validations, one record


def test_a_progress_bar_shows_the_time_left_from_the_second_step_on(
    tmp_path, clock, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Log(tmp_path, 5000, start=1000) as log:
        for step in (1001, 1002):
            clock[0] += 2
            log.show_progress(step)
        log._bar.refresh()
    shown = re.sub(r"\x1b\[[0-9;?]*\w", "", capsys.readouterr().err)
    assert "1002/5000" in shown
    assert "2.2 h left" in shown


def test_names_in_square_brackets_are_shown_beside_a_progress_bar(tmp_path, capsys, monkeypatch):
    """rich would take them for markup."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Log(tmp_path, 10) as log:
        log.record(1, "train", {"[red]": 0.5})
        log._bar.refresh()
        log.record(2, "validation", {"[/green]": 0.5})
    shown = re.sub(r"\x1b\[[0-9;?]*\w", "", capsys.readouterr().err)
    assert "[red] 0.5" in shown
    assert "[/green] 0.5" in shown


# ---- scores that are not numbers ----


def test_a_run_whose_score_is_never_a_number_says_so_at_once_and_at_the_end(tmp_path, capsys):
    summary = train(tmp_path, toy=dict(scores=[math.nan] * 4)).summary
    told = capsys.readouterr().err
    assert (summary["best_score"], summary["best_step"]) == (None, 0)
    assert told.index("step 5: warning: the validation score is nan") < told.index("step       6/")
    assert told.count("warning: the validation score") == 4
    assert told.count("warning") == 5  # four of these, each told once, and one at the end
    assert "no validation had a finite score, so there are no best weights" in told
    warned = [(line["step"], line["score"]) for line in lines(tmp_path, "warning")]
    assert warned == [(5, None), (10, None), (15, None), (20, None)]


def test_a_score_of_minus_infinity_is_no_best_one(tmp_path, capsys):
    summary = train(tmp_path, toy=dict(scores=[-math.inf, 2.0, 1.0, -math.inf])).summary
    assert (summary["best_score"], summary["best_step"]) == (1.0, 15)
    assert [line["step"] for line in lines(tmp_path, "warning")] == [5, 20]


def test_a_score_that_is_a_number_later_counts(tmp_path, capsys):
    summary = train(tmp_path, toy=dict(scores=[math.nan, 2.0, 1.0, math.inf])).summary
    told = capsys.readouterr().err
    assert (summary["best_score"], summary["best_step"]) == (1.0, 15)
    assert [line["step"] for line in lines(tmp_path, "warning")] == [5, 20]
    assert "no best weights" not in told
