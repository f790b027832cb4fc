import pytest
import torch

from flashgatr.experiments.bench import timing
from flashgatr.experiments.bench.timing import Found


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Results go to an empty folder, and no GPU is seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")  # git would be asked for every line
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(timing, "release", lambda: None)  # collecting garbage takes 0.2 s


@pytest.fixture
def once(monkeypatch):
    """Every step runs once; the first of several takes 1 ms, the second 2 ms, and so on."""

    asked = []

    def in_turn(steps, device, **options):
        asked.append(options)
        for step in steps:
            step()
        return [[float(number)] * 3 for number in range(1, len(steps) + 1)]

    monkeypatch.setattr(timing, "in_turn", in_turn)
    return asked


@pytest.fixture
def stand_in(monkeypatch):
    """A pretended GPU, and a function that replaces a measurement and returns what it was given."""
    monkeypatch.setattr(timing, "pick_device", lambda: torch.device("cuda"))

    def replace(module, name, time=lambda given: 1.0):
        seen = []

        def measure(*given, **options):
            seen.append((given, options))
            return Found({"time": time(given)})

        monkeypatch.setattr(module, name, measure)
        return seen

    return replace
