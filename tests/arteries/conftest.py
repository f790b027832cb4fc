"""Stands in for prepared data."""

import pytest

from flashgatr.experiments.arteries import task

from .walls import chosen, walls


@pytest.fixture
def no_files(monkeypatch):
    monkeypatch.setattr(task, "load", walls)
    monkeypatch.setattr(task, "choose", chosen)
