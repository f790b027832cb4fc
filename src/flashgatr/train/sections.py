"""The sections of a run's settings: dataclasses that are checked on construction.

RunConfig holds a ModelConfig, a DataConfig and a TrainConfig. Every value has its field's type and
is valid, or constructing the section raises a ConfigError that says in one sentence what is wrong.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from . import toml
from .toml import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")


class Section:
    """One table of the file. Values are converted to their field's type, or an error is raised."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, hint in types_of(type(self)).items():
            value = _conform(hint, getattr(self, name), self.path(name))
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Raise an error for values that have the right type but are invalid."""

    @classmethod
    def path(cls, name: str) -> str:
        """The dotted key of one of its values."""
        return f"{cls.table}.{name}" if cls.table else name

    def _require(self, name: str, fits: bool, expected: str, advice: str = "") -> None:
        if not fits:
            value = toml.show(getattr(self, name))
            raise ConfigError(f"{self.path(name)} must be {expected}, got {value}{advice}")

    def _require_least(self, least: int, *names: str) -> None:
        for name in names:
            self._require(name, getattr(self, name) >= least, f"at least {least}")

    def _require_name(self, name: str) -> None:
        fits = _NAME.fullmatch(getattr(self, name)) is not None
        self._require(name, fits, "a name of letters, digits, - and _")

    def _require_folder(self, name: str) -> None:
        value = getattr(self, name)
        self._require(name, bool(value.strip()) and "\0" not in value, "the path of a folder")


@dataclass(frozen=True)
class ModelConfig(Section):
    """The model and its options.

    start: folder of a trained run, whose weights replace the random initial ones.
    """

    table: ClassVar[str] = "model"

    name: str = "gatr"
    options: dict[str, Any] = field(default_factory=dict)
    start: str = ""

    def _check(self) -> None:
        self._require_name("name")
        self._require("start", "\0" not in self.start, "the path of a folder")


@dataclass(frozen=True)
class DataConfig(Section):
    """Folder of the data, number of training samples (0: all), and the task's own options."""

    table: ClassVar[str] = "data"

    folder: str = "data"
    train_samples: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def _check(self) -> None:
        self._require_folder("folder")
        self._require_least(0, "train_samples")


@dataclass(frozen=True)
class TrainConfig(Section):
    """How to train.

    lr decays exponentially to lr_final over `steps`, every `decay_every` steps; it grows linearly
    during the first `warmup` steps.  eps: Adam's epsilon.
    clip: largest norm of the gradient (0: no limit).  ema: decay of the averaged weights (0: no
    average).  restore_best: end with the weights of the best validation.  max_bad_steps: number of
    successive steps without a finite gradient that ends the run.
    """

    table: ClassVar[str] = "train"

    steps: int = 50_000
    batch_size: int = 64
    lr: float = 3e-4
    lr_final: float = 3e-6
    decay_every: int = 1000
    warmup: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 10.0
    ema: float = 0.0
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False
    cuda_graph: bool = False
    checkpoint_every: int = 1000
    keep_checkpoints: int = 2
    validate_every: int = 1000
    log_every: int = 100
    restore_best: bool = True
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    max_bad_steps: int = 20

    def _check(self) -> None:
        self._require_least(1, "steps", "batch_size", "decay_every", "checkpoint_every")
        self._require_least(1, "keep_checkpoints", "validate_every", "log_every", "max_bad_steps")
        self._require_least(0, "warmup", "weight_decay", "clip")
        for name in ("lr", "lr_final", "eps"):
            self._require(name, getattr(self, name) > 0, "positive")
        limit = f"at most train.lr, which is {self.lr!r}"
        self._require("lr_final", self.lr_final <= self.lr, limit, "; set both for no decay")
        limit = f"at most train.steps, which is {self.steps}"
        self._require("warmup", self.warmup <= self.steps, limit)
        self._require("ema", 0 <= self.ema < 1, "at least 0 and less than 1")
        inside = all(0 <= beta < 1 for beta in self.betas)
        self._require("betas", inside, "two numbers of at least 0 and less than 1")


@dataclass(frozen=True)
class RunConfig(Section):
    """Everything that determines a run."""

    experiment: str = "experiment"
    folder: str = "runs/experiment"
    seed: int = 0
    device: str = "auto"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def _check(self) -> None:
        self._require_name("experiment")
        self._require_folder("folder")
        self._require_least(0, "seed")
        known = _DEVICE.fullmatch(self.device) is not None
        self._require("device", known, "auto, cpu, mps, cuda or cuda:NUMBER")
        if self.train.cuda_graph and self.device in ("cpu", "mps"):
            raise ConfigError(
                f"train.cuda_graph needs a CUDA device, but device is {self.device!r}; change one"
            )


def types_of(cls: type[Any]) -> dict[str, Any]:
    """Types of a section's fields."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def is_section(hint: Any) -> bool:
    """Whether a field's type is a section."""
    return isinstance(hint, type) and issubclass(hint, Section)


def _conform(hint: Any, value: Any, where: str) -> Any:
    """The value converted to the field's type, or an error."""

    def expect(fits: bool, expected: str) -> None:
        if not fits:
            advice = _advice(expected, value)
            raise ConfigError(f"{where} must be {expected}, got {toml.show(value)}{advice}")

    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_section(hint):
        expect(isinstance(value, hint), f"a {hint.__name__}")
        return value
    if get_origin(hint) is Literal:
        expect(isinstance(value, str) and value in get_args(hint), f"one of {_listed(hint)}")
    elif get_origin(hint) is tuple:
        length = len(get_args(hint))
        fits = isinstance(value, (list, tuple)) and len(value) == length
        expect(fits, f"a list of {length} numbers")
        return tuple(_conform(x, y, where) for x, y in zip(get_args(hint), value, strict=True))
    elif get_origin(hint) is dict:
        expect(isinstance(value, dict), "a table")
    elif hint is bool:
        expect(isinstance(value, bool), "true or false")
    elif hint is int:
        expect(is_number and isinstance(value, int), "an integer")
    elif hint is float:
        expect(is_number, "a number")
        return float(toml.plain(value, where))
    else:
        assert hint is str, hint
        expect(isinstance(value, str), "a string")
    return toml.plain(value, where)


def _listed(hint: Any) -> str:
    return ", ".join(map(repr, get_args(hint)))


def _advice(expected: str, value: object) -> str:
    if expected == "a string":
        return "; put it in quotes"
    if expected == "an integer" and isinstance(value, float) and value.is_integer():
        return "; write it without point or exponent"
    return ""
