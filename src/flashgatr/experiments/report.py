"""The report on finished runs (of n-body here; others have their own): report.html, which holds all of it, and its parts.

    report.json       every number: of runs, of groups (mean and standard error over seeds), of the straight-line guess
    figure.png        error against the number of training systems on the three evaluation sets
    curves.png        validation while training        trajectories.png   a few systems, true and predicted

A group is a model with its settings, and a number of training systems.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from .. import LoadError, __version__, files
from ..train import log, toml
from ..train import settings as configuration
from ..train.settings import RunConfig
from ..train.trainer import fingerprint, identity
from . import drawing, page, runs, table
from .drawing import METRICS, PICTURES, SETS, Curve, Scene
from .nbody import data
from .nbody.metrics import summarise, system_errors
from .nbody.simulate import PRESETS, Gravity, State, evolve
from .nbody.task import straight_line

MODELS = {"gatr": "GATr", "transformer": "Transformer", "mlp": "MLP"}
REFERENCE: dict[str, Any] = {
    "source": "README of the authors' code",
    "set": "eval",
    "samples": 1000,
    "steps": 5000,
    "mse": {
        "GATr": 0.0005, "SEGNN": 0.0006, "SE(3)-Transformer": 0.0025,
        "Transformer": 0.0050, "GCA-GNN": 0.0526, "MLP": 0.0776,
    },
}  # fmt: skip
SHOWN_SYSTEMS = {"median": 0.5, "90 % quantile": 0.9, "99 % quantile": 0.99, "worst": 1.0}
"""The systems drawn: quantiles of GATr's error."""
MOST_PREDICTED = 1000  # systems: seconds for the paper's network on a CPU

_BAD_INPUT = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
Described: TypeAlias = dict[str, dict[str, data.Description]]
"""What is in each data folder."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    config: RunConfig
    summary: dict[str, Any]
    results: dict[str, dict[str, float]]
    label: str = ""
    samples: int | None = None
    """Number of training systems; None: all of a set that is not at hand."""


def write(paths: list[Path], out: Path) -> Path:
    """Report on the finished runs in and below `paths`, of the experiment most are of; the path of report.html."""
    if _experiment(paths) == "arteries":
        from .arteries import report as arteries

        return arteries.write(paths, out)
    notes: list[str] = []
    found, unreadable = collect(paths, notes)
    sets = _described(found, notes)
    found = _labelled(found, sets)
    if any(run.samples is None for run in found):
        notes.append("runs on all of a training set that is not at hand are not in the figure")
    report = {
        "flashgatr": __version__,
        "groups": _groups(found),
        "straight_line": _straight_line(found, sets, notes),
        "reference": REFERENCE,
        "runs": [_numbers(run) for run in found],
        "data": {folder: {k: asdict(v) for k, v in d.items()} for folder, d in sets.items()},
        "settings": {run.label: _compared(run.config) for run in found},
        "commands": _commands(found, sets),
        "unreadable": unreadable,
        "notes": notes,
    }
    pictures = _pictures(found, sets, report)
    return store(out, report, pictures, page.page(report, pictures), PICTURES)


def store(
    out: Path, report: dict[str, Any], pictures: dict[str, bytes], text: str, names: Iterable[str]
) -> Path:
    """Write the files of a report, and take away pictures of an earlier one."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in pictures:
            files.write(out / name, pictures[name])
        else:
            (out / name).unlink(missing_ok=True)  # it would be an earlier report's
    numbers = json.dumps(_finite(report), indent=1, ensure_ascii=False, allow_nan=False)
    configuration.write_atomically(out / "report.json", numbers + "\n")
    configuration.write_atomically(out / "report.html", text)
    return out / "report.html"


# ---- runs ----


def _experiment(paths: Sequence[Path]) -> str:
    """That of most runs, finished or not."""
    found = []
    for file in (file for path in paths for file in path.rglob(runs.CONFIG)):
        with suppress(*_BAD_INPUT):
            found.append(runs.load_settings(file).experiment)
    return max(table.names(), key=found.count)


