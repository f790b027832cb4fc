"""The wheel installs beside torch and safetensors alone, and the README's example runs there."""

import importlib.metadata
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from flashgatr.kernels.cpu import library as c_kernels

ROOT = Path(__file__).parents[2]


def _closure(names):
    """Distributions that the named ones need to run, themselves included."""
    found, queue = set(), list(names)
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        queue += [re.match(r"[\w.-]+", r)[0] for r in requires if "extra ==" not in r]
    return found


def _link_distributions(names, target):
    for name in names:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files}:
            source = Path(distribution.locate_file(top))
            if top not in ("..", "__pycache__") and source.exists() and not (target / top).exists():
                (target / top).symlink_to(source)


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory):
    """A Python with torch, safetensors, what they need, and our wheel: nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("flashgatr-*.whl")
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    _link_distributions(_closure(["torch", "safetensors"]), site)
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    return folder / "env" / "bin" / "python"


def _run(python, code, **options):
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd=python.parent, **options
    )


def test_the_readme_example_runs_with_torch_and_safetensors_alone(clean_python):
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    done = _run(clean_python, example)
    assert done.returncode == 0, done.stderr
    missing = _run(clean_python, "import numpy")
    assert "ModuleNotFoundError" in missing.stderr


@pytest.mark.skipif(c_kernels.library() is None, reason="there is no C compiler")
def test_the_wheel_brings_the_kernels(clean_python):
    code = "from flashgatr.kernels.cpu.library import library; print(len(library()))"
    assert _run(clean_python, code, check=True).stdout.strip() == "2"


def test_import_is_light(clean_python):
    code = (
        "import torch, sys; before = set(sys.modules); from flashgatr import *; "
        "print(*(set(sys.modules) - before))"
    )
    added = _run(clean_python, code, check=True).stdout.split()
    foreign = {name.partition(".")[0] for name in added} - set(sys.stdlib_module_names)
    assert foreign <= {"flashgatr", "torch"}


def test_the_command_says_what_to_install(clean_python):
    done = _run(clean_python, "from flashgatr.experiments.cli import main; main()")
    assert done.returncode == 1
    assert "flashgatr[experiments]" in done.stderr
