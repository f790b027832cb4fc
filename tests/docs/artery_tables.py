"""Rows of the tables of the artery experiment's pages, from the measurements."""

from flashgatr.experiments.arteries.report.titles import REFERENCE as ARTERIES

from .measured import NETWORKS, measured, table_row

ORIENTATIONS = ("random", "canonical")
OURS = dict(recipe="arteries_ours", steps=20_000)
SHORT = dict(recipe="arteries_paper_short", steps=2000)
FEW = dict(recipe="arteries_ablations_ours", steps=6000)
FINE = (9346, 37_378, 233_602, 1_130_626)  # nodes of finer and finer meshes of one vessel


def artery(metric, model="gatr", split="test", orientation="random", train_meshes=800, **more):
    chosen = dict(orientation=orientation, train_meshes=train_meshes, machine="H200", seed=0)
    if split:
        chosen["split"] = split
    return measured("arteries-accuracy", metric, model=model, unchanged=True, **chosen, **more)


def beside_the_paper():
    columns = [(m, o) for o in ORIENTATIONS for m in ("gatr", "transformer")]
    paper = ARTERIES["epsilon"]
    cells = (paper[NETWORKS[m]][ORIENTATIONS.index(o)] for m, o in columns)
    yield table_row("the paper, with 1,600 meshes", "all", "200,000", *cells)
    some = [f"{artery('epsilon_mean', m, **SHORT):.2f}" for m in ("gatr", "transformer")]
    yield table_row("the paper's schedule, shortened", "all", "2,000", *some, "–", "–")
    for label, split in (("our recipe", "test"), ("the same, tested in float32", "test_float32")):
        some = (artery("epsilon_mean", m, split, o, **OURS) for m, o in columns)
        yield table_row(label, "1,024", "20,000", *(f"{x:.2f}" for x in some))


def of_our_artery_runs():
    digits = dict(epsilon_mean=2, epsilon_median=2, epsilon_q75=2, nmae=2, cosine=4)
    for orientation in ORIENTATIONS:
        for model in ("gatr", "transformer"):
            found = {k: artery(k, model, orientation=orientation, **OURS) for k in digits}
            cells = (f"{found[k]:.{n}f}" for k, n in digits.items())
            yield table_row(NETWORKS[model], orientation, *cells)


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
        cells = (artery("epsilon_mean", split=x, **OURS | changes) for x in splits)
        yield table_row(label, *(f"{x:.2f}" for x in cells))


def of_moved_arteries():
    for orientation in ORIENTATIONS:

        def of(metric, split, at=orientation):
            return artery(metric, split=split, orientation=at, **OURS)

        still = of("epsilon_mean", "test")
        cells = []
        for split, style in (("test_moved", ".1e"), ("test_mirrored", ".1%")):
            cells += [f"{of('change_max', split):{style}}".replace("%", " %")]
            cells += [f"{of('epsilon_mean', split) - still:+.3f}"]
        yield table_row(orientation, *cells)


def by_training_meshes():
    for model in ("gatr", "transformer"):
        cells = [
            artery("epsilon_mean", model, train_meshes=n, recipe="arteries_sizes_ours", steps=6000)
            for n in (100, 200, 400)
        ]
        cells.append(artery("epsilon_mean", model, **FEW))  # the ablations' runs are the same
        yield table_row(NETWORKS[model], *(f"{x:.2f}" for x in cells))


def unequal(metric, model, ragged=True, **width):
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
        fixed, own = (unequal("time per 1,000 items", ragged=x, **which) for x in (False, True))
        memory = unequal("memory", **which) / 1024
        cells = f"{fixed:.3f} ms", f"{own:.3f} ms", f"{own / fixed:.2f}", f"{memory:.1f} GiB"
        yield table_row(label, *cells)


def prepared(metric, nodes, stage="all"):
    found = dict(model="preprocessing", machine="CPU", nodes=nodes, stage=stage)
    return measured("artery-preprocessing", metric, **found)


def of_fine_meshes():
    for nodes in FINE:
        times = (prepared("processor time", nodes, x) for x in ("read and prepare", "draw"))
        memory = f"{prepared('memory', nodes):,.0f} MiB"
        yield table_row(f"{nodes:,}", *(f"{x:#.2g} s".replace(". ", " ") for x in times), memory)
