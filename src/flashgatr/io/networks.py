"""Saved networks: a folder with config.json and model.safetensors.

    {"format": 1, "model": "GATr", "flashgatr": version, "config": {...}, "sha256": of the weights}

Both files are written atomically, the configuration last: a folder holds the old network or the new
one, or loading it fails. Reading these files never runs code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ..version import __version__
from . import files
from .files import FileError, from_safetensors, to_safetensors

Net = TypeVar("Net", bound=nn.Module)

FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


class LoadError(ValueError):
    """A saved network cannot be read: it is missing, damaged or not a flashgatr network."""


def save(
    path: str | os.PathLike[str], model: str, config: dict[str, Any], state: Mapping[str, Tensor]
) -> None:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_safetensors(state)
    header = {
        "format": FORMAT,
        "model": model,
        "flashgatr": __version__,
        "config": config,
        "sha256": files.sha256(weights),
    }
    files.write(folder / WEIGHTS, weights)
    files.write(folder / CONFIG, (json.dumps(header, indent=2) + "\n").encode())


def load(path: str | os.PathLike[str], model: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors of a saved network, after checking that they belong together."""
    folder = Path(path)
    header = _read_header(folder / CONFIG)
    if header["model"] != model:
        hint = "" if "/" in model else f"; load it with {header['model']}.from_pretrained"
        raise LoadError(f"{folder} holds the network {header['model']}, expected {model}{hint}")
    weights = _read(folder / WEIGHTS)
    found = files.sha256(weights)
    if found != header["sha256"]:
        raise LoadError(
            f"{folder / WEIGHTS} is damaged or belongs to another {CONFIG}: its SHA-256 is "
            f"{found[:12]}…, expected {str(header['sha256'])[:12]}…; save the network again"
        )
    try:
        return header["config"], from_safetensors(weights)
    except FileError as error:
        raise LoadError(f"{folder / WEIGHTS} is not a safetensors file: {error}") from error


def fill(net: Net, state: Mapping[str, Tensor]) -> Net:
    """Copy tensors into a network, whose parameters adopt their dtypes; names and shapes must
    match exactly.
    """
    own = net.state_dict()
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or unknown:
        raise LoadError(
            f"the tensors do not fit the network: missing {missing[:4]}, unknown {unknown[:4]} "
            f"({len(missing)} and {len(unknown)} in all)"
        )
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            raise LoadError(
                f"tensor {name} has shape {tuple(tensor.shape)}, the network needs "
                f"{tuple(own[name].shape)}"
            )
        needed = own[name].dtype
        if not (tensor.is_floating_point() if needed.is_floating_point else tensor.dtype == needed):
            expected = "floating point" if needed.is_floating_point else needed
            raise LoadError(f"tensor {name} has dtype {tensor.dtype}, expected {expected}")
    copies = {k: x.detach().to(own[k].device, copy=True).contiguous() for k, x in state.items()}
    net.load_state_dict(copies, assign=True)
    return net


def _read_header(file: Path) -> dict[str, Any]:
    content = _read(file)
    try:
        header = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("config"), dict):
        raise LoadError(f"{file} does not describe a flashgatr network")
    if header.get("format") != FORMAT:
        raise LoadError(
            f"{file} has format {header.get('format')!r}, this version reads {FORMAT}; update "
            "flashgatr, or save the network again"
        )
    for key in ("model", "sha256"):
        if not isinstance(header.get(key), str):
            raise LoadError(f"{file} lacks {key!r}")
    return header


def _read(file: Path) -> bytes:
    try:
        return files.read(file)
    except OSError as error:
        raise LoadError(f"cannot read {file}: {error.strerror}") from error
    except FileError as error:
        raise LoadError(f"cannot read {file}: {error}") from error
