"""The documentation is true: its code, links, maps of the source, options and measured figures."""

import json
import re
import shutil
import statistics
import sys
import tomllib
import warnings
from dataclasses import fields
from pathlib import Path

import matplotlib
import pytest
import torch
import typer
from matplotlib import pyplot
from typer.testing import CliRunner

from flashgatr.experiments import cli, config, table
from flashgatr.experiments.arteries.report.titles import REFERENCE as ARTERIES
from flashgatr.experiments.bench import NAMES, numerics, scaling
from flashgatr.experiments.cli import presets
from flashgatr.experiments.nbody import data
from flashgatr.experiments.nbody.report.titles import REFERENCE
from flashgatr.experiments.nbody.simulate import PRESETS, Gravity
from flashgatr.train import identity, toml

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
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


def section(page, title):
    """The part of a page below a heading, up to the next one of the same or a higher level."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    found = re.search(rf"^(#+) {re.escape(title)}$\n", text, re.MULTILINE)
    assert found, f"docs/{page}.md has no section {title!r}"
    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest


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
    fixed = identity(config.override(config.RunConfig(), ["model.start=x"])).keys()
    tables = {"The run": config.RunConfig}
    for part in (config.ModelConfig, config.DataConfig, config.TrainConfig):
        tables[f"[{part.table}]"] = part
    for title, part in tables.items():
        rows = []
        for field in fields(part):
            value = getattr(part(), field.name)
            if not isinstance(value, config.Section):
                key = part._path(field.name)
                value = list(value) if isinstance(value, tuple) else value
                mark = "" if key in fixed else " °"
                rows.append(f"`{key}`{mark} | `{toml.literal(value)}`")
        assert re.findall(r"^\| (`.*?) \|[^|]*\|$", section("cli", title), re.MULTILINE) == rows


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


# ---- measured figures ----


def measured(benchmark, metric, *, model="gatr", machine="", unchanged=False, **settings):
    """The latest value in benchmarks/results that was recorded with these settings.

    unchanged: only runs of a recipe without changes other than those in `settings`.
    """
    lines = (ROOT / "benchmarks" / "results" / f"{benchmark}.jsonl").read_text().splitlines()
    for line in map(json.loads, reversed(lines)):
        told = {**line["settings"], "metric": line["metric"], "model": line["model"]}
        wanted = {**settings, "metric": metric, "model": model}
        if "optimizer" in told and "optimizer" not in settings:
            continue  # measured without an optimiser, so not a training step
        if unchanged and any("." in key and key not in settings for key in told):
            continue
        if machine in line["machine"] and wanted.items() <= told.items():
            return line["value"]
    raise AssertionError(f"benchmarks/results/{benchmark}.jsonl has no {metric} for {settings}")


def _row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


METRICS = ("mse", "median", "q90", "trimmed")
NETWORKS = {"gatr": "GATr", "transformer": "Transformer", "mlp": "MLP"}
PLACES = {
    "eval": "`eval`",
    "eval_moved": "`eval`, moved",
    "more_bodies": "`more_bodies`",
    "translated": "`translated`",
}


ROBUST = {"data.options.huber": 0.01, "data.options.scaling": 0.3}


def _seeds(metric, model="gatr", where="eval", recipe="nbody_readme", **more):
    """The results of three runs of the recipe, one per seed."""
    if recipe == "nbody_robust":
        more = more or ROBUST
    chosen = dict(recipe=recipe, set=where, machine="H200", **more)
    return [measured("nbody-accuracy", metric, model=model, seed=k, **chosen) for k in range(3)]


def beside_the_readme():
    for name, theirs in REFERENCE["mse"].items():
        model = {v: k for k, v in NETWORKS.items()}.get(name)
        ours = "–", "–"
        if model:
            values = _seeds("mse", model)
            ours = _mean_and_all(values)
        yield _row(name, f"{theirs:.4f}", *ours)
    label = "GATr, [our recipe](#a-better-recipe)"
    yield _row(label, "–", *_mean_and_all(_seeds("mse", recipe="nbody_robust")))


def _mean_and_all(values):
    return f"{statistics.mean(values):.5f}", ", ".join(f"{x:.5f}" for x in values)


def on_all_sets():
    for model, name in NETWORKS.items():
        for where, place in PLACES.items():
            if model == "mlp" and where == "more_bodies":
                yield _row(name, place, *"––––")
            else:
                means = (statistics.mean(_seeds(metric, model, where)) for metric in METRICS)
                yield _row(name, place, *(f"{x:.2e}" for x in means))


def _limits(metric, **settings):
    return measured("nbody-limits", metric, recipe="nbody_readme", seed=0, set="eval", **settings)


ENCOUNTERS = {
    (0, 0.003): (30, "below 0.003"),
    (0.003, 0.01): (37, "0.003 to 0.01"),
    (0.01, 0.03): (70, "0.01 to 0.03"),
    (0.03, 0.1): (280, "0.03 to 0.1"),
    (0.1, None): (4583, "0.1 and more"),
}


def by_encounter():
    for (low, high), (systems, label) in ENCOUNTERS.items():
        chosen = dict(closest_from=low, closest_to=high, systems=systems)
        share, mse = _limits("share of mse", **chosen), _limits("mse", **chosen)
        yield _row(label, f"{systems:,}", f"{100 * share:.1f} %", f"{mse:.2e}")


def by_the_worst():
    for worst in (1, 5, 10, 50):
        yield _row(worst, f"{100 * _limits('share of mse', worst=worst):.0f} %")


def of_the_labels():
    fine = [
        measured("nbody-labels", metric, model="fine integration", set="eval", finer=200)
        for metric in METRICS
    ]
    yield _row("leapfrog, 200 times finer steps", *(f"{x:.2e}" for x in fine))
    yield _row("GATr, mean of three seeds", *(f"{statistics.mean(_seeds(m)):.2e}" for m in METRICS))


SOFTENED = {
    0.003: "softened below 0.003",
    0.01: "softened below 0.01",
    0.1: "softened below 0.1",
    1.0: "none (softened below 1)",
}


def of_softened_gravity():
    for distance, label in SOFTENED.items():
        found = [
            measured("nbody-labels", metric, model="softened", set="eval", distance=distance)
            for metric in METRICS
        ]
        yield _row(label, *(f"{x:.1e}" for x in found))


def _figure(metric, model, samples, where, recipe="nbody_figure"):
    """The mean over the seeds of a point of the n-body figure."""
    seeds = (0,) if model == "mlp" else (0, 1)
    chosen = dict(recipe=recipe, train_samples=samples, set=where, machine="H200")
    found = [measured("nbody-accuracy", metric, model=model, seed=k, **chosen) for k in seeds]
    return statistics.mean(found)


def of_the_figure():
    lines = [(model, name, "nbody_figure") for model, name in NETWORKS.items()]
    lines.insert(1, ("gatr", "GATr, our recipe", "nbody_figure_ours"))
    for model, name, recipe in lines:
        for samples in (100, 1000, 10_000, 100_000):
            cells = [
                "–"
                if model == "mlp" and where == "more_bodies"
                else f"{_figure(metric, model, samples, where, recipe):.2e}"
                for where, metric in FIGURE_COLUMNS
            ]
            yield _row(name, f"{samples:,}", *cells)


FIGURE_COLUMNS = (
    ("eval", "mse"),
    ("eval", "median"),
    ("eval", "trimmed"),
    ("more_bodies", "mse"),
    ("translated", "mse"),
)


def of_our_recipe():
    for recipe in ("nbody_readme", "nbody_robust"):
        for where, place in PLACES.items():
            means = (statistics.mean(_seeds(m, where=where, recipe=recipe)) for m in METRICS)
            yield _row(f"`{recipe}`", place, *(f"{x:.2e}" for x in means))


def of_its_parts():
    for huber, loss in ((0.0, "squared error"), (0.01, "robust")):
        for spread, systems in ((0.0, "as they are"), (0.3, "of random size")):
            parts = {"data.options.huber": huber, "data.options.scaling": spread}
            means = (statistics.mean(_seeds(m, recipe="nbody_robust", **parts)) for m in METRICS)
            yield _row(loss, systems, *(f"{x:.2e}" for x in means))


def of_the_steps():
    same = dict(machine="H200", batch=64, items=4, compile=False)
    for model, name in NETWORKS.items():
        times = (
            measured("nbody-step", "time", model=model, cuda_graph=graph, precision=how, **same)
            for graph, how in ((False, "float32"), (True, "float32"), (True, "tf32"))
        )
        yield _row(name, *(f"{x:.2f}" for x in times))


def _times(benchmark, model, **settings):
    """The latest time for each combination of settings."""
    lines = (ROOT / "benchmarks" / "results" / f"{benchmark}.jsonl").read_text().splitlines()
    return {
        json.dumps(line["settings"], sort_keys=True): line["value"]
        for line in map(json.loads, lines)
        if line["metric"] == "time"
        and line["model"] == model
        and settings.items() <= line["settings"].items()
        and "H200" in line["machine"]
    }.values()


def of_the_speed():
    """If a network was measured in several ways, the fastest counts."""

    def row(label, benchmark, digits, gatr, both):
        ours = min(_times(benchmark, "gatr", **gatr, **both))
        theirs = min(_times(benchmark, "transformer", **both))
        return _row(label, *(f"{x:,.{digits}f} ms" for x in (ours, theirs)))

    yield row(
        "n-body training step with Adam (64 × 4 bodies, TF32 products)",
        "nbody-step", 2, {}, dict(precision="tf32"),
    )  # fmt: skip
    yield row("one n-body system, no gradients", "inference-latency", 2, {}, dict(batch=1))
    yield row(
        "arteries, forward + backward (8 × 7,000 vertices, bfloat16)",
        "artery-step", 1, dict(width_factor=1), {},
    )  # fmt: skip
    for items, digits in ((256, 2), (2048, 2), (16384, 1), (131072, 0)):
        both = dict(n_items=items, checkpointing=False)
        label = f"scaling, 4 × {items:,} items"
        yield row(label, "scaling", digits, dict(width_factor=1), both)


def of_the_precision():
    for dtype in ("float64", "float32", "bfloat16 autocast"):
        for recenter in (True, False):
            errors = (
                measured(
                    "equivariance", "invariant error, max/std", machine="H200",
                    dtype=dtype, recenter=recenter, distance=distance,
                )
                for distance in (0.0, 1e2, 1e3, 1e4)
            )  # fmt: skip
            yield _row(dtype, "yes" if recenter else "no", *(f"{x:.1e}" for x in errors))


def of_the_numerics():
    """Errors of both paths, the worst ratio of all sizes."""
    for network, name in (("nbody", "n-body"), ("arteries", "arteries")):
        for precision, label in (
            ("float32", "float32"),
            ("tf32", "TF32"),
            ("bfloat16", "bfloat16"),
        ):
            cells = []
            for metric in ("forward error", "gradient error"):
                plain, fused = (
                    [
                        measured(
                            "numerics", metric, machine="H200", network=network,
                            precision=precision, items=items, path=path,
                        )
                        for items in numerics.SIZES
                    ]
                    for path in numerics.PATHS
                )  # fmt: skip
                worst = max(y / x for x, y in zip(plain, fused, strict=True))
                cells += [f"{max(plain):.1e}", f"{max(fused):.1e}", f"{worst:.2f}"]
            yield _row(name, label, *cells)


ORIENTATIONS = ("random", "canonical")
OURS = dict(recipe="arteries_ours", steps=20_000)
SHORT = dict(recipe="arteries_paper_short", steps=2000)
FEW = dict(recipe="arteries_ablations_ours", steps=6000)


def _artery(metric, model="gatr", split="test", orientation="random", train_meshes=800, **more):
    chosen = dict(orientation=orientation, train_meshes=train_meshes, machine="H200", seed=0)
    if split:
        chosen["split"] = split
    return measured("arteries-accuracy", metric, model=model, unchanged=True, **chosen, **more)


def beside_the_paper():
    columns = [(m, o) for o in ORIENTATIONS for m in ("gatr", "transformer")]
    paper = ARTERIES["epsilon"]
    cells = (paper[NETWORKS[m]][ORIENTATIONS.index(o)] for m, o in columns)
    yield _row("the paper, with 1,600 meshes", "all", "200,000", *cells)
    some = [f"{_artery('epsilon_mean', m, **SHORT):.2f}" for m in ("gatr", "transformer")]
    yield _row("the paper's schedule, shortened", "all", "2,000", *some, "–", "–")
    for label, split in (("our recipe", "test"), ("the same, tested in float32", "test_float32")):
        some = (_artery("epsilon_mean", m, split, o, **OURS) for m, o in columns)
        yield _row(label, "1,024", "20,000", *(f"{x:.2f}" for x in some))


def of_our_artery_runs():
    digits = dict(epsilon_mean=2, epsilon_median=2, epsilon_q75=2, nmae=2, cosine=4)
    for orientation in ORIENTATIONS:
        for model in ("gatr", "transformer"):
            found = {k: _artery(k, model, orientation=orientation, **OURS) for k in digits}
            cells = (f"{found[k]:.{n}f}" for k, n in digits.items())
            yield _row(NETWORKS[model], orientation, *cells)


WIDE = {
    "model.options": dict(length_scale=0.1, hidden_mv_channels=16, hidden_s_channels=64),
    "train.lr": 3e-3,
}
LONG = {"steps": 60_000, "train.validate_every": 5000}


def of_changes_to_our_recipe():
    def options(**own):
        return {"data.options": dict(nodes=1024, orientation="random") | own}

    turned = LONG | options(augment=True)
    named = {
        "our recipe": {},
        "60,000 steps": LONG,
        "60,000 steps, `data.options.augment=true`": turned,
        "`data.options.nodes=2048`, `train.lr=7e-3`": options(nodes=2048) | {"train.lr": 7e-3},
        '`data.options.loss="epsilon"`': options(loss="epsilon"),
        "**twice the width**": WIDE,
        'twice the width, `data.options.loss="epsilon"`': WIDE | options(loss="epsilon"),
        "Transformer, 60,000 steps, `data.options.augment=true`": turned | {"model": "transformer"},
    }
    for label, changes in named.items():
        splits = ("test", "test_float32", "val")
        cells = (_artery("epsilon_mean", split=x, **OURS | changes) for x in splits)
        yield _row(label, *(f"{x:.2f}" for x in cells))


def test_the_sentence_about_the_time_of_training_is_true():
    text = " ".join(section("arteries_results", "Beside the paper's").split())
    assert f"20,000 steps take {_artery('training time', split='', **OURS):.0f} s" in text


def of_moved_arteries():
    for orientation in ORIENTATIONS:

        def of(metric, split, at=orientation):
            return _artery(metric, split=split, orientation=at, **OURS)

        still = of("epsilon_mean", "test")
        cells = []
        for split, style in (("test_moved", ".1e"), ("test_mirrored", ".1%")):
            cells += [f"{of('change_max', split):{style}}".replace("%", " %")]
            cells += [f"{of('epsilon_mean', split) - still:+.3f}"]
        yield _row(orientation, *cells)


def by_training_meshes():
    for model in ("gatr", "transformer"):
        cells = [
            _artery("epsilon_mean", model, train_meshes=n, recipe="arteries_sizes_ours", steps=6000)
            for n in (100, 200, 400)
        ]
        cells.append(_artery("epsilon_mean", model, **FEW))  # the ablations' runs are the same
        yield _row(NETWORKS[model], *(f"{x:.2f}" for x in cells))


def test_with_100_meshes_it_is_better_than_a_transformer_with_800():
    for text in (
        (ROOT / "README.md").read_text(),
        section("arteries_results", "With fewer meshes"),
    ):
        words = " ".join(text.split())
        assert re.search(
            "100 meshes,? GATr is better than (the|a) Transformer (trained on|with) 800", words
        )
        assert "at the same steps" in words.lower()  # with more of them a Transformer comes close
    gatr, transformer = (row.split(" | ") for row in by_training_meshes())
    assert float(gatr[1]) < float(transformer[4].rstrip(" |"))


def of_the_ablations():
    for model, theirs in ARTERIES["ablations"].items():
        ours = _artery("epsilon_mean", model, "val", **FEW)
        yield _row(f"`{model}`", f"{ours:.2f}", f"{theirs:.1f}")


def _unequal(metric, model, ragged=True, **width):
    items = "real meshes" if ragged else 7000
    chosen = dict(machine="H200", ragged=ragged, items=items, **width)
    return measured("artery-ragged", metric, model=model, **chosen)


def of_unequal_meshes():
    labels = {
        "GATr, width factor 1": dict(model="gatr", width_factor=1),
        "GATr, width factor 2": dict(model="gatr", width_factor=2),
        "Transformer": dict(model="transformer"),
    }
    for label, which in labels.items():
        fixed, own = (_unequal("time per 1,000 items", ragged=x, **which) for x in (False, True))
        memory = _unequal("memory", **which) / 1024
        cells = f"{fixed:.3f} ms", f"{own:.3f} ms", f"{own / fixed:.2f}", f"{memory:.1f} GiB"
        yield _row(label, *cells)


@pytest.mark.parametrize(
    ("page", "title", "rows"),
    [
        ("nbody", "Beside the authors' README", beside_the_readme),
        ("nbody", "On all sets", on_all_sets),
        ("nbody", "A better recipe", of_our_recipe),
        ("nbody", "A better recipe", of_its_parts),
        ("nbody", "What it costs", of_the_steps),
        ("fast", "What it costs", of_the_speed),
        ("fast", "Is it exact?", of_the_numerics),
        ("nbody", "Which systems", by_encounter),
        ("nbody", "Which systems", by_the_worst),
        ("nbody", "What the labels are worth", of_the_labels),
        ("nbody", "What the labels are worth", of_softened_gravity),
        ("nbody", "The paper's figure", of_the_figure),
        ("precision", "Measured", of_the_precision),
        ("arteries_results", "Beside the paper's", beside_the_paper),
        ("arteries_results", "Beside the paper's", of_our_artery_runs),
        ("arteries_results", "Longer and wider", of_changes_to_our_recipe),
        ("arteries_results", "Moved and mirrored", of_moved_arteries),
        ("arteries_results", "With fewer meshes", by_training_meshes),
        ("arteries_results", "Ablations", of_the_ablations),
        ("arteries_results", "What it costs", of_unequal_meshes),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_the_tables_are_those_of_the_results(page, title, rows):
    assert "\n".join(rows()) in section(page, title)


def test_the_sentences_about_the_gpu_are_true():
    text = " ".join((ROOT / "docs" / "fast.md").read_text().split())
    same = dict(machine="H200", precision="tf32", cuda_graph=False, path="fused")
    assert f"took {measured('nbody-step', 'first_call', **same):.1f} s" in text
    assert f"step takes {measured('nbody-step', 'time', **same):.1f} ms without" in text
    shares = [
        measured("scaling", "memory", width_factor=1, **case)
        / measured("scaling", "memory", model="transformer", **case)
        for case in (dict(machine="H200", n_items=n, checkpointing=False) for n in scaling.SIZES)
    ]
    assert f"between {min(shares):.2f} and {max(shares):.2f} times the Transformer's" in text


def test_the_sentence_about_loading_is_true():
    text = " ".join(section("arteries_results", "What it costs").split())
    which = dict(model="gatr", width_factor=1)
    host, own = (_unequal(f"{x}time per 1,000 items", **which) for x in ("host ", ""))
    assert f"the host {host:.3f} ms of these {own:.3f} ms" in text


def facts_of_the_readme():
    """What the README's table of measured facts shows: one row of figures each."""
    few, many = (
        _figure("mse", model, samples, "eval")
        for model, samples in (("gatr", 100), ("transformer", 100_000))
    )
    yield f"{few:.1e}", f"{many:.1e}, a Transformer trained on 100,000"
    ours, theirs = (_artery("epsilon_mean", m, **OURS) for m in ("gatr", "transformer"))
    yield f"{ours:.2f} %", f"{theirs:.2f} %, a Transformer trained for as many steps"
    step = next(row.split(" | ") for row in of_the_speed() if "Adam" in row)
    authors = measured("libraries", "time", model="gatr", machine="H200")
    yield (
        step[1],
        f"{step[2].removesuffix(' |')}, a Transformer; {authors:.0f} ms, the authors' code",
    )
    far = dict(dtype="float32", distance=1e4, machine="H200")
    with_, without = (
        measured("equivariance", "invariant error, max/std", recenter=x, **far)
        for x in (True, False)
    )
    yield f"{with_:.1e}", f"{without:.1e} without recentring"


