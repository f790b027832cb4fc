"""How accurate are the n-body labels? The released integrator against a far finer one, on the same
systems.

Most systems agree to many digits. After a near-collision of two bodies, however, the coarse steps
leave them at essentially arbitrary positions: physics cannot predict those labels, and they make up
most of every model's mean squared error.

How low can the mean squared error be for a model that predicts all but the closest encounters? To
answer this, the released integrator runs with the gravity between planets softened below a
distance.
"""

from __future__ import annotations

import dataclasses
import tempfile

import numpy as np
import torch
from torch import Tensor

from ...nbody import data
from ...nbody.metrics import summarise, system_errors
from ...nbody.simulate import Array, Gravity, State, evolve
from ...results import record

METRICS = ("mse", "median", "q90", "trimmed")
FINER = (50, 800, 200)
"""Leapfrog steps per step of the released integrator. The mean does not converge, because
encounters are chaotic."""

SOFTENED = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Distances below which gravity between planets is softened; with the largest, planets hardly
attract each other."""


def softened(state: State, settings: Gravity, distance: float) -> Array:
    """Final positions by semi-implicit Euler, as the released integrator, but with the softened
    distance √(r² + ε²) between planets.
    """
    mass, position, velocity = state
    center = position.mean(axis=1, keepdims=True)
    x, v = position - center, velocity
    is_planet = mass < mass.max(axis=1, keepdims=True)
    squared = distance**2 * (is_planet[:, :, None] & is_planet[:, None, :])
    squared += np.eye(mass.shape[1])  # a body does not attract itself: 0 / 1
    for _ in range(settings.steps):
        d = x[:, None] - x[:, :, None]
        r = np.sqrt(np.square(d).sum(-1) + squared)
        v = v + settings.step_size * (mass[:, None, :, None] * d / r[..., None] ** 3).sum(2)
        x = x + settings.step_size * v
    return np.asarray(x + center)


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
        _report(
            "fine integration", evolve(state, fine), systems, finer=finer, integrator="leapfrog"
        )
    for distance in SOFTENED:
        found = softened(state, released, distance)
        _report("softened", found, systems, distance=distance, integrator=released.integrator)


def _report(model: str, target: Array, systems: dict[str, Tensor], **settings: object) -> None:
    found = summarise(system_errors(torch.from_numpy(target), systems["target"]))
    text = " ".join(f"{key}={value}" for key, value in settings.items())
    for metric in METRICS:
        record("nbody-labels", model, metric, found[metric], "length²", {"set": "eval", **settings})
    print(f"{model}, {text}: " + ", ".join(f"{name} {found[name]:.3e}" for name in METRICS))
