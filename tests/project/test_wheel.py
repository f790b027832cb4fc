"""From the built files alone, outside the source tree: wheel, PyPI's page and sdist."""

import email
import importlib.metadata
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def call(*command, **options):
    """What a command prints; a failure shows what it said."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and an sdist."""
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist"]
    call(*build, "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """Variables for which Python finds flashgatr in an otherwise empty folder."""
    target = tmp_path_factory.mktemp("target")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    call(*pip, "--target", target, wheel)
    return {**os.environ, "PYTHONPATH": str(target)}


@pytest.fixture
def flashgatr(environment, tmp_path):
    """Runs the command in an empty folder, from the wheel."""
    script = Path(environment["PYTHONPATH"]) / "bin" / "flashgatr"
    place = "import flashgatr; print(flashgatr.__file__)"
    found = call(sys.executable, "-c", place, cwd=tmp_path, env=environment).strip()
    assert Path(found).is_relative_to(script.parents[2])
    return lambda line: call(sys.executable, script, *line.split(), cwd=tmp_path, env=environment)


def write_tube(file, around=16, along=40):
    """A straight vessel of 4 cm with a stenosis, open at both ends, as an STL file."""

    def point(i, j):
        radius = 0.15 - 0.04 * math.exp(-((j / along - 0.5) ** 2) / 0.01)
        angle = 2 * math.pi * (i % around) / around
        x, y, z = radius * math.cos(angle), radius * math.sin(angle), 4 * j / along
        return f"vertex {x:.6f} {y:.6f} {z:.6f}"

    facets = []
    for i in range(around):
        for j in range(along):
            a, b, c, d = point(i, j), point(i + 1, j), point(i, j + 1), point(i + 1, j + 1)
            facets += [(a, b, c), (b, d, c)]
    head, tail = "facet normal 0 0 0\nouter loop", "endloop\nendfacet"
    text = "\n".join("\n".join([head, *facet, tail]) for facet in facets)
    file.write_text(f"solid tube\n{text}\nendsolid tube\n")


def test_predict_with_the_shipped_network(flashgatr, tmp_path):
    write_tube(tmp_path / "vessel.stl")
    flashgatr("predict arteries pretrained:arteries vessel.stl --inlet 1 --device cpu")
    written = {file.suffix for file in (tmp_path / "predictions").iterdir()}
    assert written >= {".vtp", ".png"}


def test_sweep_a_shipped_recipe(flashgatr, tmp_path):
    flashgatr("data nbody --train 32 --others 8 --workers 1")
    small = "train.steps=2 train.batch_size=4 data.train_samples=32 device=cpu "
    small += "train.cuda_graph=false model.options.num_blocks=1"
    changes = " ".join(f"--set {change}" for change in small.split())
    flashgatr(f"sweep recipe:nbody_readme --only model.name=gatr --only seed=0 {changes}")
    results = tmp_path / "runs" / "sweep" / "name-gatr_seed-0" / "results.json"
    assert json.loads(results.read_text())["step"] == 2


def test_the_program_of_the_readme_runs(environment, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    call(sys.executable, "-c", program, cwd=tmp_path, env=environment)


def test_the_wheel_has_every_recipe_and_trained_run(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    for folder in ("recipes", "pretrained"):
        own = [f.relative_to(ROOT) for f in (ROOT / folder).rglob("*") if f.is_file()]
        assert own
        assert {f"flashgatr/experiments/{file.as_posix()}" for file in own} <= names


def metadata(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(files.read(name))


def test_links_on_the_page_of_pypi_are_absolute(built):
    """They are those of README.md, which has relative ones; images are linked as raw files."""
    here = (ROOT / "README.md").read_text()
    page = metadata(built).get_payload(decode=True).decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    start = project["urls"]["Repository"]
    expected = [
        link
        if "://" in link
        else f"{start}/{'raw' if link.endswith('.png') else 'blob'}/main/{link}"
        for link in LINK.findall(here)
    ]
    assert LINK.findall(page) == expected
    assert sum(link.startswith(start) for link in expected) > 20
    assert page.partition("## Use")[2][:300] == here.partition("## Use")[2][:300]


def test_the_page_of_pypi_says_where_the_project_is(built):
    urls = dict(line.split(", ") for line in metadata(built).get_all("Project-URL"))
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert metadata(built)["Description-Content-Type"] == "text/markdown"


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory):
    """The sdist, unpacked."""
    (archive,) = built.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def test_the_sdist_has_every_file_of_the_repository(unpacked):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    tracked = call("git", "ls-files", cwd=ROOT).splitlines()
    missing = [
        name for name in tracked if (ROOT / name).exists() and not (unpacked / name).exists()
    ]
    assert not missing


def test_tests_are_collected_from_the_unpacked_sdist(unpacked):
    variables = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    collected = call(*collect, cwd=unpacked, env=variables)
    assert int(re.search(r"(\d+) tests collected", collected)[1]) > 1000


def test_an_editable_install_keeps_one_copy_of_recipes():
    """The source tree's own files are used; nothing is copied beside the link to it."""
    files = importlib.metadata.distribution("flashgatr").files
    if any(str(file).endswith(".pth") for file in files):
        assert not [file for file in files if "recipes" in file.parts]
