"""What can be reached on the charged five-body benchmark without learning, and by symmetry?

Predictions without a network (`charges.linear`) are fitted to the first 3,000 training systems and
compared on the 2,000 test systems, for every law of force, input step and horizon.

A model that is exactly equivariant cannot follow data that are not. The forces of the published
simulator are clipped per coordinate, so a rotated input leads to another motion. The mean squared
error that this costs at least is estimated from twelve rotated copies of every test input: it is
the variance of their targets, turned back.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import torch

from ....versors import sample, to_matrix
from ...charges.data import data_name, generate, load
from ...charges.linear import predictions
from ...charges.simulate import STANDARD, STEP_SIZE, Array, Interaction, State, evolve
from ...nbody.metrics import summarise, system_errors
from ...results import record

METRICS = ("mse", "median", "q90", "trimmed")
OTHER_INPUTS = {"charges": 100, "gravity": 3000}
"""Input steps other than the standard one that published tables seem to use."""
COPIES = 12


def rotation_variance(state: State, settings: Interaction, copies: int = COPIES) -> Array:
    """Variance of the final positions of every system over rotated copies of its state, at every
    horizon: (horizons, N).
    """
    turns = to_matrix(sample(copies, kind="rotation", generator=torch.Generator().manual_seed(0)))
    found = []
    for turn in turns[:, :3, :3].double().numpy():
        turned = State(state.charge, state.position @ turn.T, state.velocity @ turn.T)
        later = evolve(turned, settings, settings.horizons)
        found.append(np.stack([x.position @ turn for x in later]))
    return np.asarray(np.var(found, axis=0, ddof=1).mean(axis=(-2, -1)))


def run() -> None:
    for name, standard in STANDARD.items():
        others = [OTHER_INPUTS[name]] if name in OTHER_INPUTS else []
        for step in (*others, standard.input_step):
            settings = replace(standard, input_step=step)
            with tempfile.TemporaryDirectory() as folder:
                generate(folder, settings)
                _linear(folder, settings)
                if step == standard.input_step and standard.force == "charges":
                    _symmetry(folder, settings)


def _linear(folder: str, settings: Interaction) -> None:
    data = data_name(settings.force, settings.clip)
    for horizon in settings.horizons:
        train, test = (load(folder, data, name, horizon) for name in ("train", "test"))
        for model, guess in predictions(train, test, horizon * STEP_SIZE).items():
            found = summarise(system_errors(guess, test["target"]))
            about = _about(settings, horizon) | {"train_samples": len(train["charge"])}
            for metric in METRICS:
                record("charges-accuracy", model, metric, found[metric], "length²", about)
            print(f"{data} from step {settings.input_step}, {horizon}: {model} {found['mse']:.4f}")


def _symmetry(folder: str, settings: Interaction) -> None:
    data = data_name(settings.force, settings.clip)
    test = load(folder, data, "test", settings.horizons[0])
    state = State(*(test[name].numpy() for name in State._fields))
    for horizon, values in zip(settings.horizons, rotation_variance(state, settings), strict=True):
        error = values.std(ddof=1) / np.sqrt(len(values))
        about = _about(settings, horizon) | {"copies": COPIES}
        for metric, value in (("mse", values.mean()), ("standard error", error)):
            record("charges-limits", "equivariant", metric, float(value), "length²", about)
        print(
            f"{data}, {horizon}: an equivariant model, at least {values.mean():.4f} ± {error:.4f}"
        )


def _about(settings: Interaction, horizon: int) -> dict[str, object]:
    told: dict[str, object] = {"horizon": horizon, "force": settings.force, "set": "test"}
    if settings.force == "charges":
        told["clip"] = settings.clip
    return told | {"input_step": settings.input_step}
