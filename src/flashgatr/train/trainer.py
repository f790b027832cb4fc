"""The training loop.

Step k is a function of (configuration, seed, k, weights): the batch, the learning rate and every
random number are derived from k. A run that is killed and resumed therefore ends with the same
weights, bit for bit, as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from . import checkpoint as checkpoints
from . import distributed, settings
from .answers import (
    MARK,
    checked_metrics,
    hash_of_batches,
    require_samples,
    require_task,
    same_data,
    undisturbed,
)
from .answers import TrainingError as TrainingError
from .checkpoint import Checkpoint
from .distributed import World
from .lock import FolderLock
from .log import Log
from .order import batch_indices, mix
from .precision import set_precision
from .settings import ConfigError, RunConfig, TrainConfig
from .stepper import Stepper, make_optimizer, set_learning_rate
from .task import Task

TRIAL = 100
"""A first validation at this step or later is tried at the beginning."""


class Interrupted(SystemExit):
    """A signal stopped the run, after a checkpoint. The exit code is 128 + signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def learning_rate(config: TrainConfig, step: int) -> float:
    """lr · (lr_final / lr)^(step / steps), updated every `decay_every` steps, with a warm-up."""
    start = step // config.decay_every * config.decay_every
    rate: float = config.lr * (config.lr_final / config.lr) ** (start / config.steps)
    if step < config.warmup:
        rate *= (step + 1) / config.warmup
    return rate


