"""`flashgatr predict kuka RUN`: a trained run plans one scene, and physics executes the plans.

It writes two files into a folder: NAME.gif, a film drawn without a graphics system, and
NAME.safetensors with plans (3, 128, 49), states (382, 39) of the executed episode, the state (39)
after the blocks settled, and rewards (3) after each phase. A policy acts instead of planning: its
file has actions (3, 128, 11) and states (385, 39). The header says where a file comes from; a
prediction of another origin is never replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ... import io
from ...io import files
from ...train import distributed
from ...train.precision import set_precision
from ...train.settings import override
from ...version import __version__
from .. import runs
from . import EXPERIMENT
from .evaluation import Planning, Way
from .offline_rl.acting import Acting
from .offline_rl.learner import Learner
from .offline_rl.transitions import ACTION
from .options import Options
from .planning import Episodes
from .world import physics, render, rewards, scenes
from .world.scenes import Setting

KEY, FORMAT = "kuka-prediction", 1
NO_SAMPLER = {"sampler": "", "sampling_steps": 0}
"""What a file says about the sampler of a policy, which acts frame by frame."""
EVERY = 3
"""Frames from one picture of a film to the next."""


class PredictionError(ValueError):
    """A prediction cannot be made or stored."""


@dataclass(frozen=True)
class Origin:
    """Where a prediction comes from, as its file says it."""

    run: str  # folder
    network_sha256: str  # of the file with the weights
    seed: int
    turned: bool
    engine: str
    sampler: str
    sampling_steps: int
    flashgatr: str = __version__

    def is_of_the_same(self, header: Mapping[str, Any]) -> bool:
        """Whether a file with this header has the same network, scene, sampler and engine."""
        own = {k: v for k, v in asdict(self).items() if k not in ("run", "flashgatr")}
        return all(header.get(name) == value for name, value in own.items())


@dataclass(frozen=True)
class Prediction:
    """One executed episode, and where it comes from."""

    episodes: Episodes  # with one episode
    origin: Origin

    @property
    def tower(self) -> list[int]:
        """The highest standing tower, from its lowest block up; [] if no block lies flat."""
        found = rewards.towers(self.episodes.settled[0])
        return found[0] if found else []

    def rows(self) -> Iterator[tuple[str, str]]:
        """The table that the command prints: names and values."""
        for phase, (reward, reached) in enumerate(
            zip(self.episodes.reward[0], self.episodes.reached[0], strict=True), start=1
        ):
            share = "" if reached == 1 else f", the arm attains {100 * reached:.0f} % of its poses"
            yield f"reward after phase {phase}", f"{reward:.1f} of 100{share}"
        height, missing = len(self.tower), sorted(set(range(4)) - set(self.tower))
        order = ", ".join(f"block {k}" for k in self.tower)
        yield "standing tower", f"{height} of 4" + f" (from the lowest up: {order})" * bool(height)
        if missing:
            rest = ", ".join(f"block {k} {self._place(k)}" for k in missing)
            yield "not reached", rest
        yield "engine", self.origin.engine
        if self.origin.sampler:
            yield "sampler", f"{self.origin.sampler}, {self.origin.sampling_steps} steps"

    def _place(self, block: int) -> str:
        x, y, z = self.episodes.settled[0][7 + 8 * block : 10 + 8 * block]
        return f"at ({x:.2f}, {y:.2f}, {z:.2f}) m"


def predict(
    run: Path,
    *,
    seed: int = 0,
    turned: bool = False,
    engine: str = "mujoco",
    sampler: str | None = None,
    sampling_steps: int | None = None,
    device: str = "",
) -> Prediction:
    """Plan and execute the scene of a seed with a trained run.

    By default with the quick sampler of `Options`, whatever the run was evaluated with: the
    ancestral one takes 3,000 calls of the network for the three phases, hours on a CPU.
    """
    physics.require(engine)
    scenes.require_seed(seed)
    config = runs.load_config(run)
    if config.experiment != EXPERIMENT.name:
        raise PredictionError(
            f"{run} is a run of the {config.experiment} experiment, not of {EXPERIMENT.name}"
        )
    if device:
        config = override(config, ["train.cuda_graph=false", f"device={device}"])  # no training
    asked = {"sampler": sampler, "sampling_steps": sampling_steps}
    given = {name: value for name, value in asked.items() if value is not None}
    quick = {name: getattr(Options(), name) for name in asked}
    options = Options.read({**config.data.options, **quick, **given})
    model = runs.load_model(config).to(distributed.join(config.device).device).eval()
    set_precision(config.train.precision)
    way: Way = Planning(model, options, config.train.precision)
    if isinstance(model, Learner):
        if given:
            raise PredictionError(
                f"{run} is a run of {config.model.name}, which acts frame by frame and has no "
                f"sampler; leave out --{next(iter(given)).replace('_', '-')}"
            )
        way = Acting(model)
    chance = scenes.random_stream("predict", seed, 0)
    scene = scenes.draw(chance, Setting(turned=turned))[None]
    episodes = way(scene, engine=engine, title="planning", seed=seed, workers=1)
    origin = Origin(
        run=str(run.resolve()),
        network_sha256=_sha256(run / "model" / io.WEIGHTS),
        seed=seed,
        turned=turned,
        engine=engine,
        **(way.facts or NO_SAMPLER),
    )
    return Prediction(episodes, origin)


def save(prediction: Prediction, folder: Path, *, every: int = EVERY) -> list[Path]:
    """Write the trajectory and the film, and return where they are (see `targets`)."""
    episodes = prediction.episodes
    is_policy = episodes.plans.shape[-1] == ACTION
    arrays = {
        "actions" if is_policy else "plans": episodes.plans[0],
        "states": episodes.states[0],
        "settled": episodes.settled[0],
        "reward": episodes.reward[0],
    }
    header = {"format": FORMAT, **asdict(prediction.origin), "tower": prediction.tower}
    content, _ = files.pack_arrays(
        KEY, header, {k: np.ascontiguousarray(x) for k, x in arrays.items()}
    )
    written = targets(folder, prediction.origin)
    folder.mkdir(parents=True, exist_ok=True)
    files.write(written[0], content)
    render.film(written[1], episodes.states[0], every=every)
    return written


def targets(folder: Path, origin: Origin) -> list[Path]:
    """FOLDER/seed-N.safetensors and .gif; an error if such files are no predictions.

    Predictions of another origin are kept: the name is then seed-N-2, seed-N-3, and so on.
    """
    require_folder(folder)
    for number in count(1):
        name = f"seed-{origin.seed}" + "-turned" * origin.turned + f"-{number}" * (number > 1)
        file, film = (folder / f"{name}{suffix}" for suffix in (".safetensors", ".gif"))
        if not file.exists():
            if film.exists():
                raise PredictionError(
                    f"{film} is there without a prediction beside it; choose another folder with "
                    "--out"
                )
            break
        if origin.is_of_the_same(read_origin(file)):
            break
    return [file, film]


def read_origin(file: Path) -> dict[str, Any]:
    """The header of a prediction's file, or an error if it is something else."""
    try:
        found, _ = files.unpack_arrays(files.read(file), KEY, FORMAT, {"seed": int})
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise _foreign(file) from error
    if not found:
        raise _foreign(file)
    return dict(found)


def require_folder(folder: Path) -> None:
    """Refuse a folder that cannot be created because a file has its name."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise PredictionError(f"--out must be a folder, but {there} is a file")


def _foreign(file: Path) -> PredictionError:
    return PredictionError(
        f"{file} is there and not a prediction by this command; choose another folder with --out"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
