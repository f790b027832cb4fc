"""Tables of the robotics report."""

from __future__ import annotations

from typing import Any

from ...report import markup
from .titles import DENOISING, ENGINES, ERRORS, KINDS, REWARDS

_DENOISING_METRICS = ("mse", "position", "direction", "flag")


def planning(report: dict[str, Any], kind: str) -> str:
    """Rewards in one kind of scenes, in every engine; the paper's rows follow."""
    rows = [
        [*_group(group), ENGINES[engine], *_how(group, name), *_rewards(group["results"][name])]
        for engine in ENGINES
        for group in report["groups"]
        if (name := f"plan_{engine}{kind}") in group["results"]
    ]
    if not rows:
        return ""
    title, explanation = KINDS[kind]
    head = ["model", "demonstrations", "steps", "seeds", "engine", "scenes", "sampler"]
    others = [] if kind else _paper(report["reference"])
    return f"<h3>{title}</h3><p>{explanation}</p>" + markup.table(
        [*head, *REWARDS.values()], rows, others
    )


def denoising(report: dict[str, Any]) -> str:
    """Errors of the estimated noise; zero as an answer has error 1."""
    rows = [
        [*_group(group), what, *(_cell(found, key, ".4f") for key in _DENOISING_METRICS)]
        for name, what in DENOISING.items()
        for group in report["groups"]
        if (found := group["results"].get(name))
    ]
    head = ["model", "demonstrations", "steps", "seeds", "windows", *_DENOISING_METRICS]
    about = "<p>Mean squared errors of the estimated noise. An answer of zero has error 1.</p>"
    return about + markup.table(head, rows)


def runs(report: dict[str, Any]) -> str:
    """Every run, and the settings of every group."""
    names = dict.fromkeys(name for run in report["runs"] for name in run["results"])
    columns = {
        f"{name}: {REWARDS[key]}": (name, key)
        for name in names
        if name.startswith("plan_")
        for key in ("reward", "strict")
    } | {f"{name}: mse": (name, "mse") for name in DENOISING}

    def show(metric: str, value: float) -> str:
        return format(value, ".4f" if metric == "mse" else ".1f")

    table = markup.all_runs(report["runs"], "demonstrations", columns, show)
    return table + markup.settings(report["settings"])


def _group(group: dict[str, Any]) -> list[Any]:
    numbers = (markup.count_text(group[key]) for key in ("samples", "steps"))
    return [group["label"], *numbers, len(group["seeds"])]


def _how(group: dict[str, Any], name: str) -> list[str]:
    """The scenes and the sampler, as the results of a run say them."""
    found = group["planning"].get(name, {})
    scenes = f"{found.get('scenes', '')} {found.get('scene_set', '')}"
    return [scenes, f"{found.get('sampler', '')}, {found.get('sampling_steps', '')} steps"]


def _rewards(found: dict[str, Any]) -> list[str]:
    return [_cell(found, key, ".1f", ERRORS.get(key)) for key in REWARDS]


def _cell(found: dict[str, Any], key: str, style: str, error: str | None = None) -> str:
    """Mean and standard error, over seeds, or for one seed over scenes."""
    if key not in found:
        return ""
    spread = found[key]["standard_error"]
    if spread is None and error in found:
        spread = found[error]["mean"]
    return markup.estimate_text(found[key]["mean"], spread, lambda x: format(x, style))


def _paper(reference: dict[str, Any]) -> list[list[str]]:
    count, unknown = markup.count_text(reference["demonstrations"]), [""] * 5
    return [
        [f"paper: {model}", count, *unknown, markup.estimate_text(mean, error, "{:.1f}".format)]
        for model, (mean, error) in reference["reward"].items()
    ]
