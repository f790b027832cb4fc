"""The settings of a run, read from and saved as TOML; `sections` has their values and checks.

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
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from ..io import files
from . import toml
from .sections import DataConfig as DataConfig
from .sections import ModelConfig as ModelConfig
from .sections import RunConfig as RunConfig
from .sections import Section as Section
from .sections import TrainConfig as TrainConfig
from .sections import is_section, types_of
from .toml import ConfigError as ConfigError

MAX_BYTES = 1 << 16
"""Largest file. A run's settings fill a page; the parser can be very slow on malicious text."""

# quoted parts of a key may contain an =
_ASSIGNMENT = re.compile(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^="'])*)=(.*)""", re.DOTALL)

AnySection = TypeVar("AnySection", bound="Section")
Options = TypeVar("Options")


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


def read_options(cls: type[Options], values: Mapping[str, Any]) -> Options:
    """data.options as an experiment's dataclass; unknown keys are an error."""
    known = list(get_type_hints(cls))
    for name in values:
        if name not in known:
            hint = suggest(f"data.options.{name}", [f"data.options.{key}" for key in known])
            raise ConfigError(f"unknown key data.options.{name}; {hint}")
    return cls(**values)


def check_options(options: Any, **least: int) -> None:
    """Check the values of an experiment's dataclass of data.options by the types of its fields.

    They may be literals, booleans, and integers of at least 0, or of the numbers in `least`.
    """
    for name, hint in get_type_hints(type(options)).items():
        value, choices = getattr(options, name), get_args(hint)
        if choices:
            fits, expected = value in choices, f"one of {', '.join(map(repr, choices))}"
        elif hint is bool:
            fits, expected = isinstance(value, bool), "true or false"
        else:
            smallest = least.get(name, 0)
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= smallest
            expected = f"an integer of at least {smallest}"
        if not fits:
            raise ConfigError(f"data.options.{name} must be {expected}, got {value!r}")


def _known(cls: type[Any]) -> tuple[str, ...]:
    """Dotted paths of all keys: those of this table, then those of the tables in it."""
    types = types_of(cls)
    own = [cls.path(name) for name in types]
    return (*own, *(path for t in types.values() if is_section(t) for path in _known(t)))


def _fill(cls: type[AnySection], values: object) -> AnySection:
    """A section from the tables of a file."""
    if not isinstance(values, Mapping):
        name = cls.table or "a configuration"
        raise ConfigError(f"{name} must be a table, got {toml.show(values)}")
    types = types_of(cls)
    for key in values:
        if key not in types:
            raise _unknown(cls.path(toml.join((str(key),))))
    return cls(
        **{
            name: _fill(types[name], value) if is_section(types[name]) else value
            for name, value in values.items()
        }
    )


def _unknown(key: str) -> ConfigError:
    key = toml.shorten(key, 80)
    return ConfigError(f"unknown key {key}; {suggest(key, _known(RunConfig))}")


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
        if is_section(section):
            if key not in types_of(section):
                raise _unknown(toml.join(path[: i + 1]))
            section = types_of(section)[key]
        if i == len(path) - 1:
            break
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            name = toml.shorten(toml.join(path[: i + 1]), 80)
            raise ConfigError(f"{name} is {toml.show(values)}, which has no keys of its own")
    if is_section(section):
        example = f"{_known(section)[0]}=…"
        raise ConfigError(f"{path[-1]} is a table; set its keys one by one, as in {example}")
    values[path[-1]] = value
