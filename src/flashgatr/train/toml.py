"""TOML for settings: a parser with one kind of error, and a writer; parsing its text is exact.

Values are plain: Unicode strings, 64-bit integers, finite numbers, booleans, lists and tables of
these.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_DEPTH = 16
"""Deepest nesting of lists and tables."""

_INTEGERS = range(-(1 << 63), 1 << 63)  # what TOML guarantees
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WHERE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class ConfigError(ValueError):
    """A run configuration is malformed, has unknown keys or wrong values."""


def parse(text: str, source: str) -> dict[str, Any]:
    """The tables of a TOML text; `source` names it in errors."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _WHERE.search(message)
        line = place[1] if place and place[1] else text.count("\n") + 1
        message = shorten(_WHERE.sub("", message), 160)
        raise ConfigError(f"{source}, line {line}: {message[:1].lower()}{message[1:]}") from error
    except (ValueError, OverflowError) as error:  # an integer of thousands of digits
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: lists or tables nest too deeply; make it flatter") from error


def dumps(table: Mapping[str, Any]) -> str:
    """Plain values as TOML.

    >>> print(dumps({"a": [1, 2.5], "b": {"c": "say \\"hi\\""}}), end="")
    a = [1, 2.5]
    <BLANKLINE>
    [b]
    c = "say \\"hi\\""
    """
    return "\n".join(_lines(table, ())) + "\n"


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of the value with tuples as lists, or an error if TOML cannot represent it."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where} nests deeper than {MAX_DEPTH} levels; make it flatter")
    match value:
        case bool():
            return value
        case int():
            if value not in _INTEGERS:
                raise ConfigError(f"{where} must be an integer of 64 bits, got {show(value)}")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ConfigError(f"{where} must be a finite number, got {show(value)}")
            return float(value)
        case str():
            return _text(value, where)
        case list() | tuple():
            return [plain(x, where, depth + 1) for x in value]
        case dict():
            return {
                _text(key, f"a key of {where}"): plain(x, f"{where}.{_key(str(key))}", depth + 1)
                for key, x in value.items()
            }
    raise ConfigError(
        f"{where} must be a string, number, true, false, list or table, got {show(value)}; leave "
        "out keys that have no value"
    )


def join(path: Sequence[str]) -> str:
    """A dotted key; parts are quoted where necessary."""
    return ".".join(map(_key, path))


def show(value: object) -> str:
    """Any value as text for a message, short and on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if value not in _INTEGERS:
            return "a huge integer"
        case None | int() | float() | str():
            return shorten(repr(value), 60)
        case Mapping():
            return "a table"
        case list() | tuple():
            few = len(value) <= 4 and all(isinstance(x, (bool, int, float, str)) for x in value)
            return f"[{', '.join(map(show, value))}]" if few else f"a list of {len(value)}"
    return f"a value of type {type(value).__name__}"


def shorten(text: str, length: int) -> str:
    """The text; if it is too long, its beginning and its last character."""
    return text if len(text) <= length else f"{text[: length - 2]}…{text[-1]}"


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be a string, got {show(value)}; put it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{where} must be Unicode text, got {show(value)}; save or type it as UTF-8"
        ) from None
    return str(value)


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The values of a table, then its subtables under their own headings."""
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{_key(key)} = {literal(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            inner = (*path, _key(key))
            yield from ("", f"[{'.'.join(inner)}]")
            yield from _lines(value, inner)


def literal(value: Any) -> str:
    """A value in TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _quote(value)
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case dict():
            pairs = (f"{_key(key)} = {literal(x)}" for key, x in value.items())
            return f"{{{', '.join(pairs)}}}"
    return repr(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quote(key)


_CONTROL = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
_ESCAPES = _CONTROL | {ord(c): f"\\{c}" for c in '\\"'} | {ord("\n"): "\\n", ord("\t"): "\\t"}


def _quote(text: str) -> str:
    """A basic string on one line."""
    return f'"{text.translate(_ESCAPES)}"'
