"""The measured figures in the documentation are the latest ones."""

import json
import re
import statistics

import pytest
import torch

from flashgatr.experiments import table
from flashgatr.experiments.bench import scaling
from flashgatr.experiments.charges.report import PUBLISHED
from flashgatr.experiments.nbody import data
from flashgatr.experiments.nbody.simulate import PRESETS, Gravity

from .anchored_tables import (
    CASES,
    cost,
    full_attention,
    of_a_cpu,
    of_a_gpu,
    of_anchors,
    of_flows,
    recorded,
    the_distances_of_the_vessel,
)
from .artery_tables import (
    FINE,
    OURS,
    artery,
    beside_the_paper,
    by_training_meshes,
    of_changes_to_our_recipe,
    of_fine_meshes,
    of_moved_arteries,
    of_our_artery_runs,
    of_unequal_meshes,
    prepared,
    unequal,
)
from .charges_tables import of_equivariant_models, of_our_results, without_a_network
from .kuka_tables import (
    STEPS,
    of_few_steps,
    of_the_choice,
    of_the_expert,
    of_the_harness,
    of_the_networks,
    of_the_rewards,
    of_the_step,
)
from .measured import NETWORKS, measured, table_row
from .nbody_tables import (
    ENCOUNTERS,
    ROBUST,
    by_encounter,
    by_the_worst,
    figure_mean,
    limits,
    of_its_parts,
    of_our_recipe,
    of_softened_gravity,
    of_the_labels,
    of_the_steps,
    on_all_sets,
    per_seed,
)
from .pages import ROOT, section
from .speed_and_rounding_tables import of_the_numerics, of_the_precision, of_the_speed


def test_the_sentence_about_the_time_of_training_is_true():
    text = " ".join(section("arteries_results", "Beside the paper's").split())
    assert f"20,000 steps take {artery('training time', split='', **OURS):.0f} s" in text


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


