"""The settings of a run: dataclasses that are checked on construction, read from and saved as TOML.

    experiment = "springs"      config = load("run.toml")
    [model]                     config = override(config, ["train.steps=5", "model.name=mlp"])
    name = "transformer"        save(config, "runs/first/config.toml")
    [model.options]
    num_blocks = 2              loads(dumps(config)) == config, exactly

Every file or override gives a valid RunConfig or a ConfigError that says in one sentence what is
wrong. Settings that a file does not mention have their defaults: those of the argument `defaults`,
or else of the section.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from ..io import files
from . import toml
from .toml import ConfigError as ConfigError

MAX_BYTES = 1 << 16
"""Largest file. A run's settings fill a page; the parser can be very slow on malicious text."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")
# quoted parts of a key may contain an =
_ASSIGNMENT = re.compile(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^="'])*)=(.*)""", re.DOTALL)

AnySection = TypeVar("AnySection", bound="Section")


class Section:
    """One table of the file. Values are converted to their field's type, or an error is raised."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, hint in _types(type(self)).items():
            value = _conform(hint, getattr(self, name), self._path(name))
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Raise an error for values that have the right type but are invalid."""

    @classmethod
    def _path(cls, name: str) -> str:
        return f"{cls.table}.{name}" if cls.table else name

    def _require(self, name: str, fits: bool, expected: str, advice: str = "") -> None:
        if not fits:
            value = toml.show(getattr(self, name))
            raise ConfigError(f"{self._path(name)} must be {expected}, got {value}{advice}")

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
    during the first `warmup` steps.  clip: largest norm of the gradient (0: no limit).
    ema: decay of the averaged weights (0: no average).  restore_best: end with the weights of the
    best validation.  max_bad_steps: number of successive steps without a finite gradient that ends
    the run.
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
        for name in ("lr", "lr_final"):
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


Defaults = Callable[[object], Mapping[str, Any]]
"""From the value of the key `experiment` (None if the file lacks it) to its defaults."""


def no_defaults(experiment: object) -> Mapping[str, Any]:
    """No defaults other than those of the sections."""
    return {}


def load(
    path: str | os.PathLike[str],
    experiment: str | None = None,
    *,
    defaults: Defaults = no_defaults,
) -> RunConfig:
    """Read a TOML file. `experiment`, if given, replaces the one that the file names."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(path)!r}: {reason}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(
            f"{path} must be a run's settings, at most {MAX_BYTES} bytes; it is larger"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from error
    return loads(text, source=str(path), experiment=experiment, defaults=defaults)


def loads(
    text: str,
    *,
    source: str = "configuration",
    experiment: str | None = None,
    defaults: Defaults = no_defaults,
) -> RunConfig:
    """A configuration from TOML text; `source` names it in errors."""
    values = toml.parse(text, source)
    if experiment is not None:
        values["experiment"] = experiment
    try:
        return from_dict(values, defaults(values.get("experiment")))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def save(config: RunConfig, path: str | os.PathLike[str]) -> None:
    """Write a TOML file that `load` reads back exactly; a failure leaves the file as it was."""
    write_atomically(path, dumps(config))


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replace a file atomically; its folder is created if it does not exist."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, content.encode() if isinstance(content, str) else content)


def dumps(config: RunConfig) -> str:
    """The configuration as TOML, every value spelled out."""
    text = toml.dumps(to_dict(config))
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(
            f"a run's settings must fit into {MAX_BYTES} bytes, got {len(text.encode())}; keep "
            "long lists in a data file"
        )
    return text


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain dictionaries, lists, strings and numbers, as in the file; a copy."""
    values = dataclasses.asdict(config)
    values["train"]["betas"] = list(config.train.betas)
    return values


