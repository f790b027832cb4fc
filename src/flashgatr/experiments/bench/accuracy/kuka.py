"""Robotics: rewards of planning on test scenes, the paper's and every group of recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....train import RunConfig, toml
from ... import runs as trained
from ... import shipped, sweep
from ...robotics import EXPERIMENT
from . import recipes
from .parameters import count
from .recipes import assigned, setting
from .recorded import HARMLESS, Runs, number, read
from .tables import NOTHING, Gap, Table, emphasise, leading, listed

FILE = "kuka-reward"
PUBLISHED = {
    "gatr": ("GATr", "74.8 ± 1.7"),
    "transformer": ("Transformer", "69.8 ± 1.9"),
    "edgi": ("EDGI", "62.0 ± 2.1"),
    "unet": ("Diffuser (U-Net)", "57.7 ± 1.8"),
    "cql": ("CQL", "24.4"),
    "bcq": ("BCQ", "0.0"),
}
"""Paper, table of section 4.3: rewards on the published demonstrations and in their environment."""
PLANNERS = {
    **PUBLISHED,
    "gatr_e3": ("GATr with types", NOTHING),
    "gatr_e3_wide": ("Wider GATr with types", NOTHING),
}
"""With types of channels: `recipes/kuka_types.toml`. The paper has none."""
WITHOUT_NETWORK = ("expert", "noise")
_OF_A_RUN = ("seed", "reward")
_EVALUATED = ("engine", "scenes", "scene_set", "sampler")
"""Recorded facts about the evaluation that are settings, `data.options.NAME`."""


def rewards(folder: Path) -> Table:
    """A row per group of recorded runs; then what the expert and noise earn in such scenes."""
    lines = [line for line in read(folder, FILE) if _is_result(line)]
    rows = []
    for model, (label, published) in PLANNERS.items():
        for about, runs in _groups([line for line in lines if line["model"] == model]):
            parameters = number(count(EXPERIMENT, model))
            cells = _cells(about, runs)
            rows.append([label, published, *cells, parameters, _command(about, model)])
    shown = emphasise(rows, (2, 3), lambda row: tuple(row[4:7]), max)
    places, others = [row[4:6] for row in rows], []
    for model in WITHOUT_NETWORK:
        for about, runs in _groups([line for line in lines if line["model"] == model]):
            cells = _cells(about, runs)
            if cells[2:4] in places:
                command = "`flashgatr bench kuka-harness`"
                others.append([model, NOTHING, *cells, NOTHING, command])
    head = ["planner", "paper", "reward", "strict", "engine", "scenes", "sampler, steps"]
    head += ["demonstrations", "training steps", "seeds", "parameters", "recipe"]
    return Table(head, [*shown, *others], _missing(lines), _best([*rows, *others]))


def _best(rows: list[list[str]]) -> str:
    """The planner with the most reward, beside those without a network in the same scenes."""
    if not rows:
        return ""
    networks = [row for row in rows if row[0] not in WITHOUT_NETWORK]
    best = max(networks, key=lambda row: leading(row[2]) or 0.0)
    others = [x for x in rows if x[0] in WITHOUT_NETWORK and x[4:6] == best[4:6]]
    told = "; ".join(f"{row[0]}: {row[2]}" for row in others)
    beside = f"; in the same scenes, {told}" if told else ""
    return f"{best[0]} earns {best[2]} at best (strict: {best[3]}){beside}."


def _missing(lines: list[dict[str, Any]]) -> list[Gap]:
    """Models of the paper's table, and the numbers of demonstrations of its figure."""
    missing: list[Gap] = []
    for model in recipes.models("kuka_figure"):
        label, published = PUBLISHED[model]
        told = [x["settings"] for x in lines if x["model"] == model]
        used = {x.get("demonstrations") for x in told if x.get("recipe") == "kuka_figure"}
        wanted = [x.config.data.train_samples for x in recipes.planned("kuka_figure")]
        absent = [number(n) for n in dict.fromkeys(wanted) if n not in used]
        if absent:
            name = label if used else f"{label} (paper: {published})"
            few = f"with {listed(absent)} demonstrations" if used else ""
            missing.append(Gap(name, recipes.named("kuka_figure"), few))
    for model in recipes.models("kuka_offline_rl"):
        label, published = PUBLISHED[model]
        if not any(x["model"] == model for x in lines):
            missing.append(Gap(f"{label} (paper: {published})", recipes.named("kuka_offline_rl")))
    for model in recipes.models("kuka_types"):
        told = [x["settings"] for x in lines if x["model"] == model]
        if not any(x.get("recipe") == "kuka_types" and x.get("mirrored") for x in told):
            where = "in mirrored scenes"
            missing.append(Gap(PLANNERS[model][0], recipes.named("kuka_types"), where))
    return missing


