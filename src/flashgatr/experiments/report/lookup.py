"""The experiments that runs can belong to."""

from __future__ import annotations

from .. import table
from ..experiment import Experiment


def known_experiments() -> dict[str, Experiment]:
    """All experiments by name. Of two with equally many runs, a report is about the first."""
    return {name: table.find(name) for name in table.names()}


def argument_of(experiment: str) -> str:
    """The argument that names an experiment: its name, or the user's file that defines it."""
    source = table.source(experiment)
    return experiment if source is None else str(source.path)
