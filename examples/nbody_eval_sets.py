"""How much does the mean error of a model depend on the 5,000 systems it is evaluated on?

    python examples/nbody_eval_sets.py RUN [--sets 10] [--out errors.json]

Draws further evaluation sets from the same distribution (data seeds 1, 2, ...) and evaluates a
trained n-body run on each. Also writes the error and the closest encounter of every system of the
run's own `eval` set.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from flashgatr.experiments import runs
from flashgatr.experiments.nbody import data
from flashgatr.experiments.nbody.metrics import summarise
from flashgatr.experiments.nbody.simulate import Gravity, State, evolve
from flashgatr.train import distributed


def closest(systems):
    """Smallest distance between any two bodies at any step of the integration, (N)."""
    state = State(*(systems[name].numpy() for name in ("mass", "position", "velocity")))
    bodies = state.mass.shape[1]
    _, path = evolve(state, Gravity(bodies=bodies), keep=1)
    distance = np.linalg.norm(path[:, :, :, None] - path[:, :, None], axis=-1)
    return (distance + np.diag([np.inf] * bodies)).min((1, 2, 3))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("errors.json"))
    options = parser.parse_args()
    config = runs.load_config(options.run)
    world = distributed.join(config.device)
    task = runs.make_task(config, world)
    task.model.load_state_dict(runs.load_model(config).state_dict())
    task.model.to(world.device).eval()

    own = data.load(config.data.folder, "eval")
    errors = task.errors(task.model, own)
    found = {"own": summarise(errors), "others": []}
    for seed in range(1, options.sets):
        with tempfile.TemporaryDirectory() as folder:
            data.generate(folder, others=5000, seed=seed, sets=["eval"], workers=1)
            summary = summarise(task.errors(task.model, data.load(folder, "eval")))
        found["others"].append(summary)
        print(f"data seed {seed}: mse {summary['mse']:.3e}, trimmed {summary['trimmed']:.3e}")
    means = torch.tensor([found["own"]["mse"], *(x["mse"] for x in found["others"])])
    print(
        f"mse of one model over {len(means)} sets: mean {means.mean():.3e}, std {means.std():.3e}"
    )
    found["errors"], found["closest"] = errors.tolist(), closest(own).tolist()
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
