"""Which models there are for which experiment: one table for all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

from torch import nn

Build = Callable[..., nn.Module]
_models: dict[tuple[str, str], Build] = {}


def register(experiment: str, name: str) -> Callable[[Build], Build]:
    """Decorator: this function builds the model `name` of an experiment from its options."""

    def put(build: Build) -> Build:
        if (experiment, name) in _models:
            raise ValueError(f"{experiment} has a model {name!r} already")
        _models[experiment, name] = build
        return build

    return put


def names(experiment: str) -> list[str]:
    return sorted(name for where, name in _models if where == experiment)


def build(experiment: str, name: str, options: dict[str, Any]) -> nn.Module:
    """The model; unknown names and options are an error."""
    known = names(experiment)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
        raise ValueError(f"{experiment} has no model {name!r}; {hint}")
    try:
        return _models[experiment, name](**options)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None or unknown[1] not in options:
            raise
        raise TypeError(f"the model {name!r} has no option {unknown[1]!r}") from error
