"""Names of the package are imported on first use; help and version need no torch."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import flashgatr

HEAVY = ("torch", "numpy", "scipy", "h5py", "matplotlib", "safetensors")


def python(code, *arguments):
    """What a new process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "data --help",
        "data nbody --help",
        "data arteries --help",
        "predict arteries --help",
        "train --help",
        "sweep --help",
        "demo --help",
    ],
)
def test_help_and_version_import_no_torch(line):
    code = (
        "import sys\nfrom flashgatr.experiments.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        f"print('loaded:', *[name for name in {HEAVY} if name in sys.modules])"
    )
    output = python(code, *line.split())
    assert output.splitlines()[-1].split() == ["loaded:"]
    assert "Usage" in output or flashgatr.__version__ in output


def test_a_star_import_keeps_the_standard_io():
    code = "import io\nfrom flashgatr import *\nprint(io.StringIO('kept').read(), GATr, ops)"
    assert python(code).startswith("kept <class 'flashgatr.model.GATr'>")


def test_type_checkers_and_python_know_the_same_names():
    """The block for type checkers names the same sources as the table."""
    tree = ast.parse(Path(flashgatr.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: getattr(import_module("." + (node.module or ""), "flashgatr"), alias.name)
        for node in block.body
        for alias in node.names
    }
    assert typed == {name: getattr(flashgatr, name) for name in flashgatr.__all__}
    assert len(typed) > 40


def test_dir_has_every_name_before_its_first_use():
    listed = python("import flashgatr; print(*dir(flashgatr))").split()
    assert {*flashgatr.__all__, "io", "kernels", "__version__"} <= set(listed)
    assert "TYPE_CHECKING" not in listed
    assert all(hasattr(flashgatr, name) for name in listed)


def test_modules_are_attributes_without_an_import_of_their_own():
    code = "import flashgatr as f; print(f.io.LoadError is f.LoadError, f.ops.__name__)"
    assert python(code).split() == ["True", "flashgatr.ops"]
    assert inspect.ismodule(flashgatr.nn)


def test_unknown_names_are_errors_of_the_usual_kind():
    with pytest.raises(AttributeError, match="module 'flashgatr' has no attribute 'GATR'"):
        flashgatr.GATR  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'GATR'"):
        from flashgatr import GATR  # noqa: F401