def test_the_readme_has_the_latest_figures():
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| \*\*\w+\*\*: .* \| (.*) \| (.*) \|$", text, re.MULTILINE)
    facts = list(facts_of_the_readme())
    assert [ours for ours, _ in rows] == [ours for ours, _ in facts]
    for (_, shown), (_, expected) in zip(rows, facts, strict=True):
        assert shown.startswith(expected)
    scaling_row = next(row.split(" | ") for row in of_the_speed() if "16,384" in row)
    ours, theirs = scaling_row[1], scaling_row[2].removesuffix(" |")
    sentence = f"4 × 16,384 items take {ours}, where a Transformer of the same width takes {theirs}"
    assert sentence in " ".join(text.split())


def test_the_sentence_about_the_cpu_is_true():
    text = " ".join((ROOT / "docs" / "fast.md").read_text().split())
    lines = [
        json.loads(x)
        for x in (ROOT / "benchmarks" / "results" / "cpu-step.jsonl").read_text().splitlines()
    ]
    found = {
        (x["model"], x["metric"]): x["value"]
        for x in lines
        if x["settings"]["statistic"] == "median"
    }
    assert f"take {found['gatr', 'ratio']:.2f} times as long" in text
    ours, theirs = found["gatr", "time"], found["transformer", "time"]
    assert f"{ours:.1f} ms and {theirs:.1f} ms" in text