def collect(
    paths: Sequence[Path], notes: list[str], read: Callable[[Path], Run] | None = None
) -> tuple[list[Run], dict[str, str]]:
    """The finished runs in and below some folders, and why others cannot be read."""
    folders: dict[Path, Path] = {}
    empty = []
    for path in paths:
        if not path.is_dir():
            raise LoadError(f"{path} is not a folder; pass runs, or folders that hold runs")
        files = sorted(path.rglob(runs.CONFIG))
        for file in files:
            folders.setdefault(file.parent.resolve(), file.parent)
        if not files:
            empty.append(str(path))
    found: dict[object, Run] = {}
    unreadable: dict[str, str] = {}
    unfinished, foreign = [], []
    for folder in folders.values():
        if not (folder / runs.RESULTS).exists():
            unfinished.append(str(folder))
            continue
        try:
            run = (read or _read)(folder)
        except _BAD_INPUT as error:
            unreadable[str(folder)] = f"{error}" or type(error).__name__
            continue
        first = found.setdefault(_same(run.config), run)
        if first is not run:
            notes.append(f"{folder} repeats {first.folder} and is left out")
        elif run.summary.get("run") != fingerprint(run.config):
            foreign.append(str(folder))
    if unfinished:
        notes.append(f"not finished yet and left out: {', '.join(unfinished)}")
    if foreign:
        notes.append(f"results of other settings or another version: {', '.join(foreign)}")
    if not found:
        reasons = [f"{folder}: {reason}" for folder, reason in unreadable.items()] + notes
        raise LoadError(
            f"there is no finished run in {', '.join(map(str, paths))}; make one with flashgatr train"
            + "".join(f"\n  {reason}" for reason in reasons[:5])
        )
    if empty:
        notes.append(f"there is no run in {', '.join(empty)}")
    return list(found.values()), unreadable


def _read(folder: Path) -> Run:
    config = runs.load_config(folder)
    if config.experiment != "nbody":
        raise LoadError(
            f"it is a run of the experiment {config.experiment!r}, most others are not; report on it "
            "by itself"
        )
    summary = runs.read_results(folder)
    results = (summary or {}).get("results")
    if summary is None or not isinstance(results, dict) or not results:
        raise LoadError(f"{runs.RESULTS} holds no results; run flashgatr eval {folder}")
    numbers: dict[str, dict[str, float]] = {}
    for name, metrics in results.items():
        if not isinstance(metrics, dict) or not {*METRICS, "systems"} <= metrics.keys():
            raise LoadError(f"{runs.RESULTS} lacks metrics of {name}; run flashgatr eval {folder}")
        numbers[name] = {
            key: math.nan if metrics[key] is None else float(metrics[key])
            for key in (*METRICS, "systems")
        }
    return Run(folder, config, summary, numbers)


def _labelled(found: list[Run], sets: Described, models: dict[str, str] = MODELS) -> list[Run]:
    """The runs in order, with numbers of samples and labels: the model, and settings that tell its runs apart."""
    names = [*models, *sorted({run.config.model.name for run in found} - models.keys())]
    labelled = []
    for run in found:
        own = _compared(run.config)
        alike = [_compared(r.config) for r in found if r.config.model.name == run.config.model.name]
        parts = [f"{key.rpartition('.')[2]} {_told(own, key)}" for key in _telling(alike)]
        label = ", ".join([models.get(run.config.model.name, run.config.model.name), *parts])
        train = sets.get(run.config.data.folder, {}).get("train")
        counted = run.samples or run.config.data.train_samples
        samples = counted or (train.count if train else None)
        labelled.append(replace(run, label=label, samples=samples))

    def place(run: Run) -> tuple[Any, ...]:
        model = names.index(run.config.model.name)
        return model, run.label, run.samples or math.inf, run.config.seed

    return sorted(labelled, key=place)


_TAKEN = {"default", "true", "false", "inf", "nan"}


def _telling(settings: Sequence[dict[str, Any]]) -> list[str]:
    """A few keys by which different settings can be told apart; of equal ones the number of steps, which says most."""
    keys = list(dict.fromkeys(["train.steps", *(key for some in settings for key in some)]))
    few: list[str] = []

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(_told(some, key) for key in chosen) for some in settings})

    while kinds(few) < kinds(keys):
        few.append(max(keys, key=lambda key: kinds([*few, key])))  # the first of the best
    return [key for key in keys if key in few]


def _told(settings: dict[str, Any], key: str) -> str:
    """The value, other ones differently: words that mean nothing else go without quotes."""
    if key not in settings:
        return "default"
    value = settings[key]
    is_word = isinstance(value, str) and re.fullmatch(r"[a-z]\w*", value)
    return value if is_word and value not in _TAKEN else toml.literal(_shortened(value))


