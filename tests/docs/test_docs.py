"""The documentation is true: its code, links, maps of the source and options."""

import re
import shutil
import sys
import tomllib
import warnings
from dataclasses import fields
from pathlib import Path
from typing import get_args

import matplotlib
import pytest
import torch
import typer
from matplotlib import pyplot
from typer.testing import CliRunner

from flashgatr import GATrConfig, versors
from flashgatr.experiments import cli, config, table
from flashgatr.experiments.arteries.task import Options as ArteryOptions
from flashgatr.experiments.bench import NAMES
from flashgatr.experiments.cli import presets
from flashgatr.experiments.robotics.options import Options as KukaOptions
from flashgatr.train import identity, toml

from .pages import PAGES, ROOT, section

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


matplotlib.use("Agg")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder with the file of weights that the pages mention.

    One thread is enough: small tensors gain nothing from more, and wait for them on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights = ROOT / "tests" / "goldens" / "gatr_multi_query.safetensors"
    shutil.copy(weights, tmp_path / "original.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "_files", {})  # a page's own experiment is known there only
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    pyplot.close("all")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page, folder):
    """All blocks of a page, in order, in one namespace."""
    torch.manual_seed(0)
    text = page.read_text()
    if "torch_geometric" in text:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it scripts modules when it is imported
            pytest.importorskip("torch_geometric")
    if "import gymnasium" in text:
        pytest.importorskip("gymnasium")
        pytest.importorskip("mujoco")
    namespace = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(page), "exec"), namespace)


def test_every_block_of_python_is_found():
    """A fence with options, or an indented one, would otherwise be skipped silently."""
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


def test_the_map_shows_the_source_files_and_no_others():
    shown, folders = set(), {}
    for line in section("architecture", "The source, in reading order").splitlines():
        if match := re.fullmatch(r"( {4,})([\w/]+(?:/|\.py|\.c))(?: .*)?", line):
            depth = len(match[1])
            folders = {d: name for d, name in folders.items() if d < depth}
            if match[2].endswith("/"):
                folders[depth] = match[2]
            else:
                shown.add("".join([*folders.values(), match[2]]))
    files = (f for f in (ROOT / "src" / "flashgatr").rglob("*") if f.suffix in (".py", ".c"))
    paths = {str(file.relative_to(ROOT)) for file in files if file.name != "__init__.py"}
    assert shown - {"src/flashgatr/__init__.py"} == paths


def test_the_reference_names_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    source = (ROOT / "src" / "flashgatr" / "__init__.py").read_text()
    public = re.findall(r"^ *from .* import .* as ([A-Za-z]\w+)$", source, re.MULTILINE)
    assert len(public) > 40
    for name in public:
        assert re.search(rf"\b{name}$", text, re.MULTILINE), name


@pytest.mark.parametrize("module", ["train", "functional"])
def test_the_reference_names_every_public_name_of_a_module(module):
    text = (ROOT / "docs" / "api.md").read_text().partition(f"## flashgatr.{module}\n")[2]
    source = (ROOT / "src" / "flashgatr" / module / "__init__.py").read_text()
    public = re.findall(r"^from .* import .* as ([A-Za-z]\w+)$", source, re.MULTILINE)
    assert len(public) > 12
    for name in public:
        assert re.search(rf"(:: |\.|, ){name}$", text, re.MULTILINE), name


def test_the_page_shows_what_the_command_counts():
    text = (ROOT / "docs" / "parameters.md").read_text()
    for row in presets.rows():
        line = rf"^{row.preset} .*{row.network.__name__} .* {row.parameters:,} "
        assert re.search(line, text, re.MULTILINE), row.preset


# ---- the command line ----


def _default(option):
    if option.is_flag:
        return "off"
    if isinstance(option.show_default, str):
        return f"`{option.show_default}`"
    return "" if option.default is None else f"`{option.default}`"


def _subcommands():
    """All commands, those of experiments under `data NAME` and `predict NAME`."""
    every = typer.main.get_command(cli.application())
    for name in every.list_commands(None):
        command = every.commands[name]
        yield name, command
        for experiment in getattr(command, "list_commands", lambda context: [])(None):
            yield f"{name} {experiment}", command.get_command(None, experiment)


def test_the_page_has_every_subcommand_with_its_options_and_defaults():
    commands = dict(_subcommands())
    titles = re.findall(r"^####? ([\w ]+)$", section("cli", "Subcommands"), re.MULTILINE)
    assert titles == [*commands]
    for name, command in commands.items():
        if hasattr(command, "list_commands"):
            continue
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        rows = [f"{', '.join(f'`{x}`' for x in p.opts)} | {_default(p)}".strip() for p in options]
        found = re.findall(r"^\| (`-.*?) *\|[^|]*\|$", section("cli", name), re.MULTILINE)
        assert found == rows, name
    for name in NAMES:
        assert f"`{name}`" in section("cli", "bench")


