"""Convert weights of the authors' code (package `gatr`).

For H heads of D channels, the authors' code numbers the channels of q, k and v as channel · H +
head, ours as head · D + channel. Both pack (q, k, v) outermost in the multi-head projection. Their
re-inserted channels are further inputs of the same matrix; ours have a matrix of their own.
Everything else is a renaming. The authors' files are pickles and are read with torch's weights-only
unpickler, in this module and nowhere else.
"""

from __future__ import annotations

import os
import pickle
import re
import stat
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..config import GATrConfig
from ..functional.features import head_widths
from .networks import LoadError

State = dict[str, Tensor]


class _Given(State):
    """The state dict to convert; it records which tensors were read."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Tensor:
        self.read.add(key)
        return super().__getitem__(key)

    def take(self, key: str) -> Tensor | None:
        return self[key] if key in self else None  # noqa: SIM401  `get` would not record it


_FREE = {
    "activation", "checkpoint", "distance_epsilon", "dropout", "length_scale", "norm_epsilon",
    "recenter", "reinsert_mv_channels", "reinsert_s_channels", "rotary_base",
}  # fmt: skip
"""Options that the tensors do not determine."""
_TYPES = ("in_mv_parity", "out_mv_parity")


def convert(
    source: Mapping[str, Tensor] | str | os.PathLike[str],
    *,
    axial: bool,
    options: Mapping[str, Any],
) -> tuple[GATrConfig, State]:
    """Configuration and state dict of the network that computes the same function."""
    for name in options:
        if name not in _FREE:
            known = name in {field.name for field in fields(GATrConfig)}
            reason = "is inferred from the tensors" if known else "is unknown"
            if name in _TYPES:
                reason = "is for new networks, because the authors' weights have no types"
            raise TypeError(
                f"option {name!r} {reason}; from_original takes {', '.join(sorted(_FREE))}"
            )
    state = _strip_prefix(_read(source))
    _check_axes(state)
    try:
        config = _config(state, axial, dict(options))
        converted = config, _tensors(state, config)
    except KeyError as error:
        raise LoadError(
            f"this is not a state dict of the authors' GATr: tensor {error.args[0]!r} is missing"
        ) from error
    except RuntimeError as error:
        raise LoadError(f"the tensors do not fit each other: {error}") from error
    unused = sorted(k for k in state.keys() - state.read if not k.endswith(".inv_freq"))
    if unused:
        raise LoadError(
            f"{len(unused)} tensors have no place in the network, among them "
            f"{', '.join(unused[:4])}; remove them if the network does not need them"
        )
    return converted


def _read(source: Mapping[str, Tensor] | str | os.PathLike[str]) -> Mapping[str, Tensor]:
    loaded: Any = source if isinstance(source, Mapping) else _load_file(os.fspath(source))
    if isinstance(loaded, Mapping) and isinstance(loaded.get("model"), Mapping):
        loaded = loaded["model"]
    if not isinstance(loaded, Mapping):
        raise LoadError(f"{source} holds a {type(loaded).__name__}, not a state dict")
    return loaded


def _load_file(name: str) -> Any:
    if stat.S_ISFIFO(_mode(name)) or stat.S_ISCHR(_mode(name)):
        raise LoadError(f"{name} is a pipe or a device; save the weights to a file first")
    try:
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(name)
        return torch.load(name, map_location="cpu", weights_only=True)
    except OSError as error:
        raise LoadError(f"cannot read {name}: {error.strerror or error}") from error
    except Exception as error:
        if name.endswith(".safetensors"):
            raise LoadError(f"{name} is damaged, or no safetensors file: {error}") from error
        raise LoadError(
            f"{name} is not a state dict that torch's weights-only loader accepts: {_why(error)}"
        ) from error


def _mode(name: str) -> int:
    return os.stat(name).st_mode if os.path.exists(name) else 0


def _why(error: Exception) -> str:
    """Why a loader refused a file, without torch's advice to run the file's code."""
    told = str(error)
    found = re.search(r"GLOBAL (\S+)", told) if isinstance(error, pickle.UnpicklingError) else None
    if found:
        what = f"it refers to {found[1]}, and loading that could run code"
    elif isinstance(error, pickle.UnpicklingError):
        what = "it is damaged, or contains more than tensors, and loading that could run code"
    else:
        what = f"it is damaged, or nothing that torch.save wrote ({type(error).__name__}: {told})"
    return (
        f"{what}. Where the network was made, save its tensors alone: "
        "torch.save(net.state_dict(), file)"
    )


def _strip_prefix(state: Mapping[str, Tensor]) -> _Given:
    """Remove a prefix that wrappers put before the network's own names (`net.`, `module.`)."""
    ends = [key for key in state if key.endswith("linear_in.weight")]
    if len(ends) != 1:
        raise LoadError(
            "this is not a state dict of the authors' GATr: expected one tensor "
            f"'…linear_in.weight', found {len(ends)}"
        )
    prefix = ends[0].removesuffix("linear_in.weight")
    return _Given({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})


