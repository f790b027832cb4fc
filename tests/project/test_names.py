"""The generic code mentions no experiment: neither its name nor its kind of samples."""

import re
from pathlib import Path

import flashgatr
from flashgatr.experiments import table

ROOT = Path(flashgatr.__file__).parent
EXPERIMENTS = ROOT / "experiments"
MAY_NAME_THEM = {"table.py", "demo.py"}
CONTENT = [
    "n-body", "artery", "arterial", "mesh", "meshes", "vessel", "vessels", "systems", "bodies",
    "planet", "planets",
]  # fmt: skip
ALLOWED = {"train/distributed.py": {"mesh"}}
"""A device mesh of torch.distributed."""


def generic_files():
    """`train`, the command, the report, and the files directly in `experiments`."""
    for folder in ("train", "experiments/cli", "experiments/report"):
        yield from (file for file in (ROOT / folder).glob("*") if file.is_file())
    yield from (file for file in EXPERIMENTS.glob("*.py") if file.name not in MAY_NAME_THEM)


def named(text):
    """Names of experiments in a text, also within longer words, and words for their content."""
    parts = [name for name in table.BUILT_IN if name in text.lower()]
    return {*parts, *(word for word in CONTENT if re.search(rf"\b{word}\b", text.lower()))}


def test_generic_code_names_no_experiment():
    files = list(generic_files())
    assert len(files) > 20
    found = {}
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        words = named(file.read_text()) - ALLOWED.get(path, set())
        if words:
            found[path] = sorted(words)
    assert not found


def test_a_name_would_be_found():
    assert named("class NBodyTask") == {"nbody"}
    assert named("the n-body task on meshes") == {"n-body", "meshes"}
    assert named("a system without locks, somebody") == set()


def test_every_experiment_has_a_folder_of_its_own():
    folders = {module.removeprefix("flashgatr.experiments.") for module in table.BUILT_IN.values()}
    assert folders == {"nbody", "arteries", "robotics", "charges", "flows"}
    for folder in folders:
        assert (EXPERIMENTS / folder / "__init__.py").is_file()
