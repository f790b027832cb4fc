"""How far are the n-body labels from physics? The released integrator against a far finer one, on the same systems.

Most systems agree to many digits. Where two bodies nearly collide, the coarse steps throw them anywhere: those labels cannot be
predicted from physics, and they make up most of every model's mean squared error.
"""

from __future__ import annotations

import dataclasses
import tempfile

import torch

from ..nbody import data
from ..nbody.metrics import summarise, system_errors
from ..nbody.simulate import Gravity, State, evolve
from ..results import record

FINER = (50, 800, 200)
"""Leapfrog steps per step of the released integrator. The mean does not converge: encounters are chaotic."""


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data.generate(folder, others=5000, sets=["eval"], workers=1)
        systems = data.load(folder, "eval")
    state = State(*(systems[name].numpy() for name in ("mass", "position", "velocity")))
    released = Gravity()
    for finer in FINER:
        fine = dataclasses.replace(
            released,
            steps=finer * released.steps,
            step_size=released.step_size / finer,
            integrator="leapfrog",
        )
        found = summarise(system_errors(torch.from_numpy(evolve(state, fine)), systems["target"]))
        for metric in ("mse", "median", "q90", "trimmed"):
            settings = dict(set="eval", finer=finer, integrator="leapfrog")
            record("nbody-labels", "fine integration", metric, found[metric], "length²", settings)
            print(f"{finer:>5} times finer, {metric:>8} {found[metric]:.3e}")