def test_the_sentences_about_the_results_are_true():
    text = " ".join((ROOT / "docs" / "nbody.md").read_text().split())
    sets = [_limits("mse", data_seed=k) for k in range(10)]
    mean, deviation = statistics.mean(sets), statistics.stdev(sets)
    assert f"{mean:.2e} with a standard deviation of {deviation:.2e}" in text
    assert f"from {min(sets):.2e} to {max(sets):.2e}" in text
    assert f"{_limits('mse', data_seed=0):.2e} on the set of the table" in text
    moved = max(
        abs(there / here - 1)
        for here, there in zip(_seeds("mse"), _seeds("mse", where="eval_moved"), strict=True)
    )
    assert f"by {moved:.0e} of itself at most" in text
    close = list(ENCOUNTERS.items())[:2]
    share = sum(
        _limits("share of mse", closest_from=low, closest_to=high) for (low, high), _ in close
    )
    systems = sum(number for _, (number, _) in close)
    assert f"{systems} systems of 5,000 hold {100 * share:.0f} % of the squared error" in text
    between = sum(_limits("share of mse", closest_from=low) for low in (0.01, 0.03))
    assert f"hold {100 * between:.1f} % of the squared error" in text
    fine = measured("nbody-labels", "trimmed", model="fine integration", finer=200)
    ours = statistics.mean(_seeds("trimmed", recipe="nbody_robust"))
    assert f"a factor of {ours / fine:.1f} above" in text
    alone = {"data.options.huber": 0.01, "data.options.scaling": 0.0}
    for chosen in (alone, ROBUST):
        with_it = statistics.mean(_seeds("median", recipe="nbody_robust", **chosen))
        neither = dict.fromkeys(ROBUST, 0.0)
        factor = statistics.mean(_seeds("median", recipe="nbody_robust", **neither)) / with_it
        assert f"by a factor of {factor:.1f}" in text
    more, same = (statistics.mean(_seeds("median", where=w)) for w in ("more_bodies", "eval"))
    assert f"median grows by a factor of {more / same:.0f}" in text
    mse, trimmed = (statistics.mean(_seeds(m, recipe="nbody_robust")) for m in ("mse", "trimmed"))
    assert mse <= 5e-4  # the README's
    assert (
        f"of the systems it is {trimmed:.2e}, so that these alone hold {1 - trimmed / mse:.0%}"
        in text
    )
    rate = measured("simulator-rate", "rate", model="gravity", workers=2)
    assert f"{rate / 1000:.0f},000 systems per second" in text


