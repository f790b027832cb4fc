"""Rows of the tables of docs/charges.md, from the measurements."""

import statistics

from flashgatr.experiments.bench.accuracy.recorded import shown

from .measured import measured, table_row

MODELS = ("static", "straight line", "fitted time", "affine map")
DATA = {
    "`charges`": (3100, dict(force="charges", clip="coordinate")),
    "`charges`, `--clip norm`": (3100, dict(force="charges", clip="norm")),
    "`charges`, earlier": (100, dict(force="charges", clip="coordinate")),
    "`gravity`": (0, dict(force="gravity")),
    "`gravity`, later": (3000, dict(force="gravity")),
}
HORIZONS = (1000, 1500, 2000)


def without_a_network():
    for name, (step, about) in DATA.items():
        for horizon in HORIZONS:
            about = {**about, "input_step": step, "horizon": horizon}
            values = (measured("charges-accuracy", "mse", model=m, **about) for m in MODELS)
            yield table_row(name, f"{step:,}", f"{horizon:,}", *(f"{x:.4f}" for x in values))


def of_equivariant_models():
    for clip, label in (("coordinate", "per coordinate"), ("norm", "in size")):
        about = [dict(model="equivariant", clip=clip, horizon=horizon) for horizon in HORIZONS]
        values = [measured("charges-limits", "mse", **x) for x in about]
        errors = [measured("charges-limits", "standard error", **x) for x in about]
        cells = [
            f"{value:.4f} ± {error:.4f}" if value > 1e-6 else f"{value:.0e}"
            for value, error in zip(values, errors, strict=True)
        ]
        yield f"  {table_row(label, *cells)}"


def of_our_results():
    """Means of three seeds of recipes/charges_standard.toml."""
    systems = {True: "as they are, and reversed", False: "as they are"}
    for model, name, reverse, steps in (
        ("gatr", "GATr", True, 10_000),
        ("segnn", "SEGNN", False, 6000),
    ):
        about = {"recipe": "charges_standard", "data.options.reverse_time": reverse, "steps": steps}
        errors, medians = (
            [
                measured("charges-accuracy", metric, model=model, set="test", seed=k, **about)
                for k in range(3)
            ]
            for metric in ("mse", "median")
        )
        median = f"{statistics.mean(medians):.1e}"
        yield table_row(name, systems[reverse], f"{steps:,}", shown(errors, ".4f"), median)
