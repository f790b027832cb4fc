import pytest
import torch

from flashgatr.experiments.bench import timing


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    """Results go to an empty folder, and no GPU is seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGATR_COMMIT", "none")  # git would be asked for every line
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(timing, "release", lambda: None)  # collecting garbage takes 0.2 s
