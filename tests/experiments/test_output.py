"""Full disks, outputs without Unicode, and the bar of progress."""

import io
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest

from flashgatr.experiments.console import LONG, progress_bar, show_table
from flashgatr.io import files


@contextmanager
def files_of_at_most(count):
    """Writing more than `count` bytes to a file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    (tmp_path / "a.vtp").write_bytes(b"before")
    with pytest.raises(OSError, match=r"too large: '.*/a\.vtp'") as caught, files_of_at_most(100):
        files.write(tmp_path / "a.vtp", bytes(1000))
    assert caught.value.filename == str(tmp_path / "a.vtp")
    assert (tmp_path / "a.vtp").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_there_is_reported_with_the_name_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/a\.vtp'"):
        files.write(tmp_path / "none" / "a.vtp", b"")


def test_square_brackets_in_names_are_printed(capsys):
    """rich would take them for markup: it swallows [red] and fails at [/x]."""
    show_table("patient [red]", ["set", "error [/x]"], [["[val]", "[bold]1.0"]])
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("patient [red]", "error [/x]", "[val]", "[bold]1.0"))


SAY = """
import importlib, typer
from flashgatr.experiments.console import show_table

def invoked(**options):
    typer.echo("wrote Gefäß.vtp")
    show_table("Gefäß 血管", ["", "found"], [["ε", "1 dyn/cm²"]])

application = importlib.import_module("flashgatr.experiments.cli.application")
application.application = lambda: invoked
application.main()
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_beyond_the_outputs_encoding_are_printed_as_escapes(encoding):
    done = subprocess.run(
        [sys.executable, "-c", SAY],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 0, done.stderr
    title = {"ascii": r"Gef\xe4\xdf \u8840", "latin-1": r"Gefäß \u8840"}.get(encoding, "Gefäß 血管")
    assert title.encode(encoding) in done.stdout
    assert b".vtp" in done.stdout  # click writes UTF-8 itself where the output is ASCII


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_of_progress_is_for_terminals_and_many_items(monkeypatch):
    for stream, total, shown in ((_Terminal(), LONG, True), (_Terminal(), 9, False)):
        monkeypatch.setattr(sys, "stderr", stream)
        show = progress_bar("points")
        show(total // 2, total)
        show(total, total)
        lines = stream.getvalue().split("\r")[1:]
        assert len(lines) == 2 * shown
        if shown:
            assert lines == [
                f"[{15 * '='}{15 * ' '}] 10,000 of 20,000 points",
                f"[{30 * '='}] 20,000 of 20,000 points\n",
            ]
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress_bar("points")(LONG, LONG)
    assert not sys.stderr.getvalue()
