"""Saved networks: a folder with config.json and model.safetensors. Nothing that is read can run code.

config.json   {"format": 1, "model": "GATr", "flashgatr": version, "config": {...}, "sha256": hash of the weights}

Files are written aside, flushed to disk and renamed, the configuration last: a folder is either the old network, the new one,
or refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .version import __version__

Net = TypeVar("Net", bound=nn.Module)

FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


class LoadError(ValueError):
    """A saved network cannot be read: missing, damaged, or not one of ours."""


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
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    _write(folder / WEIGHTS, weights)
    _write(folder / CONFIG, (json.dumps(header, indent=2) + "\n").encode())


def load(path: str | os.PathLike[str], model: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and tensors of a saved network, after checking that they belong together."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder = Path(path)
    header = _read_header(folder / CONFIG)
    if header["model"] != model:
        hint = "" if "/" in model else f"; load it with {header['model']}.from_pretrained"
        raise LoadError(f"{folder} holds a {header['model']}, not a {model}{hint}")
    weights = _read(folder / WEIGHTS)
    found = hashlib.sha256(weights).hexdigest()
    if found != header["sha256"]:
        raise LoadError(
            f"{folder / WEIGHTS} is damaged or belongs to another {CONFIG}: its SHA-256 is "
            f"{found[:12]}…, expected {str(header['sha256'])[:12]}…; save the network again"
        )
    try:
        return header["config"], from_bytes(weights)
    except SafetensorError as error:
        raise LoadError(f"{folder / WEIGHTS} is not a safetensors file: {error}") from error


def fill(net: Net, state: Mapping[str, Tensor]) -> Net:
    """Copy tensors into a network, whose parameters take their dtypes; names and shapes must match one to one."""
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
        if not tensor.is_floating_point():
            raise LoadError(f"tensor {name} has dtype {tensor.dtype}, expected floating point")
    copies = {k: x.detach().to(own[k].device, copy=True).contiguous() for k, x in state.items()}
    net.load_state_dict(copies, assign=True)
    return net


_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def to_safetensors(state: Mapping[str, Tensor]) -> bytes:
    """Tensors in the safetensors format: header length, JSON header, data.

    The library's own writer needs numpy, which the core does not install; its reader does not.
    """
    header: dict[str, Any] = {}
    chunks: list[bytes] = []
    start = 0
    for name, tensor in state.items():
        if type(tensor) not in (Tensor, nn.Parameter):
            raise TypeError(
                f"tensor {name} is a {type(tensor).__name__}; save whole tensors (of a sharded network: "
                "gather them first)"
            )
        if tensor.dtype not in _NAMES:
            raise TypeError(f"tensor {name} has dtype {tensor.dtype}, which cannot be saved")
        flat = tensor.detach().cpu().contiguous()
        end = start + flat.nbytes
        chunks.append(ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b"")
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *chunks])


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
        return file.read_bytes()
    except OSError as error:
        raise LoadError(f"cannot read {file}: {error.strerror}") from error


def _write(file: Path, content: bytes) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with aside.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
