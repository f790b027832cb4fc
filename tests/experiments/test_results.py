"""Recorded measurements say which source they are of."""

import subprocess

import pytest

from flashgatr.experiments import results


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with a source file and a file of results."""
    monkeypatch.delenv("FLASHGATR_COMMIT", raising=False)
    for name in ("src/model.py", "benchmarks/results/speed.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}\n")
    who = "-c", "user.name=a", "-c", "user.email=a@b.c"
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_the_commit_is_marked_if_the_source_has_changed(checkout):
    commit = results._commit(checkout / "src")
    assert len(commit) == 12
    assert set(commit) <= set("0123456789abcdef")
    (checkout / "src" / "model.py").write_text("changed\n")
    assert results._commit(checkout / "src") == f"{commit}-dirty"


def test_results_of_the_same_command_do_not_mark_it(checkout):
    """Every line after the first one would be marked otherwise."""
    commit = results._commit(checkout / "src")
    (checkout / "benchmarks" / "results" / "speed.jsonl").write_text("{}\n{}\n")
    assert results._commit(checkout / "src") == commit


def test_outside_a_checkout_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.delenv("FLASHGATR_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert results._commit(tmp_path) == "unknown"
    monkeypatch.setenv("FLASHGATR_COMMIT", "given")
    assert results._commit(tmp_path) == "given"
