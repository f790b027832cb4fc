"""Tables of the robotics report."""

from __future__ import annotations

from typing import Any

from ...report import markup
from .titles import CLOSED_LOOP, DENOISING, ENGINES, ERRORS, KINDS, REWARDS

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
        if "mse" in (found := group["results"].get(name, {}))
    ]
    if not rows:
        return ""
    head = ["model", "demonstrations", "steps", "seeds", "windows", *_DENOISING_METRICS]
    about = "<p>Mean squared errors of the estimated noise. An answer of zero has error 1.</p>"
    return about + markup.table(head, rows)


def acting(report: dict[str, Any]) -> str:
    """Errors of the actions of policies."""
    rows = [
        [*_group(group), _cell(found, "action_mse", ".4f")]
        for group in report["groups"]
        if "action_mse" in (found := group["results"].get("test", {}))
    ]
    if not rows:
        return ""
    head = ["model", "demonstrations", "steps", "seeds", "action mse"]
    about = (
        "<p>Mean squared differences between the actions of policies and the expert's, in test "
        "demonstrations. An action is at most 1.</p>"
    )
    return about + markup.table(head, rows)


def runs(report: dict[str, Any]) -> str:
    """Every run, and the settings of every group."""
    names = dict.fromkeys(name for run in report["runs"] for name in run["results"])
    columns = {
        f"{name}: {REWARDS[key]}": (name, key)
        for name in names
        if name.startswith("plan_")
        for key in ("reward", "strict")
    }
    measured = {key for run in report["runs"] for key in run["results"].get("test", {})}
    columns |= {f"{name}: mse": (name, "mse") for name in DENOISING if "mse" in measured}
    if "action_mse" in measured:
        columns["test: action mse"] = ("test", "action_mse")

    def show(metric: str, value: float) -> str:
        return format(value, ".4f" if metric.endswith("mse") else ".1f")

    table = markup.all_runs(report["runs"], "demonstrations", columns, show)
    return table + markup.settings(report["settings"])


def _group(group: dict[str, Any]) -> list[Any]:
    numbers = (markup.count_text(group[key]) for key in ("samples", "steps"))
    return [group["label"], *numbers, len(group["seeds"])]


def _how(group: dict[str, Any], name: str) -> list[str]:
    """The scenes and the sampler, as the results of a run say them."""
    found = group["planning"].get(name, {})
    scenes = f"{found.get('scenes', '')} {found.get('scene_set', '')}"
    if "sampler" not in found:
        return [scenes, CLOSED_LOOP]
    return [scenes, f"{found['sampler']}, {found.get('sampling_steps', '')} steps"]


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