def _shortened(value: Any) -> Any:
    """Equal numbers alike: 1.0 as 1."""
    if isinstance(value, list | tuple):
        return [_shortened(x) for x in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _compared(config: RunConfig) -> dict[str, Any]:
    """What makes a model, by dotted key: all that determines a run, but for seed and number of samples."""
    own = {"seed", "data.train_samples"}
    usual = getattr(runs.task_of(config.experiment), "option_defaults", {})
    found = identity(config)
    found["data.options"] = usual | found["data.options"]
    return dict(x for k, v in found.items() if k not in own for x in _flat(k, v))


def _same(config: RunConfig) -> object:
    """Equal for runs that are the same."""
    settings = _compared(config)
    own = config.seed, config.data.train_samples, config.data.folder
    return own, frozenset((key, _told(settings, key)) for key in settings)


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flat(f"{key}.{toml.join((name,))}", inner)


# ---- numbers ----


def _described(found: list[Run], notes: list[str]) -> Described:
    """The data folders of the runs that can be read, the one most runs used first."""
    sets: Described = {}
    folders = [run.config.data.folder for run in found]
    for folder in sorted(dict.fromkeys(folders), key=folders.count, reverse=True):
        try:
            sets[folder] = data.describe(folder)
        except _BAD_INPUT as error:
            notes.append(f"the data of some runs are not at hand: {error}")
    if len({d["eval"].sha256 for d in sets.values() if "eval" in d}) > 1:
        notes.append("runs were evaluated on different systems: compare them with care")
    return sets


def _straight_line(
    found: list[Run], sets: Described, notes: list[str]
) -> dict[str, dict[str, float]]:
    """Errors of the guess x₀ + v·t on the data that most runs used."""
    guess = {}
    folder, described = next(iter(sets.items()), ("", {}))
    for name in SETS:
        source = "eval" if name == "eval_moved" else name
        used = {run.results[name]["systems"] for run in found if name in run.results}
        if source in described and used == {described[source].count}:
            errors = straight_line(data.load(folder, source), described[source].settings.time)
            guess[name] = summarise(errors)
        elif source in described and used:
            notes.append(f"the {source} set in {folder} is not the one all runs were evaluated on")
    return guess


def _groups(
    found: list[Run], sets: Iterable[str] = SETS, metrics: Iterable[str] = METRICS
) -> list[dict[str, Any]]:
    """Means and standard errors over seeds."""
    members: dict[tuple[str, int | None], list[Run]] = {}
    for run in found:
        members.setdefault((run.label, run.samples), []).append(run)
    groups = []
    for (label, samples), group in members.items():
        results = {
            name: {
                metric: _estimate([r.results[name][metric] for r in group if name in r.results])
                for metric in metrics
                if all(metric in r.results[name] for r in group if name in r.results)
            }
            for name in sets
            if any(name in run.results for run in group)
        }
        seeds = [run.config.seed for run in group]
        steps = group[0].config.train.steps
        groups.append(dict(label=label, samples=samples, steps=steps, seeds=seeds, results=results))
    return groups


def _estimate(values: list[float]) -> dict[str, Any]:
    """Mean and standard error: NaN if a value is not finite, no error of a single one."""
    if not all(map(math.isfinite, values)):
        return {"mean": math.nan, "standard_error": None}
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}


def _numbers(run: Run) -> dict[str, Any]:
    kept = {
        key: value if isinstance(value := run.summary.get(key), int | float) else None
        for key in ("step", "best_step", "best_score", "skipped")
    }
    who = dict(folder=str(run.folder), label=run.label, samples=run.samples, seed=run.config.seed)
    return {**who, **kept, "results": run.results, "settings": configuration.to_dict(run.config)}