def test_the_page_has_every_setting_with_its_default():
    fixed = identity(
        config.override(config.RunConfig(), ["model.start=x", "train.eps=1e-20"])
    ).keys()
    tables = {"The run": config.RunConfig}
    for part in (config.ModelConfig, config.DataConfig, config.TrainConfig):
        tables[f"[{part.table}]"] = part
    for title, part in tables.items():
        rows = []
        for field in fields(part):
            value = getattr(part(), field.name)
            if not isinstance(value, config.Section):
                key = part.path(field.name)
                value = list(value) if isinstance(value, tuple) else value
                mark = "" if key in fixed else " °"
                rows.append(f"`{key}`{mark} | `{toml.literal(value)}`")
        assert re.findall(r"^\| (`.*?) \|[^|]*\|$", section("cli", title), re.MULTILINE) == rows


@pytest.mark.parametrize("options", [ArteryOptions, KukaOptions])
def test_options_of_an_experiment_are_listed_with_their_defaults(options):
    name = "arteries" if options is ArteryOptions else "kuka"
    rows = [
        f"`data.options.{field.name}` | `{toml.literal(field.default)}`"
        for field in fields(options)
    ]
    text = section("cli", f"Options of {name}")
    assert re.findall(r"^\| (`.*?) \|[^|]*\|$", text, re.MULTILINE) == rows


def test_the_page_on_checks_names_every_kind_of_motion():
    (kinds,) = re.findall(
        r"^`group` chooses the motions: (.*?)\.$",
        (ROOT / "docs" / "testing.md").read_text(),
        re.M | re.S,
    )
    assert re.findall('`"(.*?)"`', kinds) == [*get_args(versors.Kind)]


def test_the_tutorial_is_a_file_that_the_commands_take(folder):
    """Its blocks up to the commands are forces.py; then every `flashgatr` line runs."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    file, _, rest = text.partition("## From data to report")
    Path("forces.py").write_text("\n\n".join(BLOCK.findall(file)))
    (recipe,) = re.findall(r"^```toml\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    Path("recipe.toml").write_text(recipe)
    lines = re.findall(r"^(flashgatr [^#\n]*)", section("tutorial", "From data to report"), re.M)
    assert [line.split()[1] for line in lines] == [
        "data",
        "train",
        "train",
        "eval",
        "report",
        "sweep",
    ]
    for line in lines:
        few = ["--set", "train.steps=3"] if "sweep" in line else []
        done = CliRunner().invoke(cli.application(), [*line.split()[1:], *few])
        assert done.exit_code == 0, f"{line}: {done.output} {done.exception}"
    assert (Path("report") / "report.html").is_file()
    assert len(list(Path("runs/widths").glob("*/results.json"))) == 6


@pytest.mark.parametrize("name", [name for name in table.BUILT_IN if name != "arteries"])
def test_the_table_of_settings_names_every_model(name):
    """But for the variants of arteries, which have a page."""
    (row,) = re.findall(r"^\| `model.name` \|.*", section("cli", "[model]"), re.M)
    (models,) = re.findall(rf"{'n-body' if name == 'nbody' else name}: (.*?)(?:;| \|)", row)
    assert set(re.findall(r"`(\w+)`", models)) == set(table.find(name).get("models"))


def test_the_page_has_every_recipe():
    text = section("cli", "Recipes")
    assert set(re.findall(r"^\| `(recipes/\S+)`", text, re.MULTILINE)) == {
        str(file.relative_to(ROOT)) for file in (ROOT / "recipes").iterdir()
    }


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").iterdir()), ids=lambda file: file.stem)
def test_the_page_tells_how_long_a_recipe_trains(file):
    (row,) = re.findall(rf"^\| `recipes/{file.name}` \| (.*) \|$", section("cli", "Recipes"), re.M)
    steps = tomllib.loads(file.read_text())["run"]["train"]["steps"]
    told = re.findall(r"([\d,]+) steps", row)
    assert not told or told == [f"{steps:,}"]


def test_every_option_of_a_network_is_explained():
    """The quickstart sends readers to the text of GATrConfig for all options."""
    text = GATrConfig.__doc__
    for field in fields(GATrConfig):
        name = re.sub(r"^(in|out|hidden)(?=_(mv|s)_channels$)", "in/out/hidden", field.name)
        assert re.search(rf"(?<!\w){name}\b[^.\n]*:", text), field.name
