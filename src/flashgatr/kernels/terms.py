"""The sums of the geometric product and the join, written out as source text for compilers.

One generator serves every language whose products and sums read alike (Triton, C): the algebra's tables are the only source.
"""

from __future__ import annotations

from ..algebra import BLADES
from .bilinear import TERMS
from .rows import ORDER


def sums(form: str, slot: int, left: str, right: str) -> list[str]:
    """For every blade (in the order of rows), the sum that computes `slot` of a form from the other two slots.

    >>> sums("join", 2, "x", "y")[-1]
    'x15*y15'
    """
    place = {blade: i for i, blade in enumerate(ORDER)}
    found = [""] * BLADES
    for out, i, j, sign in TERMS[form, slot]:
        found[place[out]] += f"{'-' if sign < 0 else '+'}{left}{place[i]}*{right}{place[j]}"
    return [text.removeprefix("+") or "0.0" for text in found]