class Trainer:
    """Trains one task in one folder, starting from the folder's newest checkpoint.

    config: the settings, such as `flashgatr.train.settings.from_dict` makes. world: the processes,
    `flashgatr.train.distributed.join(config.device)`.

    It locks the folder: while it exists and its run has not ended, other processes are refused.
    """

    def __init__(self, task: Task, config: RunConfig, world: World) -> None:
        require_task(task)
        if not isinstance(config, RunConfig):
            raise TypeError(
                f"config must be a RunConfig, got {type(config).__name__}; make one with "
                "flashgatr.train.settings.from_dict"
            )
        self.task, self.config, self.world = task, config, world
        self.folder = Path(config.folder)
        self.train = config.train
        if config.train.batch_size < world.size:
            raise TrainingError(
                f"batch size {config.train.batch_size} is less than the {world.size} processes; "
                "start fewer, or set train.batch_size"
            )
        set_precision(config.train.precision)
        task.model.to(world.device)
        self.model = distributed.wrap(task.model, config.train.strategy, world)
        self.optimizer = make_optimizer(
            task.model, config.train, world.device, getattr(task, "rate_factors", None)
        )
        self._after_step: Callable[[], None] | None = getattr(task, "after_step", None)
        self.step = 0
        self._skipped = torch.zeros((), device=world.device)
        self._bad_in_a_row = torch.zeros((), device=world.device)
        self._reported = 0
        self._signal = 0
        self._is_saved = False
        self.best: dict[str, Tensor] = {}
        self.best_score = math.inf
        self.best_step = 0
        self.ema: dict[str, Tensor] = {}
        if config.train.ema:
            self.ema = {name: x.detach().clone() for name, x in task.model.state_dict().items()}
        model = task.model
        known: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        known |= dict(model.named_buffers(remove_duplicate=False))
        floats = [name for name, x in self.ema.items() if x.is_floating_point()]
        self._averages = [self.ema[name] for name in floats], [known[name] for name in floats]
        """The averages and the tensors that they follow. A state_dict per step would be slow."""
        self._copies = [(x, known[name]) for name, x in self.ema.items() if name not in floats]
        """Integers, such as counters, are copied instead of averaged."""
        self._batches = ""
        """A hash of a few batches, for a task without a `data_hash`."""
        self._has_compared = False
        self._lock = FolderLock(self.folder, world)
        """Held until the run ends, so that no other process trains in this folder meanwhile."""
        try:
            self._resume()
        except BaseException:
            self._lock.release()
            raise

    # ---- the run ----

    def run(self) -> dict[str, Any]:
        """Train to the last step, leave the best (or last) weights in the model, evaluate them."""
        quiet = not self.world.is_main
        with (
            self._lock,
            Log(self.folder, self.train.steps, start=self.step, quiet=quiet) as log,
            self._signals(),
        ):
            require_samples(self.task.samples)
            self.require_same_data()
            self._try_validation()
            if self.step:
                log.say(f"resumed at step {self.step}")
            stepper = Stepper(
                self.task,
                self.model,
                self.optimizer,
                self.train,
                self.world,
                log.say,
                counters=(self._skipped, self._bad_in_a_row),
            )
            while self.step < self.train.steps:
                self._advance(stepper, log)
            self._is_saved = True
            self._stop_if(self._signal, log)
            if not self.best:
                log.say(
                    "warning: no validation had a finite score, so there are no best weights; the "
                    "run ends with its last ones; check the task's validate and the data"
                )
            if self.train.restore_best and self.best:
                self._put(self.best)
            elif self.ema:
                self._put(self.ema)
            self.task.model.eval()
            torch.manual_seed(mix(self.config.seed, self.step, self.world.rank))
            with self._uncompiled():
                results = self.task.evaluate(self.task.model)
        return {
            "step": self.step,
            "best_step": self.best_step,
            "best_score": self.best_score if self.best else None,
            "skipped": self.skipped,
            "run": fingerprint(self.config),
            "results": results,
        }

    def _advance(self, stepper: Stepper, log: Log) -> None:
        """One step, followed by logging, validation and a checkpoint if they are due."""
        k, train = self.step, self.train
        torch.manual_seed(mix(self.config.seed, k, self.world.rank))
        indices = batch_indices(self.config.seed, k, train.batch_size, self.task.samples)
        mine = self.world.share(indices)
        rate = learning_rate(train, k)
        set_learning_rate(self.optimizer, rate)
        self.task.model.train()
        weight = self.world.size * self._count(mine) / self._count(indices)
        batch = mine if stepper.takes_numbers else self.task.batch(mine)
        loss, norm, _ = stepper.step(batch, weight)
        if self._after_step is not None:
            self._after_step()
        if self.ema:
            self._follow()
        self.step = k + 1
        last = self.step == train.steps

        if last or self.step % train.log_every == 0:
            log.record(self.step, "train", {"loss": loss.item(), "norm": norm.item(), "lr": rate})
        if last or self.step % train.validate_every == 0:
            self._validate(log)
        log.show_progress(self.step)
        stop = self.world.max(self._signal)
        save = last or stop or self.step % train.checkpoint_every == 0
        if save or self.step % train.log_every == 0 or self.world.device.type == "cpu":
            self._check_skipped(log)  # reads from the device, so not at every step of a GPU
        if save:
            log.sync()
            self.save()
        self._stop_if(stop, log)

    @torch.no_grad()
    def _follow(self) -> None:
        """Update the averaged weights."""
        torch._foreach_lerp_(*self._averages, 1 - self.train.ema)
        for average, x in self._copies:
            average.copy_(x)

    def _count(self, indices: Tensor) -> float:
        """Total weight of these samples in the batch's loss."""
        counts = getattr(self.task, "counts", None)
        return float(len(indices) if counts is None else sum(counts(indices)))

    @property
    def skipped(self) -> int:
        """Number of updates skipped because the loss or the gradient was not finite."""
        return int(self._skipped.item())

    def _check_skipped(self, log: Log) -> None:
        if self.skipped > self._reported:
            self._reported = self.skipped
            log.record(self.step, "skipped", {"updates": self.skipped}, show=False)
            log.say(
                f"step {self.step}: loss or gradient not finite, update skipped ({self.skipped} "
                "so far)"
            )
        in_a_row = int(self._bad_in_a_row.item())
        if in_a_row >= self.train.max_bad_steps:
            raise TrainingError(
                f"{in_a_row} steps in a row had a loss or gradient that is not finite, up to step "
                f"{self.step}; the weights are those from before; lower train.lr or check the data"
            )

    def _validate(self, log: Log) -> None:
        with self._averaged(), self._uncompiled():
            metrics = self._metrics()
            log.record(self.step, "validation", metrics)
            score = metrics["score"]
            is_finite = math.isfinite(score)
            if not is_finite:
                log.record(self.step, "warning", {"score": score}, show=False)
                log.say(f"step {self.step}: warning: the validation score is {score}, not a number")
            is_best = is_finite and score < self.best_score
            if self.world.max(int(is_best)):  # in all processes, which gather the weights together
                self.best_score, self.best_step = score, self.step
                self.best = self.weights()

    def _metrics(self) -> dict[str, float]:
        """What the task's validation finds."""
        self.task.model.eval()
        return checked_metrics(self.task.validate(self.task.model))

    def _try_validation(self) -> None:
        """Validate a new model, so that a wrong answer is found before hours of training.

        A validation takes as long as any other of the run. So there is no trial if the first one
        comes soon. FSDP prepares its shards in the first call, which must be one of training.
        """
        is_sharded = self.world.size > 1 and self.train.strategy == "fsdp"
        first = min(self.train.validate_every, self.train.steps)
        if self.step == 0 and not is_sharded and first >= TRIAL:
            with undisturbed(self.world.device), self._averaged(), self._uncompiled():
                self._metrics()

    # ---- state ----

    def weights(self) -> dict[str, Tensor]:
        """Copies of the model's current tensors, gathered from all processes, on the CPU."""
        return distributed.weights_of(self.task.model)

    def _uncompiled(self) -> AbstractContextManager[object]:
        """A context in which blocks run eagerly: other batch sizes need no compilation."""
        return torch.compiler.set_stance("force_eager") if self.train.compile else nullcontext()

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """A context in which the model has its averaged weights, if there are any."""
        if not self.ema:
            yield
            return
        own = {name: x.detach().clone() for name, x in self.task.model.state_dict().items()}
        self._put(self.ema)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, weights: dict[str, Tensor]) -> None:
        distributed.put_weights(self.task.model, weights)

    def save(self) -> None:
        """Write a checkpoint of everything that the rest of the run depends on."""
        tensors = {
            "model": self.weights(),
            "optimizer": distributed.moments_of(self.task.model, self.optimizer),
            "ema": {name: distributed.whole(x) for name, x in self.ema.items()},
            "best": self.best,
        }
        if self.world.is_main:
            state = {
                "best_score": self.best_score if self.best else None,
                "best_step": self.best_step,
                "skipped": self.skipped,
                "bad_in_a_row": int(self._bad_in_a_row.item()),
                "config": identity(self.config),
                "data": self._data_hash(),
            }
            point = Checkpoint(self.step, tensors, state)
            checkpoints.save(self.folder / "checkpoints", point, keep=self.train.keep_checkpoints)

    def _resume(self) -> None:
        """Continue from the newest intact checkpoint of this folder, if there is one."""
        found = checkpoints.load(self.folder / "checkpoints")
        step = found.step if found else 0
        if self.world.max(step) != -self.world.max(-step):
            raise TrainingError(
                f"the processes find different checkpoints in {self.folder}; it must be a folder "
                "that all machines share"
            )
        if found is None:
            return
        try:
            self._require_same_run(found.state["config"])
            self._require_same_data(found.state.get("data"))
            self._batches = found.state.get("data") or ""
            self._put(found.tensors["model"])
            distributed.put_moments(self.task.model, self.optimizer, found.tensors["optimizer"])
        except KeyError as error:
            raise TrainingError(
                f"cannot resume from {self.folder}: another version of flashgatr wrote its "
                f"checkpoints, which lack {error}"
            ) from error
        except ConfigError:
            raise
        except ValueError as error:
            raise TrainingError(f"cannot resume from {self.folder}: {error}") from error
        self.step = found.step
        self.best = found.tensors["best"]
        self.best_score = found.state["best_score"] if self.best else math.inf
        self.best_step = found.state["best_step"]
        self._reported = found.state["skipped"]
        self._skipped.fill_(self._reported)
        self._bad_in_a_row.fill_(found.state["bad_in_a_row"])
        for name, x in self.ema.items():
            x.copy_(distributed.like(found.tensors["ema"][name], x))

    def _require_same_run(self, theirs: dict[str, Any]) -> None:
        ours = identity(self.config)
        defaults = getattr(self.task, "option_defaults", {})
        for values in (ours, theirs):  # a default may be given or left out
            values["data.options"] = {**defaults, **values.get("data.options", {})}
        differ = [
            f"{key} was {theirs.get(key, _LATER.get(key))!r}, is {ours.get(key, _LATER.get(key))!r}"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
        ]
        if differ:
            raise ConfigError(
                f"{self.folder} holds a run with another configuration ({'; '.join(differ)}); "
                f"choose another folder, or resume with the one in {self.folder / 'config.toml'}"
            )

    def _require_same_data(self, theirs: str | None) -> None:
        ours = self._data_hash()
        if self.world.max(int(self.world.is_main and not same_data(theirs, ours))):
            raise ConfigError(
                f"{self.folder} holds a run on other training data than those in "
                f"{self.config.data.folder} (SHA-256 {_short(theirs)}…, now {_short(ours)}…); "
                "resume it with its own, or begin another run, which may take its weights "
                "(model.start); a task whose data_hash is '' is not compared"
            )

    def _data_hash(self) -> str | None:
        own: str | None = getattr(self.task, "data_hash", None)
        return self._batches if own is None else own

    def require_same_data(self) -> None:
        """Compare the batches of three steps with those that the run was begun with.

        `run` does so first, unless the task has a `data_hash`, which the constructor compares. The
        task sees step 0 meanwhile, since its batches may depend on the step.
        """
        if self._has_compared or getattr(self.task, "data_hash", None) is not None:
            return
        theirs, step = self._batches, self.step
        size, samples = self.train.batch_size, self.task.samples
        batches = [batch_indices(self.config.seed, k, size, samples) for k in range(3)]
        try:
            self.step = 0
            self._batches = hash_of_batches(self.task, batches, self.world.device)
        finally:
            self.step = step
        try:
            self._require_same_data(theirs)
        except ConfigError:
            self._batches = theirs
            raise
        self._has_compared = True

    # ---- signals ----

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, frame: FrameType | None) -> None:
            self._signal = number
            if self._is_saved:
                raise Interrupted(number)

        if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
            yield
            return
        watched = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, note) for number in watched]
        try:
            yield
        finally:
            for number, handler in zip(watched, before, strict=True):
                signal.signal(number, handler)

    def _stop_if(self, number: int, log: Log) -> None:
        """End the run if there was a signal. Called after a checkpoint."""
        if number:
            log.say(f"stopped by signal {number} after step {self.step}; a checkpoint is saved")
            raise Interrupted(number)


_FREE = {"folder", "device", "data.folder"} | {
    f"train.{key}"
    for key in ("checkpoint_every", "keep_checkpoints", "log_every", "max_bad_steps", "strategy")
}


_LATER = {"model.start": "", "train.eps": TrainConfig.eps}
"""Settings that early runs lack, and their defaults, which are no part of a run's identity."""


def identity(config: RunConfig) -> dict[str, Any]:
    """The settings that determine a run's weights, by dotted key.

    Where a run is stored and how often it saves have no influence on them.
    """
    values = settings.to_dict(config)
    for table in ("model", "data", "train"):
        values |= {f"{table}.{key}": value for key, value in values.pop(table).items()}
    for key, default in _LATER.items():
        if values[key] == default:
            del values[key]
    return {key: value for key, value in values.items() if key not in _FREE}


def fingerprint(config: RunConfig) -> str:
    """Hash of the settings that determine a run's weights."""
    text = json.dumps(identity(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _short(data: str | None) -> str:
    """The first digits of a hash of data."""
    return (data or "").removeprefix(MARK)[:12]
