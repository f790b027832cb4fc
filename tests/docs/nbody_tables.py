"""Rows of the tables of docs/nbody.md, from the measurements."""

import statistics

from .measured import NETWORKS, measured, table_row

METRICS = ("mse", "median", "q90", "trimmed")
PLACES = {
    "eval": "`eval`",
    "eval_moved": "`eval`, moved",
    "more_bodies": "`more_bodies`",
    "translated": "`translated`",
}
ROBUST = {"data.options.huber": 0.01, "data.options.scaling": 0.3}


def per_seed(metric, model="gatr", where="eval", recipe="nbody_readme", **more):
    """The results of three runs of the recipe, one per seed."""
    if recipe == "nbody_robust":
        more = more or ROBUST
    chosen = dict(recipe=recipe, set=where, machine="H200", **more)
    return [measured("nbody-accuracy", metric, model=model, seed=k, **chosen) for k in range(3)]


def on_all_sets():
    for model, name in NETWORKS.items():
        for where, place in PLACES.items():
            if model == "mlp" and where == "more_bodies":
                yield table_row(name, place, *"––––")
            else:
                means = (statistics.mean(per_seed(metric, model, where)) for metric in METRICS)
                yield table_row(name, place, *(f"{x:.2e}" for x in means))


def limits(metric, **settings):
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
        share, mse = limits("share of mse", **chosen), limits("mse", **chosen)
        yield table_row(label, f"{systems:,}", f"{100 * share:.1f} %", f"{mse:.2e}")


def by_the_worst():
    for worst in (1, 5, 10, 50):
        yield table_row(worst, f"{100 * limits('share of mse', worst=worst):.0f} %")


def of_the_labels():
    fine = [
        measured("nbody-labels", metric, model="fine integration", set="eval", finer=200)
        for metric in METRICS
    ]
    yield table_row("leapfrog, 200 times finer steps", *(f"{x:.2e}" for x in fine))
    yield table_row(
        "GATr, mean of three seeds", *(f"{statistics.mean(per_seed(m)):.2e}" for m in METRICS)
    )


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
        yield table_row(label, *(f"{x:.1e}" for x in found))


def figure_mean(metric, model, samples, where, recipe="nbody_figure"):
    """The mean over the seeds of a point of the n-body figure."""
    seeds = (0,) if model == "mlp" else (0, 1)
    chosen = dict(recipe=recipe, train_samples=samples, set=where, machine="H200")
    found = [measured("nbody-accuracy", metric, model=model, seed=k, **chosen) for k in seeds]
    return statistics.mean(found)


def of_our_recipe():
    for where, place in PLACES.items():
        means = (statistics.mean(per_seed(m, where=where, recipe="nbody_robust")) for m in METRICS)
        yield table_row(place, *(f"{x:.2e}" for x in means))


def of_its_parts():
    for huber, loss in ((0.0, "squared error"), (0.01, "robust")):
        for spread, systems in ((0.0, "as they are"), (0.3, "of random size")):
            parts = {"data.options.huber": huber, "data.options.scaling": spread}
            means = (statistics.mean(per_seed(m, recipe="nbody_robust", **parts)) for m in METRICS)
            yield table_row(loss, systems, *(f"{x:.2e}" for x in means))


def of_the_steps():
    same = dict(machine="H200", batch=64, items=4, compile=False)
    networks = NETWORKS | {"segnn": "SEGNN", "se3_transformer": "SE(3)-Transformer"}
    for model, name in networks.items():
        times = (
            measured("nbody-step", "time", model=model, cuda_graph=graph, precision=how, **same)
            for graph, how in ((False, "float32"), (True, "float32"), (True, "tf32"))
        )
        yield table_row(name, *(f"{x:.2f}" for x in times))