def test_the_sentences_about_the_figure_are_true():
    text = " ".join(section("nbody", "The paper's figure").split())
    few, many, ours_too = 100, 100_000, "nbody_figure_ours"
    for metric in ("mse", "median"):
        ours, theirs = (
            _figure(metric, "gatr", few, "eval"),
            _figure(metric, "transformer", many, "eval"),
        )
        assert f"{ours:.1e}" in text
        assert f"{theirs:.1e}" in text
        assert ours < theirs  # with a thousandth of the systems
    factor = _figure("median", "transformer", many, "eval") / _figure("median", "gatr", few, "eval")
    assert f"median is {factor:.0f} times smaller" in text
    best = _figure("mse", "gatr", many, "eval")
    assert f"With 100,000 systems GATr's `mse` is {best:.2e}" in text
    for samples in (1000, many):
        median, trimmed = (
            _figure(m, "gatr", samples, "eval") / _figure(m, "gatr", samples, "eval", ours_too)
            for m in ("median", "trimmed")
        )
        assert f"median by a factor of {median:.1f} and `trimmed` by {trimmed:.1f}" in text


def test_the_page_describes_the_data_and_the_models():
    text = section("nbody", "The data")
    for name, values in PRESETS.items():
        settings = Gravity(**values)
        row = name, settings.steps, settings.step_size, settings.integrator, settings.time
        assert _row(f"`{row[0]}`", row[1], f"{row[2]:g}", f"`{row[3]}`", f"{row[4]:g}") in text
    for name, changes in data.SETS.items():
        count = 100_000 if name == "train" else 5_000
        assert f"| `{name}` | {count:,} | {Gravity(**changes).bodies} |" in text
    text = section("nbody", "The models")
    for model, name in NETWORKS.items():
        with torch.device("meta"):
            network = table.find("nbody").build(model, {})
        number = sum(p.numel() for p in network.parameters())
        assert re.search(rf"^\| {name} \|.*\| {number:,} \|$", text, re.MULTILINE), (name, number)
