"""Checkpoints: folders of safetensors and JSON files, complete or absent.

    checkpoints/step-00001000/   model.safetensors  optimizer.safetensors  …  state.json
    checkpoints/latest           the name of the newest complete one

state.json has the SHA-256 of each file.

A checkpoint is written to a temporary folder, flushed to disk and renamed; the file `latest` is
for people and is replaced last. Reading checks every hash and falls back to the previous
checkpoint. A checkpoint that is removed is renamed first. Reading never runs code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..io.files import (
    from_safetensors,
    read,
    sha256,
    sync_folder,
    to_safetensors,
    write,
    write_through,
)

FORMAT = 1
LATEST = "latest"
STATE = "state.json"
# A checkpoint has the suffix .old while another one of the same step replaces it.
_NAME = re.compile(r"step-(\d{8,})(\.old)?", re.ASCII)
_GROUP = re.compile(r"[a-z]+")
_DAMAGE = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read."""


class DamagedError(CheckpointError):
    """A folder has checkpoints, but none of them is intact."""


@dataclass(frozen=True)
class Checkpoint:
    """Groups of named tensors ("model", "optimizer", ...), and a state of numbers and strings."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Write a checkpoint; of this one and those before it, keep the newest `keep`.

    Checkpoints of later steps are removed: they are damaged, because otherwise the run would have
    resumed from them. If writing fails, the previous checkpoint remains.
    """
    final = folder / f"step-{checkpoint.step:08d}"
    old = folder / f"{final.name}.old"
    aside = folder / f".{final.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        _clear_leftovers(folder)
        aside.mkdir()
        hashes = {}
        for group, tensors in checkpoint.tensors.items():
            content = to_safetensors(tensors)
            hashes[group] = sha256(content)
            write_through(aside / f"{group}.safetensors", content)
        header = {
            "format": FORMAT,
            "step": checkpoint.step,
            "sha256": hashes,
            "state": checkpoint.state,
        }
        write_through(aside / STATE, _sealed(header))
        sync_folder(aside)
        if final.exists():
            _drop(old)
            final.rename(old)
        aside.rename(final)
        sync_folder(folder)
        _swap_latest(folder, final.name)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"cannot save a checkpoint in {folder}: {error.strerror or error}; the previous one is "
            "intact; free some space or choose another folder and resume"
        ) from error
    with suppress(OSError):  # the new one is complete; the next save tries again to remove others
        _drop(old)
        names = _complete(folder)
        first = names.index(final.name)
        for name in (*names[:first], *names[first + keep :]):
            _drop(folder / name)
    return final


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint to load, intact or not."""
    return bool(_complete(folder))


def load(folder: Path) -> Checkpoint | None:
    """The newest intact checkpoint, or None if there are no checkpoints."""
    try:
        names = _complete(folder)
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror or error}") from error
    problems = []
    for name in names:
        try:
            return _read(folder / name)
        except CheckpointError as error:
            problems.append(str(error))
            warnings.warn(f"{error}; trying the checkpoint before it", stacklevel=2)
    if problems:
        raise DamagedError(
            f"no checkpoint in {folder} is intact: {'; '.join(problems)}; delete the folder to "
            "start from the beginning"
        )
    return None


def _read(path: Path) -> Checkpoint:
    try:
        content = read(path / STATE)
        header = json.loads(content)
        if content != _sealed(header):
            raise ValueError("its header does not match its own hash")
        if header.get("format") != FORMAT:
            raise ValueError(f"it has format {header.get('format')!r}, this version reads {FORMAT}")
        step, state = header["step"], dict(header["state"])
        if path.name.removesuffix(".old") != f"step-{step:08d}":
            raise ValueError(f"it holds step {step}")
        tensors = {}
        for group, expected in header["sha256"].items():
            if not _GROUP.fullmatch(group):
                raise ValueError(f"{group!r} is not the name of a group of tensors")
            content = read(path / f"{group}.safetensors")
            if sha256(content) != expected:
                raise ValueError(f"{group}.safetensors does not match its hash")
            tensors[group] = from_safetensors(content)
        return Checkpoint(step, tensors, state)
    except _DAMAGE as error:
        raise CheckpointError(f"checkpoint {path.name} is damaged: {error}") from error


def _sealed(header: Mapping[str, Any]) -> bytes:
    """The exact bytes of the header's file: its content and the hash of that content."""
    content = {key: value for key, value in header.items() if key != "seal"}
    seal = sha256(json.dumps(content, sort_keys=True).encode())
    return json.dumps({**content, "seal": seal}, indent=1).encode()


def _complete(folder: Path) -> list[str]:
    """Names of the checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    found = [match for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [match[0] for match in sorted(found, key=lambda m: (-int(m[1]), m[2] or ""))]


def _swap_latest(folder: Path, name: str) -> None:
    write(folder / LATEST, f"{name}\n".encode())
    sync_folder(folder)


def _drop(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a killed process leaves no part of it."""
    away = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _clear_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    for path in (*folder.glob(".step-*"), *folder.glob(f".{LATEST}.*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
