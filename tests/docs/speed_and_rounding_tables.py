"""Rows of the tables of docs/fast.md and docs/precision.md, from the measurements."""

from flashgatr.experiments.bench import numerics

from .measured import latest_times, measured, table_row


def of_the_speed():
    """If a network was measured in several ways, the fastest counts."""

    def row(label, benchmark, digits, gatr, both):
        ours = min(latest_times(benchmark, "gatr", **gatr, **both))
        theirs = min(latest_times(benchmark, "transformer", **both))
        return table_row(label, *(f"{x:,.{digits}f} ms" for x in (ours, theirs)))

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
            yield table_row(dtype, "yes" if recenter else "no", *(f"{x:.1e}" for x in errors))


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
            yield table_row(name, label, *cells)
