"""The folder of compiled kernels: files that others can write, or that changed, are not loaded."""

import ctypes
import os
import shutil
from pathlib import Path

import pytest
import torch

from flashgatr.kernels.cpu import library as c_library
from flashgatr.user_cache import cache_folder

needs_compiler = pytest.mark.skipif(
    not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")),
    reason="there is no C compiler",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and kernels that compile in no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(c_library, "_signatures", dict)
    monkeypatch.setattr(
        c_library, "_source", lambda real: f"{real} kept; void flashgatr_run(void) {{}}\n"
    )
    return tmp_path / "flashgatr"


@pytest.fixture
def loaded(monkeypatch):
    """The content of the files that would be loaded as code."""
    contents = []
    monkeypatch.setattr(c_library, "Library", lambda path: contents.append(path.read_bytes()))
    return contents


def _load():
    return c_library.library.__wrapped__()  # without the cache of this process


def test_the_folder_is_made_for_the_user_alone(cache):
    assert cache_folder() == cache
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o720, 0o777, 0o722])
def test_a_folder_that_others_can_write_to_is_not_used(cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    assert cache_folder() is None


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_a_folder_that_others_can_read_is_used(cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    assert cache_folder() == cache


def test_a_folder_of_another_user_is_not_used(cache, monkeypatch):
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
    assert cache_folder() is None


@needs_compiler
def test_what_lies_in_a_folder_of_everybody_is_not_loaded(cache, loaded):
    _load()
    mine = list(loaded)
    for path in cache.glob("*.so"):
        path.write_bytes(b"somebody else's")
        path.with_suffix(".sha256").write_text(c_library._hash(path))
    cache.chmod(0o777)
    loaded.clear()
    assert _load() is not None
    assert len(loaded) == len(mine) == 2
    assert b"somebody else's" not in loaded


@needs_compiler
@pytest.mark.parametrize("damage", ["changed", "cut off", "empty", "no hash", "other hash", "gone"])
def test_a_damaged_library_is_built_again_and_never_loaded(cache, loaded, damage):
    _load()
    whole = list(loaded)
    victim = sorted(cache.glob("*.so"))[0]
    content = victim.read_bytes()
    if damage == "changed":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut off":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "no hash":
        victim.with_suffix(".sha256").unlink()
    elif damage == "other hash":
        victim.with_suffix(".sha256").write_text("0" * 64)
    else:
        victim.unlink()
    loaded.clear()
    assert _load() is not None
    assert loaded == whole
    assert victim.read_bytes() == content
    assert victim.with_suffix(".sha256").read_text() == c_library._hash(victim)


@needs_compiler
def test_an_intact_library_is_not_built_again(cache, loaded, monkeypatch):
    _load()
    whole = list(loaded)
    monkeypatch.setattr(c_library, "_build", lambda *_: pytest.fail("compiled again"))
    loaded.clear()
    assert _load() is not None
    assert loaded == whole


def test_without_the_threads_of_gnu_openmp_the_kernels_run_in_one(monkeypatch):
    probe = c_library._openmp.__wrapped__
    monkeypatch.setattr(c_library.ctypes, "CDLL", lambda name: object())
    assert probe() == (None, None)


def test_the_threads_of_torch_are_used_if_they_are_those_of_gnu_openmp():
    found = c_library._openmp.__wrapped__()
    has_threads = hasattr(ctypes.CDLL(None), "GOMP_parallel")
    assert [bool(address) for address in found] == [has_threads, has_threads]
    assert found[0] is None or found[0] != found[1]


def test_a_relative_cache_folder_is_ignored(tmp_path, monkeypatch):
    """As the XDG base directory specification demands: it would be a folder in every project."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    for given in ("cache", "./cache", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder() == home / ".cache" / "flashgatr"
    assert [x.name for x in tmp_path.iterdir()] == ["home"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine" / "flashgatr"


@needs_compiler
def test_another_processor_has_kernels_of_its_own(cache, monkeypatch):
    """A folder may be shared by machines; instructions of one may be unknown to another."""
    names = []
    for flags in ("sse avx", "sse", "sse"):
        monkeypatch.setattr(Path, "exists", lambda path: True)
        monkeypatch.setattr(Path, "read_text", lambda path, flags=flags: f"flags : {flags}\n")
        names.append(c_library._cache(["cc"], {torch.float32: "source"})[torch.float32].name)
    assert names[0] != names[1] == names[2]
