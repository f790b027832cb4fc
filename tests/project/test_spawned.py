"""Worker processes are spawned: a forked one would inherit torch's threads and locks, and can hang.

The default of Python 3.11 on Linux is to fork.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "flashgatr"
FILES = [file for file in sorted(SOURCE.rglob("*.py")) if "multiprocessing" in file.read_text()]


def name_of(call):
    return ast.unparse(call.func).split(".")[-1]


def bare_pools(text):
    """Calls that start processes in Python's default way."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    for call in calls:
        given = [ast.unparse(x) for x in (*call.args, *(k.value for k in call.keywords))]
        is_pool = name_of(call) in ("ProcessPoolExecutor", "Pool")
        if is_pool and "get_context('spawn')" not in given:
            yield ast.unparse(call)
        if name_of(call) == "get_context" and given != ["'spawn'"]:
            yield ast.unparse(call)
        if name_of(call) == "Process" and not ast.unparse(call.func).startswith("context."):
            yield ast.unparse(call)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_processes_are_spawned(file):
    assert not list(bare_pools(file.read_text()))


def test_forked_processes_would_be_found():
    for text in (
        "ProcessPoolExecutor(4)",
        "ProcessPoolExecutor(4, mp_context=get_context('fork'))",
        "get_context()",
        "multiprocessing.Pool(3)",
        "multiprocessing.Process(target=run)",
    ):
        assert list(bare_pools(text)), text
    assert len(FILES) >= 6