def _finite(value: Any) -> Any:
    """For JSON, which has no word for numbers that are none."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commands(found: list[Run], sets: Described) -> str:
    """A script that makes the data, the runs and the report again."""
    lines = []
    places = {folder: f"data/nbody{i + 1 if i else ''}" for i, folder in enumerate(sets)}
    for folder, described in sets.items():
        if "train" in described and "eval" in described:
            train, others = described["train"], described["eval"].count
            known = [name for name in PRESETS if Gravity(**PRESETS[name]) == train.settings]
            lines.append(
                f"flashgatr data nbody --folder {places[folder]} --train {train.count} --others "
                f"{others} --seed {train.seed}"
                + (f" --preset {known[0]}" if known else f"  # but with {train.settings}")
            )
    loops: dict[tuple[str, ...], dict[int, list[int]]] = {}
    for run in found:
        options = assignments(run.config)
        if (place := places.get(run.config.data.folder, "data/nbody")) != "data/nbody":
            options.append(f"data.folder={place}")
        seeds = loops.setdefault((run.label, *options), {})
        seeds.setdefault(run.config.data.train_samples, []).append(run.config.seed)
    for (label, *options), seeds in loops.items():
        name = re.sub("[^a-z0-9]+", "-", label.lower()).strip("-")
        options = ["seed=$seed", "data.train_samples=$n", *map(shlex.quote, options)]
        for chosen in dict.fromkeys(map(tuple, seeds.values())):
            numbers = [n for n in seeds if tuple(seeds[n]) == chosen]
            lines.append(
                f"for n in {' '.join(map(str, numbers))}; do for seed in {' '.join(map(str, chosen))}; "
                f"do\n  flashgatr train nbody --folder runs/{name}-$n-$seed"
                + "".join(f" \\\n    --set {option}" for option in options)
                + "\ndone; done"
            )
    return "\n".join([*lines, "flashgatr report runs --out report"])


def assignments(config: RunConfig) -> list[str]:
    """KEY=VALUE for each setting that makes a model and has not its default."""
    default = _compared(runs.defaults(config.experiment))
    return [
        f"{key}={value if key == 'model.name' else toml.literal(value)}"
        for key, value in _compared(config).items()
        if value != default.get(key)
    ]


# ---- pictures ----


def _pictures(found: list[Run], sets: Described, report: dict[str, Any]) -> dict[str, bytes]:
    """Those that can be drawn; the report's notes say why others cannot."""
    labels = list(dict.fromkeys(run.label for run in found))
    pictures = {"figure.png": drawing.data_efficiency(report, labels)}
    makers: dict[str, Callable[[], bytes]] = {
        "curves.png": lambda: drawing.curves([_curve(run) for run in found], labels),
        "trajectories.png": lambda: drawing.trajectories(_scenes(found, sets), labels),
    }
    for name, draw in makers.items():
        try:
            pictures[name] = draw()
        except _BAD_INPUT as error:
            report["notes"].append(f"{name} was not drawn: {error}")
    return pictures


def _curve(run: Run) -> Curve:
    """The validation scores of a run that a logarithmic axis has a place for."""
    lines = [line for line in log.read(run.folder) if line.get("kind") == "validation"]
    scores = [(line["step"], line.get("score")) for line in lines]
    good = [(k, float(x)) for k, x in scores if isinstance(x, float | int) and 0 < x < math.inf]
    return Curve(run.label, run.samples, good)


def _scenes(found: list[Run], sets: Described) -> list[Scene]:
    """Systems on which the best GATr is good and bad, with its predictions and the best Transformer's."""
    best: dict[str, Run] = {}
    for run in sorted(found, key=_eval_error):
        if _eval_error(run) < math.inf and (run.folder / "model").is_dir():
            best.setdefault(run.config.model.name, run)
    if "gatr" not in best:
        raise LoadError("there is no GATr run with its trained model")
    folder = best["gatr"].config.data.folder
    if "eval" not in sets.get(folder, {}):
        raise LoadError(f"there is no eval set in {folder}")
    described = sets[folder]["eval"]
    systems = data.load(folder, "eval", min(described.count, MOST_PREDICTED))
    inputs = [systems[name] for name in State._fields]
    predictions = {}
    for run in (best[name] for name in ("gatr", "transformer") if name in best):
        model = runs.load_model(run.config).float().eval()
        with torch.no_grad():
            predictions[run.label] = model(*(x.float() for x in inputs))[0].double()
    errors = system_errors(predictions[best["gatr"].label], systems["target"])
    order = errors.argsort().tolist()
    scenes = []
    for title, quantile in SHOWN_SYSTEMS.items():
        one = order[int(quantile * (len(order) - 1))]
        state = State(*(x[one : one + 1].numpy() for x in inputs))
        _, paths = evolve(state, described.settings, keep=1)
        seen = {label: places[one].numpy() for label, places in predictions.items()}
        scenes.append(
            Scene(f"{title}: {page.short(float(errors[one]), 1)}", state.mass[0], paths[0], seen)
        )
    return scenes


def _eval_error(run: Run) -> float:
    error = run.results.get("eval", {}).get("mse", math.inf)
    return error if math.isfinite(error) else math.inf