@pytest.mark.parametrize(
    ("page", "title", "rows"),
    [
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
        ("charges", "What can be reached without a network", without_a_network),
        ("charges", "Traps", of_equivariant_models),
        ("precision", "Measured", of_the_precision),
        ("arteries_results", "Beside the paper's", beside_the_paper),
        ("arteries_results", "Beside the paper's", of_our_artery_runs),
        ("arteries_results", "Longer and wider", of_changes_to_our_recipe),
        ("arteries_results", "Moved and mirrored", of_moved_arteries),
        ("arteries_results", "With fewer meshes", by_training_meshes),
        ("arteries_results", "What it costs", of_unequal_meshes),
        ("kuka", "Planning and evaluation", of_the_harness),
        ("kuka", "The data", of_the_expert),
        ("kuka", "The choice of settings", of_the_choice),
        ("kuka", "Speed", of_the_networks),
        ("kuka", "Results", of_the_rewards),
        ("arteries", "Fine meshes", of_fine_meshes),
        ("large_geometry", "What anchors cost", of_anchors),
        ("large_geometry", "A million points on a CPU", of_a_cpu),
        ("large_geometry", "A million points on a GPU", of_a_gpu),
        ("flows", "Results", of_flows),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_the_tables_are_those_of_the_results(page, title, rows):
    assert "\n".join(rows()) in section(page, title)


def test_the_sentences_about_fine_meshes_are_true():
    text = " ".join(section("arteries", "Fine meshes").split())
    usual, *fine = FINE
    assert f"{fine[0]:,}, {fine[1]:,} and {fine[2]:,} nodes" in text
    assert f"with {usual:,} nodes" in text
    assert f"at most {max(prepared('difference', n) for n in fine):.2f} cm" in text
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    seconds = prepared("processor time", fine[-1], "read and prepare")
    memory = prepared("memory", fine[-1]) / 1024
    assert f"{fine[-1]:,} takes {seconds:.0f} s of processor time and {memory:.1f} GiB" in changes


def test_the_sentence_about_a_fine_vessel_with_anchors_is_true():
    text = " ".join(section("large_geometry", "A million points on a CPU").split())
    assert all(x in text for x in the_distances_of_the_vessel())


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


def test_the_sentences_about_the_cost_of_anchors_are_true():
    text = " ".join(section("large_geometry", "What anchors cost").split())
    costs = {case: f"{cost(*case):.2f}" for case in CASES}
    medoids = f"512 of them cost {costs[512, 'medoids']} points and 1,024 of them"
    assert f"over five seeds, {medoids} {costs[1024, 'medoids']}." in text
    farthest = (
        f"over five seeds, too: 512 of them {costs[512, 'farthest']} points, and 1,024 of them"
    )
    assert f"{farthest} {costs[1024, 'farthest']}." in text
    for n in (512, 1024):
        for method in ("medoids", "farthest"):
            assert len(recorded(anchors=n, method=method, weighted=True)) == 5
    assert cost(512, "farthest") <= 0.3
    assert cost(1024, "farthest") <= 0.15
    random = f"{costs[1024, 'random']} points if there are 1,024 of them, but"
    assert f"Random anchors cost {random} {costs[512, 'random']} if there are 512." in text
    few, many = (f"{cost(n, 'random', weighted=False):.2f}" for n in (512, 1024))
    assert f"Without weights, 512 of them cost {few} points, and 1,024 of them {many}." in text


def test_the_sentences_about_training_with_anchors_are_true():
    text = " ".join(section("large_geometry", "What anchors cost").split())
    about = dict(recipe="arteries_anchors_tuned", steps=1200, train_meshes=1600)
    few, every = (
        measured("arteries-accuracy", "epsilon_mean", split=split, **about)
        for split in ("test", "test_full")
    )
    more = few - full_attention()
    assert more <= 0.1
    assert f"error of {few:.2f} % on the same meshes with 512 medoids, {more:.2f} points" in text
    assert f"its error is {every:.2f} % afterwards" in text
    assert f"512 medoids now cost {few - every:.2f} points" in text
    assert abs(few - every - cost(512, "medoids")) < 0.03


def test_the_sentences_about_flows_are_true():
    text = " ".join(section("flows", "Results").split())
    about = dict(recipe="flows_small", train_vessels=48, vessels=6, steps=5000)
    seconds = measured("flows-accuracy", "training time", **about)
    assert f"trained in {seconds:,.0f} s on one CPU thread" in text
    change = measured("flows-accuracy", "change_max", set="test_turned", **about)
    assert f"change by at most {change:.1e} of the largest" in text
    for kind in ("velocity", "stress"):
        turned, test = (
            measured("flows-accuracy", f"epsilon_{kind}", set=x, **about)
            for x in ("test_turned", "test")
        )
        assert f"{turned:.2f}" == f"{test:.2f}"


def test_the_sentences_about_anchors_and_types_on_a_gpu_are_true():
    text = " ".join(section("large_geometry", "A million points on a GPU").split())
    same = {"machine": "H200", "n_items": 16384, "pass": "training"}
    graph, eager = (measured("anchored", "time", cuda_graph=x, **same) for x in (True, False))
    assert f"takes {graph:.0f} ms as a CUDA graph and {eager:.0f} ms without" in text
    text = " ".join((ROOT / "docs" / "symmetry.md").read_text().split())
    ratios = [
        measured("types-step", "ratio", model="gatr_e3", network=network, cuda_graph=True)
        for network in ("nbody", "arteries", "kuka")
    ]
    nbody, arteries, kuka = (f"{ratio:.3f} times" for ratio in ratios)
    expected = f"{nbody} as long as without for n-body, {arteries} for arteries and {kuka} for rob"
    assert expected in text


def test_the_sentence_about_the_robotics_step_is_true():
    gatr, compiled = (
        of_the_step("time", "training", *STEPS[name]) for name in ("GATr", "Transformer, compiled")
    )
    text = " ".join(section("kuka", "Speed").split())
    assert f"GATr's step takes {gatr / compiled:.2f} times as long" in text
    assert ("aim of 1.5 is missed" in text) == (gatr > 1.5 * compiled)


def test_the_sentence_about_loading_is_true():
    text = " ".join(section("arteries_results", "What it costs").split())
    which = dict(model="gatr", width_factor=1)
    host, own = (unequal(f"{x}time per 1,000 items", **which) for x in ("host ", ""))
    assert f"the host {host:.3f} ms of these {own:.3f} ms" in text


def facts_of_the_readme():
    """What the README's table of measured facts shows: one row of figures each."""
    few, many = (
        figure_mean("mse", model, samples, "eval")
        for model, samples in (("gatr", 100), ("transformer", 100_000))
    )
    yield f"{few:.1e}", f"{many:.1e}, a Transformer trained on 100,000"
    ours, theirs = (artery("epsilon_mean", m, **OURS) for m in ("gatr", "transformer"))
    yield f"{ours:.2f} %", f"{theirs:.2f} %, a Transformer trained for as many steps"
    step = next(row.split(" | ") for row in of_the_speed() if "Adam" in row)
    authors, eager = (
        measured("libraries", "time", model=x, machine="H200") for x in ("gatr", "flashgatr")
    )
    yield (
        step[1],
        f"{step[2].removesuffix(' |')}, a Transformer; {authors:.0f} ms, the authors' code (eager, "
        f"forward and backward only; flashgatr in the same way: {eager:.0f} ms)",
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


def test_the_readme_has_the_latest_results_of_experiments():
    text = " ".join((ROOT / "README.md").read_text().split())
    row = next(row.split(" | ") for row in of_our_results() if "reversed" in row)
    lowest = min(each.mse for each in PUBLISHED)
    assert f"GATr has a test error of {row[3].split()[0]}; the lowest published" in text
    assert f"published one that we know is {lowest}," in text
    row = next(iter(of_the_rewards())).rstrip(" |").split(" | ")
    original, strict = (cell.split()[0] for cell in row[-2:])
    assert f"reward of {original} of 100 in PyBullet with" in text
    assert f"steps ({strict} if only a tower that stands counts)" in text
    velocity, stress = list(of_flows())[-1].rstrip(" |").split(" | ")[-2:]
    assert f"errors of {velocity} % (velocity) and {stress} % (stress)" in text


def test_the_sentence_about_few_denoising_steps_is_true():
    text = " ".join(section("kuka", "Results").split())
    original, strict = of_few_steps()
    assert f"it earns {original} and {strict} (strict) in the same scenes" in text


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


def test_the_sentence_about_packed_sets_is_true():
    text = " ".join((ROOT / "docs" / "batching.md").read_text().split())
    file = ROOT / "benchmarks" / "results" / "packed-sets.jsonl"
    found = {}
    for x in map(json.loads, file.read_text().splitlines()):
        case = x["settings"]
        if case["statistic"] == "median":
            found[case["sets"], x["metric"], case["layout"]] = x["value"], case["items"]
    packed, items = found[100_000, "processor time", "packed"]
    padded, _ = found[100_000, "processor time", "padded"]
    assert f"takes {packed:.1f} s of processor time on {items:,} items in 100,000 packed" in text
    assert f"and {padded:.1f} s on the same sets padded: {packed / padded:.2f} times" in text
    ratio, _ = found[10_000, "ratio", "packed"]
    assert f"on 10,000 such sets take {ratio:.2f} times as long" in text


def test_the_sentences_about_the_results_are_true():
    text = " ".join((ROOT / "docs" / "nbody.md").read_text().split())
    sets = [limits("mse", data_seed=k) for k in range(10)]
    mean, deviation = statistics.mean(sets), statistics.stdev(sets)
    assert f"{mean:.2e} with a standard deviation of {deviation:.2e}" in text
    assert f"from {min(sets):.2e} to {max(sets):.2e}" in text
    assert f"{limits('mse', data_seed=0):.2e} on the set of the table" in text
    moved = max(
        abs(there / here - 1)
        for here, there in zip(per_seed("mse"), per_seed("mse", where="eval_moved"), strict=True)
    )
    assert f"by {moved:.0e} of itself at most" in text
    close = list(ENCOUNTERS.items())[:2]
    share = sum(
        limits("share of mse", closest_from=low, closest_to=high) for (low, high), _ in close
    )
    systems = sum(number for _, (number, _) in close)
    assert f"{systems} systems of 5,000 hold {100 * share:.0f} % of the squared error" in text
    between = sum(limits("share of mse", closest_from=low) for low in (0.01, 0.03))
    assert f"hold {100 * between:.1f} % of the squared error" in text
    fine = measured("nbody-labels", "trimmed", model="fine integration", finer=200)
    ours = statistics.mean(per_seed("trimmed", recipe="nbody_robust"))
    assert f"a factor of {ours / fine:.1f} above" in text
    alone = {"data.options.huber": 0.01, "data.options.scaling": 0.0}
    for chosen in (alone, ROBUST):
        with_it = statistics.mean(per_seed("median", recipe="nbody_robust", **chosen))
        neither = dict.fromkeys(ROBUST, 0.0)
        factor = statistics.mean(per_seed("median", recipe="nbody_robust", **neither)) / with_it
        assert f"by a factor of {factor:.1f}" in text
    more, same = (statistics.mean(per_seed("median", where=w)) for w in ("more_bodies", "eval"))
    assert f"median grows by a factor of {more / same:.0f}" in text
    mse, trimmed = (statistics.mean(per_seed(m, recipe="nbody_robust")) for m in ("mse", "trimmed"))
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
            figure_mean(metric, "gatr", few, "eval"),
            figure_mean(metric, "transformer", many, "eval"),
        )
        assert f"{ours:.1e}" in text
        assert f"{theirs:.1e}" in text
        assert ours < theirs  # with a thousandth of the systems
    factor = figure_mean("median", "transformer", many, "eval") / figure_mean(
        "median", "gatr", few, "eval"
    )
    assert f"median is {factor:.0f} times smaller" in text
    best = figure_mean("mse", "gatr", many, "eval")
    assert f"With 100,000 systems GATr's `mse` is {best:.2e}" in text
    for samples in (1000, many):
        median, trimmed = (
            figure_mean(m, "gatr", samples, "eval")
            / figure_mean(m, "gatr", samples, "eval", ours_too)
            for m in ("median", "trimmed")
        )
        assert f"median by a factor of {median:.1f} and `trimmed` by {trimmed:.1f}" in text


def test_the_page_describes_the_data_and_the_models():
    text = section("nbody", "The data")
    for name, values in PRESETS.items():
        settings = Gravity(**values)
        row = name, settings.steps, settings.step_size, settings.integrator, settings.time
        assert table_row(f"`{row[0]}`", row[1], f"{row[2]:g}", f"`{row[3]}`", f"{row[4]:g}") in text
    for name, changes in data.SETS.items():
        count = 100_000 if name == "train" else 5_000
        assert f"| `{name}` | {count:,} | {Gravity(**changes).bodies} |" in text
    text = section("nbody", "The models")
    for model, name in NETWORKS.items():
        with torch.device("meta"):
            network = table.find("nbody").build(model, {})
        number = sum(p.numel() for p in network.parameters())
        assert re.search(rf"^\| {name} \|.*\| {number:,} \|$", text, re.MULTILINE), (name, number)


STARTS = {
    "ours": "ours",
    "the authors' biases": "authors_biases",
    "the authors' biases, factors of joins × 4": "joins_4",
    "the same, attention's output × 10": "joins_4_attention_10",
}


@pytest.mark.parametrize("name", STARTS)
def test_the_table_of_start_values_is_the_measured_one(name):
    def cell(metric, number, **settings):
        start = dict(start=STARTS[name], **settings)
        values = [measured("start-values", metric, seed=seed, **start) for seed in range(3)]
        error = statistics.stdev(values) / len(values) ** 0.5
        return f"{statistics.mean(values):{number}} ± {error:{number.replace('.2e', '.1e')}}"

    has_arteries = STARTS[name] in ("ours", "authors_biases")
    arteries = dict(experiment="arteries", set="test")
    row = table_row(
        name,
        cell("mse", ".2e", experiment="nbody"),
        cell("median", ".2e", experiment="nbody"),
        cell("epsilon_mean", ".2f", **arteries) if has_arteries else "–",
    )
    assert row in section("parameters", "Start values")


def test_the_errors_of_the_energy_example_are_the_measured_ones():
    def error(seed, start):
        return f"{measured('energy', 'force_error', seed=seed, initialization=start):.4f}"

    text = section("precision", "Energies and forces")
    assert table_row("`geometric`", *(error(seed, "geometric") for seed in range(3))) in text
    assert f"(seed 0: {error(0, 'default')})" in text
    any_distance = dict(closest=0, initialization="default", num_blocks=4, lr=2e-3, batch=32)
    missed = [measured("energy", "force_error", seed=k, **any_distance) for k in range(3)]
    assert "{:.4f}, {:.4f} and {:.4f}".format(*missed) in " ".join(text.split())