def _check_axes(state: State) -> None:
    """Check that every tensor has as many axes as in the authors' code."""
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise LoadError(f"{name!r} is a {type(tensor).__name__}, expected a tensor")
        matrix = re.search(r"(s2mvs|mvs2s|s2s)\.weight$", name)
        axes = 2 if matrix else 3 if name.endswith(("weight", "log_weights")) else tensor.dim()
        if tensor.dim() != axes:
            raise LoadError(
                f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {axes} axes"
            )


def _config(state: _Given, axial: bool, options: dict[str, Any]) -> GATrConfig:
    hidden_mv, in_mv, _ = state["linear_in.weight"].shape
    hidden_s, in_s = _outputs(state, "linear_in.mvs2s"), _inputs(state, "linear_in.s2mvs")
    numbers = [int(m[1]) for k in state if (m := re.match(r"blocks\.(\d+)\.", k))]
    if not numbers:
        raise LoadError("this is not a state dict of the authors' GATr: it has no blocks")
    blocks = 1 + max(numbers)
    heads = state["blocks.0.attention.attention.log_weights"].shape[0]
    multi_query = "blocks.0.attention.qkv_module.q_linear.weight" in state
    query = "blocks.0.attention.qkv_module." + ("q_linear" if multi_query else "in_linear")
    rotary = [f"blocks.{i}.attention.pos_encoding.inv_freq" in state for i in range(blocks)]

    def reinserted(key: str, tensor: str, hidden: int) -> None:
        extra = _inputs(state, tensor) - hidden
        options.setdefault(key, tuple(range(extra)))
        if len(options[key]) != extra:
            raise ValueError(f"{key}={options[key]!r}, but the weights re-insert {extra} channels")

    reinserted("reinsert_mv_channels", query, hidden_mv)
    reinserted("reinsert_s_channels", query + ".s2mvs", hidden_s)
    if any(rotary):
        frequencies = state[f"blocks.{rotary.index(True)}.attention.pos_encoding.inv_freq"]
        options.setdefault("rotary_base", _rotary_base(frequencies))
    return GATrConfig(
        in_mv_channels=in_mv,
        in_s_channels=in_s,
        hidden_mv_channels=hidden_mv,
        hidden_s_channels=hidden_s,
        out_mv_channels=state["linear_out.weight"].shape[0],
        out_s_channels=_outputs(state, "linear_out.mvs2s"),
        num_blocks=blocks,
        num_heads=heads,
        multi_query=multi_query,
        attention_width=_width(state, hidden_mv, hidden_s, heads, rotary),
        rotary=_axial_rotary(rotary) if axial else _rotary(rotary),
        **options,
    )


def _rotary(blocks: list[bool]) -> bool:
    if len(set(blocks)) > 1:
        raise LoadError(
            "some blocks have rotary positions and others do not, so this is an axial network; use "
            "AxialGATr.from_original"
        )
    return blocks[0]


def _axial_rotary(blocks: list[bool]) -> tuple[bool, bool]:
    """Odd blocks attend over the first axis, even ones over the second."""
    pair = len(blocks) > 1 and blocks[1], blocks[0]
    if any(found != pair[(i + 1) % 2] for i, found in enumerate(blocks)):
        raise LoadError(
            f"blocks {[i for i, found in enumerate(blocks) if found]} have rotary positions; an "
            "AxialGATr has them in all or none of its even blocks, and of its odd ones"
        )
    return pair


def _width(state: _Given, mv: int, s: int, heads: int, rotary: list[bool]) -> int:
    """The smallest width factor that gives the head widths of every block."""
    names = [f"blocks.{i}.attention." for i in range(len(rotary))]
    found = [
        (
            state[name + "attention.log_weights"].shape[-1],
            _inputs(state, name + "out_linear.s2mvs") // max(heads, 1),
        )
        for name in names
    ]
    for width in range(1, 65):
        if found == [head_widths(mv, s, heads, width, turned) for turned in rotary]:
            return width
    raise LoadError(
        f"heads of {found[0][0]} mv + {found[0][1]} s channels do not follow from {mv} mv + {s} s "
        f"channels and {heads} heads"
    )


