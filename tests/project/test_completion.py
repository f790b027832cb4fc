"""The tab key completes subcommands, options and experiments, in a real bash."""

import os
import shutil
import subprocess
import sys

import pytest

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")
ASK = """
source "$HOME/.bash_completions/flashgatr.sh"
COMP_WORDS=({line}) COMP_CWORD={last}
_flashgatr_completion flashgatr
echo "${{COMPREPLY[*]}}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """Runs a script in bash, with `flashgatr` installed and an own home folder."""
    home = tmp_path_factory.mktemp("home")
    command = home / "flashgatr"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flashgatr "$@"\n')
    command.chmod(0o755)
    path = f"{home}{os.pathsep}{os.environ['PATH']}"

    def run(script):
        (home / "script").write_text(script)
        return subprocess.run(
            [BASH, home / "script"],
            env={**os.environ, "HOME": str(home), "PATH": path},
            cwd=home,
            capture_output=True,
            text=True,
        )

    installed = run("flashgatr --install-completion\ntrue")  # the shell lives on: it is detected
    assert "bash completion installed" in installed.stdout, installed.stderr
    assert "flashgatr.sh" in (home / ".bashrc").read_text()
    return run


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flashgatr swe", {"sweep"}),
        ("flashgatr data ''", {"nbody", "arteries", "kuka", "charges", "flows"}),
        ("flashgatr predict art", {"arteries"}),
        ("flashgatr data nbody --pre", {"--preset"}),
        ("flashgatr train nb", {"nbody"}),
        ("flashgatr train --res", {"--resume"}),
    ],
)
def test_the_tab_key_completes(bash, line, expected):
    done = bash(ASK.format(line=line, last=len(line.split()) - 1))
    assert set(done.stdout.split()) == expected
    assert not done.stderr


def test_the_tab_key_runs_no_file_and_prints_no_error(bash, tmp_path):
    file, mark = tmp_path / "own.py", tmp_path / "mark"
    file.write_text(f"open({str(mark)!r}, 'w')")
    for name in (file, "unknown"):
        done = bash(ASK.format(line=f"flashgatr data {name} --pre", last=3))
        assert not done.stderr
        assert done.stdout.split() == []
    assert not mark.exists()


def test_the_completion_is_shown(bash):
    shown = bash("flashgatr --show-completion\ntrue")
    assert "_FLASHGATR_COMPLETE=complete_bash" in shown.stdout
