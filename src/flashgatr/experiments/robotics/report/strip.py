"""A film strip: pictures of one scene, a row per model, from the states that results hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...report import plots
from ...report.protocol import Run
from ..layouts import JOINT
from ..world import render
from ..world.arrays import Floats

SIZE = (320, 240)


def rows(runs: Sequence[Run]) -> dict[str, Floats]:
    """Per label: states (n, 39) of the run with the most demonstrations that has some."""
    found: dict[str, Floats] = {}
    for run in sorted(runs, key=lambda run: -(run.samples or 0)):
        for results in run.summary["results"].values():
            states = results.get("strip")
            if states is None or run.label in found:
                continue
            array = np.asarray(states, dtype=np.float64)
            if array.ndim != 2 or array.shape[1] != JOINT or not np.isfinite(array).all():
                raise ValueError(f"the states in the results of {run.folder} cannot be drawn")
            found[run.label] = array
    return found


def draw(runs: Sequence[Run]) -> bytes:
    """The picture."""
    strips = rows(runs)
    if not strips:
        raise ValueError("no run has results of planning; set data.options.scenes")
    from matplotlib.figure import Figure

    order = [run.label for run in runs if run.label in strips]
    shown = list(dict.fromkeys(order))[: plots.MOST_PANELS]
    columns = max(len(strips[label]) for label in shown)
    with plots.style():
        figure = Figure(figsize=(1.75 * columns, 1.5 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), columns, squeeze=False)
        for line, label in zip(axes, shown, strict=True):
            line[0].set_title(label, fontsize=9)
            for ax in line:
                ax.set_axis_off()
            for ax, state in zip(line, strips[label], strict=False):
                ax.imshow(render.picture(state, size=SIZE))
        return plots.png(figure)