def _is_result(line: dict[str, Any]) -> bool:
    """Whether the scenes are those of the test; settings are chosen by others. The benchmark
    without networks has test scenes only, and does not say so.
    """
    return bool(line["settings"].get("scene_set", "test") == "test")


def _groups(lines: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Runs]]:
    """The lines that differ in seeds and kinds of reward only, with the settings they share."""
    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for line in lines:
        about = _about(line)
        found.setdefault(str(sorted(about.items(), key=str)), (about, []))[1].append(line)
    return [(about, Runs(some)) for about, some in found.values()]


def _about(line: dict[str, Any]) -> dict[str, Any]:
    """What a line says about its group, without changes that leave results what they are, and
    without those that the recipe has by now for all runs of the model: later lines name neither.
    """
    told = {key: x for key, x in line["settings"].items() if key not in _OF_A_RUN}
    recipe = str(told.get("recipe"))
    known = recipes.planned(recipe) if recipe in shipped.known(shipped.RECIPE) else ()
    configs = [run.config for run in known if run.config.model.name == line["model"]]

    def is_change(key: str) -> bool:
        differs = not configs or any(_differs(config, key, told) for config in configs)
        return differs and key not in HARMLESS

    return {key: x for key, x in told.items() if "." not in key or is_change(key)}


def _cells(about: dict[str, Any], runs: Runs) -> list[str]:
    """Rewards, with the standard error over seeds, or over scenes if there is one seed."""
    cells = []
    for kind in ("original", "strict"):
        text = runs.mean("reward", ".1f", reward=kind)
        errors = runs.values("standard error", reward=kind)
        if "±" not in text and len(errors) == 1:
            text = f"{text} ± {next(iter(errors.values())):.1f}"
        cells.append(text)
    sampler = f"{about['sampler']}, {about['sampling_steps']:,}" if "sampler" in about else NOTHING
    told = [number(about.get(key, NOTHING)) for key in ("demonstrations", "steps")]
    seeds = str(len(runs.seeds)) if "steps" in about else NOTHING
    return [*cells, str(about.get("engine", NOTHING)), _scenes(about), sampler, *told, seeds]


def _scenes(about: dict[str, Any]) -> str:
    """How many, and whether they were moved."""
    moved = [kind for kind in ("turned", "mirrored") if about.get(kind)]
    return f"{about.get('scenes', NOTHING)}, {' and '.join(moved) or 'plain'}"


def _command(about: dict[str, Any], model: str) -> str:
    """Keys of the recipe's grid select runs; others are set where the recipe has another value.
    A run that comes with the package is evaluated again. Nobody else has other runs.
    """
    recipe = str(about["recipe"])
    wanted = {key: x for key, x in about.items() if "." in key} | _evaluation(about)
    kind, _, name = recipe.rpartition(":")
    if kind not in ("", shipped.TRAINED) or name not in shipped.known(kind or shipped.RECIPE):
        return NOTHING
    if kind:
        config = trained.load_config(shipped.find(Path(recipe)))
        parts = f"flashgatr eval {recipe}", _changes(wanted, [config]), "--record"
        return f"`{' '.join(filter(None, parts))}`"
    planned = [*recipes.planned(recipe)]
    grid = planned[0].values
    wanted |= {"model.name": model, "train.steps": about["steps"]}
    if "data.train_samples" in grid:
        wanted["data.train_samples"] = about["demonstrations"]
    chosen = {key: x for key, x in wanted.items() if key in grid}
    if any(x not in [run.values[key] for run in planned] for key, x in chosen.items()):
        return "the recipe has no such run any more"
    runs = sweep.select(planned, [f"{key}={toml.literal(x)}" for key, x in chosen.items()])
    others = {key: x for key, x in wanted.items() if key not in chosen}
    only = [f"--only {assigned(key, x)}" for key, x in chosen.items()]
    options = [*only, *filter(None, [_changes(others, [run.config for run in runs])])]
    return f"`recipe:{recipe} {' '.join(options)}`"


def _evaluation(about: dict[str, Any]) -> dict[str, Any]:
    """The settings of a recorded evaluation."""
    found = {f"data.options.{key}": about[key] for key in _EVALUATED if key in about}
    if about.get("sampler", "ancestral") != "ancestral":
        found["data.options.sampling_steps"] = about["sampling_steps"]
    moved = [key for key in ("turned", "mirrored") if about.get(key)]
    return found | {f"data.options.{key}": True for key in moved}


def _changes(wanted: dict[str, Any], configs: list[RunConfig]) -> str:
    """--set for every setting that some of the runs do not have."""
    differing = [key for key in sorted(wanted) if any(_differs(x, key, wanted) for x in configs)]
    return " ".join(f"--set {assigned(key, wanted[key])}" for key in differing)


def _differs(config: RunConfig, key: str, wanted: dict[str, Any]) -> bool:
    return bool(setting(config, key) != wanted[key])
