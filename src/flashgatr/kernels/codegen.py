"""What the C and Triton kernels get from Python: sums of products as text, and constants.

One generator serves both languages, since they write sums and products in the same way.
Everything is derived from the algebra's tables and the constants of `functional`.
"""

from __future__ import annotations

import math

from ..algebra import BLADES, E123, EUCLIDEAN, GRADES, POINT
from ..functional.features import DISTANCE_FEATURES, WITHOUT_E123, features_per_channel
from ..functional.linear import MAPS
from ..functional.norm import ACTIVATIONS, GELU_CUBIC, GELU_SLOPE, SCALAR_NORM_EPSILON
from ..functional.products import TERMS
from .rows import PLACE

INTEGERS = {
    "BLADES": BLADES,
    "GRADES": GRADES,
    "MAPS": MAPS,
    "EUCLIDEAN": len(EUCLIDEAN),  # blades in the norm: the first ones of a row
    "E123": PLACE[E123],
    "POINT_X": PLACE[POINT[0]],
    "POINT_Y": PLACE[POINT[1]],
    "POINT_Z": PLACE[POINT[2]],
    "INNER": len(WITHOUT_E123),  # blades in the inner product if distance-aware: the first ones
    "DISTANCES": DISTANCE_FEATURES,
    "FEATURES": features_per_channel(True),
    **{name.upper(): place for place, name in enumerate(ACTIVATIONS)},
}
"""Counts, and positions of blades in a row, by their names in the kernels."""
REALS = {
    "GELU_CUBIC": GELU_CUBIC,
    "GELU_CUBIC_TIMES_3": 3 * GELU_CUBIC,
    "GELU_SLOPE": GELU_SLOPE,
    "SQRT_HALF": math.sqrt(0.5),
    "NORMAL_DENSITY": 1 / math.sqrt(2 * math.pi),
    "SCALAR_NORM_EPSILON": SCALAR_NORM_EPSILON,
}
"""Real constants, by their names in the kernels."""


def sums(form: str, slot: int, left: str, right: str) -> list[str]:
    """For every blade, in the order of rows, the sum that gives `slot` of a form from the others.

    >>> sums("join", 2, "x", "y")[-1]
    'x15*y15'
    """
    found = [""] * BLADES
    for out, i, j, sign in TERMS[form, slot]:
        found[PLACE[out]] += f"{'-' if sign < 0 else '+'}{left}{PLACE[i]}*{right}{PLACE[j]}"
    return [text.removeprefix("+") or "0.0" for text in found]
