"""A report says what the runs found: every number, with its spread, and what could not be read."""

import json
import math
from html.parser import HTMLParser

import pytest
import torch
from typer.testing import CliRunner

from flashgatr import LoadError
from flashgatr.experiments import cli, report, runs
from flashgatr.experiments.config import (
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
    override,
    save,
)
from flashgatr.experiments.nbody import data
from flashgatr.experiments.nbody.metrics import summarise, system_errors
from flashgatr.experiments.nbody.report import data_efficiency, trajectories
from flashgatr.experiments.nbody.report.numbers import describe_data
from flashgatr.experiments.nbody.report.titles import CAPTIONS, MODELS, short
from flashgatr.experiments.report import commands, learning_curves, plots
from flashgatr.experiments.report.collect import collect
from flashgatr.experiments.report.labels import labelled
from flashgatr.train.trainer import fingerprint

SETS = ("eval", "more_bodies", "translated", "eval_moved")
SMALL = {
    "gatr": dict(num_blocks=1, hidden_mv_channels=2, hidden_s_channels=4, num_heads=2),
    "transformer": dict(num_blocks=1, hidden_channels=8, num_heads=2),
}


def fake(
    folder,
    model="gatr",
    samples=1000,
    seed=0,
    mse=1e-3,
    options=None,
    where="gone",
    how=None,
    **train,
):
    """A run that was never trained, with these results on all sets."""
    config = RunConfig(
        folder=str(folder),
        seed=seed,
        model=ModelConfig(model, options or {}),
        data=DataConfig(folder=str(where), train_samples=samples, options=how or {}),
        train=TrainConfig(**train),
    )
    save(config, folder / "config.toml")
    metrics = dict(mse=mse, median=mse / 4, q90=mse * 2, trimmed=mse / 2, systems=8)
    names = SETS if model != "mlp" else ("eval", "translated", "eval_moved")
    results = dict.fromkeys(names, metrics)
    summary = dict(step=10, best_step=5, best_score=mse, run=fingerprint(config), results=results)
    (folder / "results.json").write_text(json.dumps(summary))
    lines = [dict(step=k, kind="validation", score=1 / k) for k in (5, 10)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return config


def write(*paths, out):
    """The JSON and the HTML of a report."""
    page = report.write(list(paths), out)
    assert page == out / "report.html"
    return json.loads(
        (out / "report.json").read_text(), parse_constant=pytest.fail
    ), page.read_text()


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the pictures: drawing takes a second, and tests of numbers and words do not need it."""
    for module in (data_efficiency, learning_curves, trajectories):
        monkeypatch.setattr(module, "draw", lambda *_: b"a picture")


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG\r\n")


def test_groups_have_the_mean_and_standard_error_over_seeds(tmp_path, undrawn):
    for seed, mse in enumerate([1e-3, 2e-3, 3e-3]):
        fake(tmp_path / f"a/{seed}", seed=seed, mse=mse)
    fake(tmp_path / "b", "mlp", samples=100, mse=0.5)
    found, page = write(tmp_path / "a", tmp_path / "b", out=tmp_path / "out")
    gatr, mlp = found["groups"]
    assert (gatr["label"], gatr["samples"], gatr["seeds"]) == ("GATr", 1000, [0, 1, 2])
    for name in SETS:
        for metric, factor in dict(mse=1, median=0.25, q90=2, trimmed=0.5).items():
            estimate = gatr["results"][name][metric]
            assert estimate["mean"] == pytest.approx(2e-3 * factor)
            assert estimate["standard_error"] == pytest.approx(1e-3 * factor / math.sqrt(3))
    assert mlp["results"]["eval"]["mse"] == {"mean": 0.5, "standard_error": None}
    assert "more_bodies" not in mlp["results"]  # an MLP takes only one number of bodies
    assert "2.00e-3 ± 6e-4" in page
    assert "5.00e-1<" in page


def test_runs_with_different_settings_are_not_averaged(tmp_path, undrawn):
    fake(tmp_path / "a", lr=1e-3, log_every=1)
    fake(tmp_path / "b", lr=1e-3, seed=1, log_every=2)  # the logging interval makes no difference
    fake(tmp_path / "c", lr=2e-3)
    fake(tmp_path / "d", "transformer", options={"x": [1, 2, 3, 4, 5]})
    fake(tmp_path / "e", "transformer", options={"x": [1, 2, 3, 4, 6]})
    fake(tmp_path / "f", "transformer")
    found, _ = write(tmp_path, out=tmp_path / "out")
    seeds = {group["label"]: group["seeds"] for group in found["groups"]}
    assert seeds == {
        "GATr, lr 0.001": [0, 1],
        "GATr, lr 0.002": [0],
        "Transformer, x [1, 2, 3, 4, 5]": [0],
        "Transformer, x [1, 2, 3, 4, 6]": [0],
        "Transformer, x default": [0],
    }


def test_labels_name_no_more_than_tells_runs_apart(tmp_path, undrawn):
    fake(tmp_path / "a", lr=1e-3, clip=1.0, ema=0.9)
    fake(tmp_path / "b", lr=2e-3, clip=2.0, ema=0.9)
    fake(tmp_path / "c", lr=4e-3, clip=2.0, ema=0.9)
    fake(tmp_path / "d", lr=4e-3, clip=2.0, ema=0.5)
    for name, kind in zip("efg", ("true", True, "word"), strict=True):
        fake(tmp_path / name, "transformer", options={"kind": kind})
    found, page = write(tmp_path, out=tmp_path / "out")
    assert [group["label"] for group in found["groups"]] == [
        "GATr, lr 0.001, ema 0.9",
        "GATr, lr 0.002, ema 0.9",
        "GATr, lr 0.004, ema 0.5",
        "GATr, lr 0.004, ema 0.9",
        'Transformer, kind "true"',
        "Transformer, kind true",
        "Transformer, kind word",
    ]
    assert "clip" in page  # with all settings


def test_what_is_told_and_what_is_usual_is_the_same(tmp_path, undrawn):
    fake(tmp_path / "a", seed=1)
    fake(tmp_path / "b", how={"scaling": 0.0})
    fake(tmp_path / "c", how={"scaling": 0})  # an integer
    found, _ = write(tmp_path, out=tmp_path / "out")
    assert [(group["label"], group["seeds"]) for group in found["groups"]] == [("GATr", [0, 1])]
    assert found["notes"][0] == f"{tmp_path / 'c'} repeats {tmp_path / 'b'} and is left out"


def test_reference_values_stand_beside_ours(tmp_path, undrawn):
    fake(tmp_path / "run")
    found, page = write(tmp_path, out=tmp_path / "out")
    assert found["reference"]["mse"]["GATr"] == 0.0005
    assert found["reference"]["source"] == "README of the authors' code"
    for name, value in dict(SEGNN="0.0006", MLP="0.0776").items():
        assert (
            f"<td>README: {name}</td><td>1,000</td><td>5,000</td><td></td><td>{value}</td>" in page
        )


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("results.json", "{"),
        ("results.json", "[1]"),
        ("results.json", '{"results": {}}'),
        ("results.json", '{"results": {"eval": 3}}'),
        ("results.json", '{"results": {"eval": {"mse": 3}}}'),
        (
            "results.json",
            '{"results": {"eval": {"mse": [], "median": 1, "q90": 1, "trimmed": 1, "systems": 1}}}',
        ),
        ("results.json", "[" * 100_000),
        ("config.toml", "seed = 'x'"),
        ("config.toml", "experiment = 'arteries'"),
        ("config.toml", b"\xff"),
    ],
)
def test_runs_that_cannot_be_read_are_listed(file, content, tmp_path, undrawn):
    fake(tmp_path / "good")
    fake(tmp_path / "bad", seed=1)
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "bad" / file).write_bytes(content)
    found, page = write(tmp_path, out=tmp_path / "out")
    assert [run["seed"] for run in found["runs"]] == [0]
    assert list(found["unreadable"]) == [str(tmp_path / "bad")]
    assert "Runs that cannot be read" in page


def test_unfinished_and_repeated_runs_and_foreign_results_are_noted(tmp_path, undrawn):
    fake(tmp_path / "a")
    fake(tmp_path / "b")
    fake(tmp_path / "c", seed=1)
    (tmp_path / "c/results.json").unlink()
    other = fake(tmp_path / "d", seed=2)
    save(override(other, ["seed=3"]), tmp_path / "d/config.toml")
    found, _ = write(tmp_path, tmp_path / "a", out=tmp_path / "out")
    assert [run["seed"] for run in found["runs"]] == [0, 3]
    assert found["notes"][:3] == [
        f"{tmp_path / 'b'} repeats {tmp_path / 'a'} and is left out",
        f"not finished yet and left out: {tmp_path / 'c'}",
        f"results of other settings or another version: {tmp_path / 'd'}",
    ]


def test_without_a_finished_run_there_is_no_report(tmp_path):
    with pytest.raises(LoadError, match=r"no finished run in .*make one with flashgatr train"):
        report.write([tmp_path], tmp_path / "out")
    with pytest.raises(LoadError, match="nowhere is not a folder"):
        report.write([tmp_path / "nowhere"], tmp_path / "out")
    fake(tmp_path / "run")
    (tmp_path / "run/results.json").write_text("")
    with pytest.raises(LoadError, match=r"results\.json holds no results"):
        report.write([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_named_folder_without_runs_is_noted(tmp_path, undrawn):
    fake(tmp_path / "runs/a")
    (tmp_path / "other").mkdir()
    found, page = write(tmp_path / "runs", tmp_path / "other", out=tmp_path / "out")
    note = f"there is no run in {tmp_path / 'other'}"
    assert note in found["notes"]
    assert note in page


def test_numbers_that_are_none_are_said_to_be_so(tmp_path):
    fake(tmp_path / "a", mse=math.nan)
    fake(tmp_path / "b", seed=1, mse=1e-3)
    fake(tmp_path / "c", "transformer", mse=math.inf)
    found, page = write(tmp_path, out=tmp_path / "out")
    assert found["groups"][0]["results"]["eval"]["mse"] == {"mean": None, "standard_error": None}
    assert found["runs"][2]["results"]["eval"]["mse"] is None
    assert "<td>not finite</td>" in page


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, text):
        self.text.append(text)


def test_the_page_is_escaped_and_needs_no_other_file(tmp_path):
    evil = "<script>alert('&')</script>$x$"
    fake(tmp_path / "<b>run", options={"x": evil})
    fake(tmp_path / "other", options={"x": "y"}, seed=1)
    fake(tmp_path / "bad<i>", seed=2)
    (tmp_path / "bad<i>/config.toml").write_text(f'seed = "{evil}"')
    _, text = write(tmp_path, out=tmp_path / "out")
    page = Page(text)
    assert not {"script", "b", "i", "link", "iframe"} & set(page.tags)
    assert evil in "".join(page.text)
    sources = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert sources
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_without_data_the_rest_is_reported_and_old_pictures_go(tmp_path):
    fake(tmp_path / "a", samples=0)
    (tmp_path / "a/log.jsonl").write_text("{}\n[]\n3\n" + '{"kind": "validation", "score": "x"}\n')
    out = tmp_path / "out"
    out.mkdir()
    for name in ("curves.png", "trajectories.png"):
        (out / name).write_text("old")
    found, page = write(tmp_path, out=out)
    assert found["groups"][0]["samples"] is None
    assert found["straight_line"] == {}
    assert sorted(path.name for path in out.iterdir()) == [
        "figure.png",
        "report.html",
        "report.json",
    ]
    for part in ("not available", "curves.png was not drawn", "trajectories.png was not drawn"):
        assert any(part in note for note in found["notes"]), part
        assert part in page


@pytest.mark.parametrize("counts", [[1000], [100, 1000], [100, 1000, 100_000], [64], [100]])
def test_any_number_of_sample_counts_can_be_drawn(counts, tmp_path):
    for n in counts:
        for model, mse in dict(gatr=1e-3, mlp=0.1, mine=0.0).items():
            fake(tmp_path / f"{model}{n}", model, n, mse=mse)
    found, _ = write(tmp_path, out=tmp_path / "out")
    assert [group["samples"] for group in found["groups"]] == counts * 3
    assert is_png(tmp_path / "out/figure.png")
    assert is_png(tmp_path / "out/curves.png")


def test_every_label_has_its_own_look():
    labels = ["GATr, lr 1", "GATr, lr 2", "Transformer", "mine"]
    looks = plots.looks(labels)
    assert list(looks) == labels
    assert len({tuple(look.values()) for look in looks.values()}) == len(labels)
    assert looks["GATr, lr 1"] == plots.looks(["GATr"])["GATr"]
    many = plots.looks([f"mine, lr {k}" for k in range(18)])
    assert len({tuple(look.values()) for look in many.values()}) == 18


LONG = [f"Transformer, augment default, orientation canonical, lr {k}" for k in range(6)]


@pytest.mark.parametrize(
    ("labels", "columns"),
    [(["GATr", "Transformer", "MLP"], 3), (LONG, 1), ([", ".join(LONG), ", ".join(LONG[::-1])], 1)],
)
def test_legends_are_within_their_figure_and_panels_keep_their_size(labels, columns):
    with plots.style():
        figure, (ax,) = plots.panels(1, (5.2, 3.2))
        plots.legend(figure, [dict(label=label) for label in labels])
        figure.draw_without_rendering()
        (legend,) = figure.legends
        shown = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
        assert shown == labels
        assert legend._ncols == columns
        assert legend.get_window_extent().x1 <= figure.bbox.x1
        assert legend.get_window_extent().y0 > ax.get_window_extent().y1
        assert ax.get_window_extent().height / figure.dpi > 2
        assert figure.get_figheight() == 3.2 or columns == 1


def test_lines_are_as_wide_as_told_and_end_after_commas():
    text = "GATr, num_blocks 1, nodes default, lr 1e-05, $x$"
    lines = plots.wrapped(text, 2, 9.5).split("\n")
    assert lines == ["GATr, num_blocks 1,", "nodes default, lr 1e-05,", r"\$x\$"]
    assert plots.wrapped("GATr", 2) == "GATr"
    assert plots.wrapped("", 2) == ""
    assert len(plots.wrapped("x" * 100, 1).split("\n")) > 4


def test_the_commands_make_the_same_run_again():
    config = RunConfig(
        seed=3,
        device="cpu",
        model=ModelConfig("transformer", {"num_blocks": 2, "s": "a'b\" $c", "t": {"u v": []}}),
        data=DataConfig("elsewhere", 100, {"k": True}),
        train=TrainConfig(steps=7, lr=1e-3, betas=(0.5, 0.9), precision="bfloat16"),
    )
    again = override(
        RunConfig(), [*commands.assignments(config), "seed=3", "data.train_samples=100"]
    )
    assert fingerprint(again) == fingerprint(config)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A GATr and a Transformer, three steps each."""
    folder = tmp_path_factory.mktemp("trained")
    data.generate(folder / "data", train=64, others=32, workers=1)
    torch.manual_seed(0)
    for model, options in SMALL.items():
        config = RunConfig(
            folder=str(folder / "runs" / model),
            device="cpu",
            model=ModelConfig(model, options),
            data=DataConfig(str(folder / "data")),
            train=TrainConfig(steps=3, batch_size=8, validate_every=1),
        )
        runs.train(config)
    return folder


def test_real_runs_are_reported_in_full(trained, tmp_path):
    arguments = ["report", str(trained / "runs"), "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.application(), arguments, catch_exceptions=False)
    assert result.output == f"wrote {tmp_path / 'report.html'}\n"
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["notes"] == []
    assert found["unreadable"] == {}
    assert [(group["label"], group["samples"]) for group in found["groups"]] == [
        ("GATr", 64),
        ("Transformer", 64),
    ]
    ours = runs.read_results(trained / "runs/gatr")["results"]
    for name in SETS:
        mean = found["groups"][0]["results"][name]["mse"]["mean"]
        assert mean == pytest.approx(ours[name]["mse"])
    assert all(is_png(tmp_path / name) for name in CAPTIONS)
    assert (tmp_path / "report.html").read_text().count("data:image/png;base64,") == 3
    assert "--train 64 --others 32 --seed 0 --preset released" in found["commands"]


def test_the_straight_line_is_computed_from_the_data(trained, tmp_path, undrawn):
    found, page = write(trained / "runs", out=tmp_path)
    systems = data.load(trained / "data", "more_bodies")
    end = systems["position"] + 0.1 * systems["velocity"]
    expected = summarise(system_errors(end, systems["target"]))
    assert found["straight_line"]["more_bodies"] == pytest.approx(expected)
    assert "straight line x₀ + v·t" in page


def test_a_folder_that_is_named_twice_is_read_once(trained):
    here, again = trained / "runs", trained / "data" / ".." / "runs"
    found = collect([here, again, here / "gatr"])
    assert len(found.runs) == len(SMALL)
    assert found.notes == []


def test_drawn_paths_end_where_the_data_say_and_models_see_them(trained):
    read = collect([trained / "runs"]).runs
    sets = describe_data(read, [])
    scenes = trajectories.scenes(labelled(read, MODELS), sets)
    targets = data.load(trained / "data", "eval")["target"].numpy()
    for scene in scenes:
        distance = abs(targets - scene.paths[-1]).max(axis=(1, 2))
        assert distance.min() < 1e-9
        assert list(scene.predictions) == ["GATr", "Transformer"]
        error = ((scene.predictions["GATr"] - targets[distance.argmin()]) ** 2).mean()
        assert scene.title.endswith(short(error, 1))