def from_dict(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> RunConfig:
    """The inverse of `to_dict`. Missing keys have their default, unknown ones are an error.

    `defaults` are nested tables of values that replace the sections' own defaults.

    >>> from_dict({"train": {"lr": 1e-3}}, {"train": {"batch_size": 8}}).train.batch_size
    8
    """
    if defaults and isinstance(values, Mapping):
        values = _over(defaults, values)
    return _fill(RunConfig, values)


def _over(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with defaults for missing keys; tables are merged."""
    found = {**defaults, **values}
    for key, default in defaults.items():
        if isinstance(default, Mapping) and isinstance(found[key], Mapping):
            found[key] = {**default, **found[key]}
    return found


def override(config: RunConfig, assignments: Sequence[str]) -> RunConfig:
    """The configuration with keys set, as in `["train.steps=5", "model.name=mlp"]`.

    Values are TOML; a bare word is a string. All are set before the result is checked.

    >>> override(RunConfig(), ["train.steps=5", "model.options.rotary=true"]).model.options
    {'rotary': True}
    """
    values = to_dict(config)
    for assignment in assignments:
        path, value = read_assignment(assignment)
        _put(values, path, value)
    return from_dict(values)


def suggest(key: str, known: Sequence[str]) -> str:
    """A hint for an unknown dotted key: the closest known key, or all keys of the same table.

    >>> suggest("train.step", ["seed", "train.steps", "train.lr"])
    'did you mean train.steps?'
    """
    table, _, name = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == table}
    every = {k.rpartition(".")[2]: k for k in reversed(known)}
    close = difflib.get_close_matches(name, siblings, n=1)
    if close:
        return f"did you mean {siblings[close[0]]}?"
    close = difflib.get_close_matches(name, every, n=1, cutoff=0.8)
    if close:
        return f"did you mean {every[close[0]]}?"
    return f"known: {', '.join(siblings.values() or known)}"


def _types(cls: type[Any]) -> dict[str, Any]:
    """Types of a section's fields."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _known(cls: type[Any]) -> tuple[str, ...]:
    """Dotted paths of all keys: those of this table, then those of the tables in it."""
    types = _types(cls)
    own = [cls._path(name) for name in types]
    return (*own, *(path for t in types.values() if _is_section(t) for path in _known(t)))


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def _fill(cls: type[AnySection], values: object) -> AnySection:
    """A section from the tables of a file."""
    if not isinstance(values, Mapping):
        name = cls.table or "a configuration"
        raise ConfigError(f"{name} must be a table, got {toml.show(values)}")
    types = _types(cls)
    for key in values:
        if key not in types:
            raise _unknown(cls._path(toml.join((str(key),))))
    return cls(
        **{
            name: _fill(types[name], value) if _is_section(types[name]) else value
            for name, value in values.items()
        }
    )


def _unknown(key: str) -> ConfigError:
    key = toml.shorten(key, 80)
    return ConfigError(f"unknown key {key}; {suggest(key, _known(RunConfig))}")


def _conform(hint: Any, value: Any, where: str) -> Any:
    """The value converted to the field's type, or an error."""

    def expect(fits: bool, expected: str) -> None:
        if not fits:
            advice = _advice(expected, value)
            raise ConfigError(f"{where} must be {expected}, got {toml.show(value)}{advice}")

    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if _is_section(hint):
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


def read_assignment(assignment: str) -> tuple[tuple[str, ...], Any]:
    """The parts of the key, and the value."""
    shown = toml.show(assignment)
    found = _ASSIGNMENT.fullmatch(assignment) if isinstance(assignment, str) else None
    if found is None or "\n" in found[1] or found[1].lstrip()[:1] in ("#", "["):
        raise ConfigError(f"expected KEY=VALUE, such as train.steps=1000, got {shown}")
    if not found[2].strip():
        raise ConfigError(f'{shown} has no value; write "" for an empty string')
    path: list[str] = []
    inner: Any = toml.parse(f"{found[1]} = 0", f"the key of {shown}")
    while isinstance(inner, dict):
        ((key, inner),) = inner.items()
        path.append(key)
    return tuple(path), _read_value(found[2].strip(), shown)


def _read_value(text: str, shown: str) -> Any:
    """The value of valid TOML; other text is a string."""
    foreign = {"True": "write true", "False": "write false", "None": "leave out keys without value"}
    if text in foreign:
        raise ConfigError(f"the value of {shown} is Python, expected TOML; {foreign[text]}")
    try:
        values = toml.parse(f"value = {text}", f"the value of {shown}")
    except ConfigError:
        if text[0] in "\"'[{":
            raise
        return text
    return values["value"] if len(values) == 1 else text


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set one key. Missing tables on its path are created, which is possible within options."""
    section: Any = RunConfig
    for i, key in enumerate(path):
        if _is_section(section):
            if key not in _types(section):
                raise _unknown(toml.join(path[: i + 1]))
            section = _types(section)[key]
        if i == len(path) - 1:
            break
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            name = toml.shorten(toml.join(path[: i + 1]), 80)
            raise ConfigError(f"{name} is {toml.show(values)}, which has no keys of its own")
    if _is_section(section):
        example = f"{_known(section)[0]}=…"
        raise ConfigError(f"{path[-1]} is a table; set its keys one by one, as in {example}")
    values[path[-1]] = value
