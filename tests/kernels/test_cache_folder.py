"""Where compiled kernels are kept."""

from pathlib import Path

from flashgatr.kernels.cpu import library


def test_a_relative_cache_folder_is_ignored(tmp_path, monkeypatch):
    """As the XDG base directory specification demands: it would be a folder in every project."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    for given in ("cache", "./cache", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert library._cache_folder() == home / ".cache" / "flashgatr"
    assert [x.name for x in tmp_path.iterdir()] == ["home"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert library._cache_folder() == tmp_path / "mine" / "flashgatr"
