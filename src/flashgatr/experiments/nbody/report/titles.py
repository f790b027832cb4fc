"""Titles and explanations in the n-body report."""

from __future__ import annotations

from typing import Any

TITLE = "n-body: where will the bodies be?"
INTRODUCTION = """<p>Models receive the masses, positions and velocities of bodies that attract each
other, and predict their positions at a later time. The error of a system is the mean squared
difference over all coordinates. A few systems in which bodies nearly collide dominate the mean;
the median, the 90 % quantile and the mean of the best 99 % of the systems are therefore shown as
well. ± is the standard error over seeds.</p>"""
MODELS = {
    "gatr": "GATr",
    "gatr_e3": "GATr with types",
    "gatr_e3_wide": "GATr with types, wider",
    "segnn": "SEGNN",
    "se3_transformer": "SE(3)-Transformer",
    "transformer": "Transformer",
    "gca_gnn": "GCA-GNN",
    "gca_mlp": "GCA-MLP",
    "mlp": "MLP",
}
SETS = {
    "eval": (
        "New systems",
        "Drawn like the training systems. README: values from the README of the authors' code.",
    ),
    "more_bodies": ("More bodies", "Six bodies instead of four."),
    "translated": ("Translated", "Other systems, centred at (200, 0, 0) instead of the origin."),
    "eval_moved": (
        "Moved",
        "The systems of the first table, translated by (200, 0, 0): the errors of an equivariant "
        "model do not change.",
    ),
    "val": ("Validation systems", "They choose the weights of a run, and settings."),
}
"""Evaluation sets: title and explanation."""
METRICS = {"mse": "mean", "median": "median", "q90": "90 % quantile", "trimmed": "best 99 %"}
CAPTIONS = {
    "figure.png": "Mean over seeds of the mean squared error, and its standard error.",
    "curves.png": "Mean squared error on the validation set during training, one line per run.",
    "trajectories.png": "Four of the new systems, chosen by the rank of GATr's error, which is "
    "given above each, viewed along the axis in which they extend least. A thin line connects the "
    "final position of a body with a model's prediction.",
}
DASHES = " Grey dashes: the README of the authors' code."
DOTS = " Dotted: the guess that all bodies move on straight lines."
"""They follow the caption of figure.png where these are drawn."""
FIXED_SIZE = " An MLP takes only as many bodies as it was trained with."
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
"""The authors' results."""


def short(number: float, digits: int) -> str:
    """A number with a short exponent.

    >>> short(0.000123, 1)
    '1.2e-4'
    """
    mantissa, exponent = f"{number:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"