def _rotary_base(frequencies: Tensor) -> float:
    """inv_freq[1] = base^(-1 / n) for n frequencies."""
    n = frequencies.numel()
    base = float(frequencies[1].double() ** -n) if n > 1 else 4096.0
    return float(round(base)) if abs(base - round(base)) < 1e-2 else base


def _inputs(state: _Given, layer: str) -> int:
    weight = state.take(layer + ".weight")
    return 0 if weight is None else weight.shape[1]


def _outputs(state: _Given, layer: str) -> int:
    weight = state.take(layer + ".weight")
    return 0 if weight is None else weight.shape[0]


def _tensors(state: _Given, config: GATrConfig) -> State:
    out: State = {}
    for name in ("linear_in", "linear_out"):
        _put(out, name, _linear(state, name))
    for i in range(config.num_blocks):
        _attention(out, state, f"blocks.{i}.attention.", config)
        theirs, ours = f"blocks.{i}.mlp.layers.", f"blocks.{i}.mlp."
        parts = ("left", "right", "join_left", "join_right")
        inputs = [_linear(state, f"{theirs}0.linear_{part}") for part in parts]
        _put(
            out, ours + "bilinear.inputs", {k: torch.cat([x[k] for x in inputs]) for k in inputs[0]}
        )
        _put(out, ours + "bilinear.output", _linear(state, theirs + "0.linear_out"))
        last = "2" if theirs + "2.weight" in state else "3"  # dropout shifts the numbering
        _put(out, ours + "linear", _linear(state, theirs + last))
    return out


def _attention(out: State, state: _Given, name: str, config: GATrConfig) -> None:
    out[name + "attention.log_beta"] = state[name + "attention.log_weights"][:, 0]
    _put(out, name + "output", _linear(state, name + "out_linear"))
    heads, qkv = config.num_heads, name + "qkv_module."
    if config.multi_query:
        q, k, v = (_linear(state, f"{qkv}{part}_linear") for part in "qkv")
        q = {key: _by_head(x, heads) for key, x in q.items()}
    else:
        merged = _linear(state, qkv + "in_linear")
        q, k, v = (
            {key: _by_head(x.chunk(3)[i], heads) for key, x in merged.items()} for i in range(3)
        )
    own, extra = zip(*(_split_inputs(x, config) for x in (q, k, v)), strict=True)
    _put(out, name + "qkv", {key: torch.cat([x[key] for x in own]) for key in own[0]})
    if config.reinsert_mv_channels or config.reinsert_s_channels:
        reached = extra[:2] if config.multi_query else extra
        merged_extra = {key: torch.cat([x[key] for x in reached]) for key in extra[0]}
        _put(out, name + "reinsert", merged_extra)


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Reorder output rows from channel · heads + head to head · channels + channel."""
    channels = x.shape[0] // heads
    return x.reshape(channels, heads, *x.shape[1:]).transpose(0, 1).reshape(x.shape)


def _split_inputs(linear: State, config: GATrConfig) -> tuple[State, State]:
    """The columns for the hidden state, and those for the re-inserted channels (without bias)."""
    sizes = {
        "weight": config.hidden_mv_channels,
        "mv2s": config.hidden_mv_channels,
        "s2mv": config.hidden_s_channels,
        "s2s": config.hidden_s_channels,
    }
    own = {k: x[:, : sizes[k]] if k in sizes else x for k, x in linear.items()}
    extra = {k: linear[k][:, size:] for k, size in sizes.items() if k in linear}
    return own, extra


def _linear(state: _Given, name: str) -> State:
    """An EquiLinear of the authors' code, with our names; a missing bias is zero."""
    weight = state[name + ".weight"]
    renamed = {
        "weight": weight,
        "s2mv": state.take(name + ".s2mvs.weight"),
        "mv2s": state.take(name + ".mvs2s.weight"),
        "s2s": state.take(name + ".s2s.weight"),
        "bias_s": state.take(name + ".mvs2s.bias"),
    }
    bias = state.take(name + (".s2mvs.bias" if name + ".s2mvs.bias" in state else ".bias"))
    renamed["bias_mv"] = weight.new_zeros(weight.shape[0]) if bias is None else bias.flatten()
    return {key: x for key, x in renamed.items() if x is not None}


def _put(out: State, name: str, linear: State) -> None:
    for key, x in linear.items():
        if x.numel() or key == "weight":  # EquiLinear has a weight even without channels
            out[f"{name}.{key}"] = x.contiguous()
