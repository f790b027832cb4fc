"""The documentation is true: its code runs, its links lead somewhere, its maps show what there is."""

import re
import shutil
import warnings
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib import pyplot

from flashgatr.experiments import cli

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")

matplotlib.use("Agg")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with the file of weights that the pages speak of."""
    weights = ROOT / "tests" / "goldens" / "gatr_multi_query.safetensors"
    shutil.copy(weights, tmp_path / "original.safetensors")
    monkeypatch.chdir(tmp_path)
    yield
    pyplot.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page, folder):
    """All blocks of a page, in order, in one namespace."""
    torch.manual_seed(0)
    text = page.read_text()
    if "torch_geometric" in text:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it scripts modules when it is imported
            pytest.importorskip("torch_geometric")
    namespace = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(page), "exec"), namespace)


def test_every_block_of_python_is_found():
    """A fence with options, or an indented one, would be skipped in silence."""
    for page in PAGES:
        text = page.read_text()
        assert len(BLOCK.findall(text)) == len(re.findall(r"```\s*\{?py", text)), page.name
    assert sum(len(BLOCK.findall(page.read_text())) for page in PAGES) > 20


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_links_lead_to_files(page):
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_map_names_every_source_file():
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "flashgatr"
    for file in source.rglob("*.py"):
        if file.relative_to(source).parts[0] != "experiments" and file.name != "__init__.py":
            assert f" {file.name} " in text, f"docs/architecture.md does not mention {file.name}"


def test_the_reference_names_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    source = (ROOT / "src" / "flashgatr" / "__init__.py").read_text()
    public = re.findall(r"^from .* import .* as (\w+)$", source, re.MULTILINE)
    assert len(public) > 40
    for name in public:
        assert re.search(rf"\b{name}$", text, re.MULTILINE), name


def test_the_page_shows_what_the_command_counts():
    text = (ROOT / "docs" / "parameters.md").read_text()
    for row in cli.rows():
        line = rf"^{row.preset} .*{row.network.__name__} .* {row.parameters:,} "
        assert re.search(line, text, re.MULTILINE), row.preset
