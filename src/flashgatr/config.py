"""The configuration of a network: one flat dataclass, checked on construction.

Field names follow the packages `gatr` and `lgatr`. Defaults follow the authors' released code;
where the paper differs, an option selects the paper's variant.
"""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from .functional import ACTIVATIONS
from .functional.features import head_widths, weighted_terms
from .functional.linear import halves
from .object_types import check_parity

HALVES = ("attention", "mlp")
"""The halves of a block."""
INITIALIZATIONS = ("default", "geometric")
"""Start values of a network."""


@dataclass(frozen=True, kw_only=True)
class GATrConfig:
    """Everything that determines a GATr's parameters and its function.

    in/out/hidden_mv_channels, in/out/hidden_s_channels: widths (zero scalar channels: no scalars).
    num_blocks: pairs of attention and MLP. num_heads: heads of every attention layer.
    multi_query: all heads share their keys and values.
    attention_width: factor by which queries, keys and values are wider than the hidden state.
    distance_aware: attention logits contain the distances between points.
    learned_weights: logit terms with learned weights: "none", "distance" (β per head and channel,
        as in the released code) or "all" (also α and γ per head, as in the paper); True means
        "distance", False "none".
    rotary: rotary encoding of the items' positions; AxialGATr takes a pair, one per axis.
    rotary_base: the wavelengths grow geometrically from 2π to about 2π times this number.
    reinsert_mv_channels, reinsert_s_channels: input channels that the queries and keys of every
        block also receive.
    activation: of the gates and scalars, "gelu", "relu" or "sigmoid".
    dropout: probability of dropping a grade of a multivector channel, or a scalar.
    checkpoint: what the backward pass computes again, to save memory: True or "block" (each block),
        "attention" or "mlp" (that half of each block), False (nothing).
    recenter: use coordinates relative to each sample's centre (exact; preserves precision far from
        the origin).
    length_scale: lengths are divided by it on entry and multiplied by it on exit.
    norm_epsilon: the least mean squared norm that the layer norm divides by.
    distance_epsilon: added to the squared weight by which attention's distances divide a point.
    initialization: "default", or "geometric": start values with which scalar outputs depend on the
        geometry from the first step, for energies whose gradient is trained.
    in_mv_parity, out_mv_parity: types of the multivector channels, one letter each, "e" (even) or
        "o" (odd), as `flashgatr.parity` gives them. The network is then equivariant under mirrors,
        too, from coordinates to coordinates. None, None: channels without types.
    """

    in_mv_channels: int
    out_mv_channels: int
    hidden_mv_channels: int = 16
    in_s_channels: int = 0
    out_s_channels: int = 0
    hidden_s_channels: int = 128
    num_blocks: int = 10
    num_heads: int = 8
    multi_query: bool = True
    attention_width: int = 2
    distance_aware: bool = True
    learned_weights: str | bool = "distance"
    rotary: bool | tuple[bool, bool] = False
    rotary_base: float = 4096.0
    reinsert_mv_channels: tuple[int, ...] = ()
    reinsert_s_channels: tuple[int, ...] = ()
    activation: str = "gelu"
    dropout: float = 0.0
    checkpoint: str | bool = False
    recenter: bool = True
    length_scale: float = 1.0
    norm_epsilon: float = 0.01
    distance_epsilon: float = 1e-3
    initialization: str = "default"
    in_mv_parity: str | None = None
    out_mv_parity: str | None = None

    def __post_init__(self) -> None:
        self._normalise()
        for name in ("hidden_mv_channels", "num_blocks", "num_heads", "attention_width"):
            self._require_count(name, least=1)
        for name in (f"{side}_{kind}_channels" for side in ("in", "out") for kind in ("mv", "s")):
            self._require_count(name, least=0)
        self._require_count("hidden_s_channels", least=0)
        if not self.in_mv_channels + self.in_s_channels:
            raise ValueError(
                "the network has no input: in_mv_channels and in_s_channels are both 0"
            )
        if not self.out_mv_channels + self.out_s_channels:
            raise ValueError(
                "the network has no output: out_mv_channels and out_s_channels are both 0"
            )
        for name in ("multi_query", "distance_aware", "recenter"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not isinstance(self.checkpoint, bool) and self.checkpoint not in HALVES:
            raise ValueError(
                f"checkpoint must be True, False, 'block', 'attention' or 'mlp', got "
                f"{self.checkpoint!r}"
            )
        for name in ("rotary_base", "length_scale", "norm_epsilon", "distance_epsilon"):
            if not 0 < self._number(name) < math.inf:
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        if not 0 <= self._number("dropout") < 1:
            raise ValueError(f"dropout must be a probability in [0, 1), got {self.dropout!r}")
        if self.activation not in tuple(ACTIVATIONS):
            raise ValueError(
                f"unknown activation {self.activation!r}; expected one of {', '.join(ACTIVATIONS)}"
            )
        if self.initialization not in INITIALIZATIONS:
            raise ValueError(
                f"initialization must be one of {', '.join(INITIALIZATIONS)}, got "
                f"{self.initialization!r}"
            )
        if self.has_rotary and not self.hidden_s_channels:
            raise ValueError("rotary positions turn scalar channels, but hidden_s_channels is 0")
        self._require_channels("reinsert_mv_channels", self.in_mv_channels)
        self._require_channels("reinsert_s_channels", self.in_s_channels)
        self._check_types()

    def _check_types(self) -> None:
        """Raise an error unless the types of channels are complete and the widths allow them."""
        if self.in_mv_parity is None and self.out_mv_parity is None:
            return
        if self.in_mv_parity is None or self.out_mv_parity is None:
            raise ValueError(
                f"in_mv_parity and out_mv_parity belong together; got {self.in_mv_parity!r} and "
                f"{self.out_mv_parity!r}; give both, or neither"
            )
        check_parity(self.in_mv_parity, self.in_mv_channels, "in_mv_parity")
        check_parity(self.out_mv_parity, self.out_mv_channels, "out_mv_parity")
        if self.hidden_mv_channels % 2:
            raise ValueError(
                f"half of the hidden channels are even and half are odd, so hidden_mv_channels "
                f"must be a multiple of 2 in a network with types, got {self.hidden_mv_channels}"
            )
        channels = self.hidden_mv_channels, self.hidden_s_channels
        per_head, _ = head_widths(*channels, self.num_heads, self.attention_width, False)
        if per_head < 2:
            raise ValueError(
                f"every head of a network with types needs an even and an odd channel, but "
                f"attention_width · hidden_mv_channels / num_heads is {per_head}; use fewer heads "
                "or more channels"
            )

    @property
    def is_typed(self) -> bool:
        """Whether multivector channels have types."""
        return self.in_mv_parity is not None

    @property
    def first_mv_channels(self) -> int:
        """Channels that enter the first linear map: the input, with types also a constant."""
        return self.in_mv_channels + self.is_typed

    @property
    def first_parity(self) -> str | None:
        """Types of these channels; the constant is odd."""
        return None if self.in_mv_parity is None else self.in_mv_parity + "o"

    @property
    def hidden_parity(self) -> str | None:
        """Types of the hidden channels: the first half is even, the second odd."""
        return halves(self.hidden_mv_channels) if self.is_typed else None

    @property
    def reinsert_parity(self) -> str | None:
        """Types of the re-inserted channels."""
        if self.in_mv_parity is None:
            return None
        return "".join(self.in_mv_parity[c] for c in self.reinsert_mv_channels)

    @property
    def recomputed_half(self) -> str | None:
        """The half of each block that is computed again in the backward pass, if only one is."""
        return self.checkpoint if isinstance(self.checkpoint, str) else None

    @property
    def has_rotary(self) -> bool:
        return any(self.rotary) if isinstance(self.rotary, tuple) else self.rotary

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GATrConfig:
        """A configuration from a mapping, such as a JSON object; unknown keys are an error."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
                raise TypeError(f"unknown GATr option {key!r}; {hint}")
        for field in ("in_mv_channels", "out_mv_channels"):
            if field not in values:
                raise TypeError(f"GATr needs {field}; see help(flashgatr.GATrConfig)")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All options; types only if there are some, so that older versions read the others."""
        values = asdict(self)
        if not self.is_typed:
            del values["in_mv_parity"], values["out_mv_parity"]
        return values

    def _normalise(self) -> None:
        """Convert shorthand and JSON forms (True, lists) to the form that is stored."""
        put = self._put
        put("learned_weights", weighted_terms(self.learned_weights))
        if self.checkpoint == "block":
            put("checkpoint", True)
        for name in ("reinsert_mv_channels", "reinsert_s_channels"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (list, tuple)):
                raise TypeError(f"{name} must list channel indices, such as (0,), got {value!r}")
            put(name, tuple(map(_integer, value or ())))
        if isinstance(self.rotary, list):
            put("rotary", tuple(self.rotary))
        pair = isinstance(self.rotary, tuple) and len(self.rotary) == 2
        flags = self.rotary if isinstance(self.rotary, tuple) else (self.rotary,)
        if not (pair or isinstance(self.rotary, bool)) or not all(
            isinstance(f, bool) for f in flags
        ):
            raise TypeError(f"rotary must be True, False or a pair of them, got {self.rotary!r}")
        for name in ("in_s_channels", "out_s_channels", "hidden_s_channels"):
            if getattr(self, name) is None:
                put(name, 0)

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _require_count(self, name: str, least: int) -> None:
        value = _integer(getattr(self, name))
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        self._put(name, value)

    def _number(self, name: str) -> float:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number, got {value!r}")
        self._put(name, float(value))
        return float(value)

    def _require_channels(self, name: str, available: int) -> None:
        channels = getattr(self, name)
        bad = [
            c
            for c in channels
            if isinstance(c, bool) or not isinstance(c, int) or not 0 <= c < available
        ]
        if bad or len(set(channels)) != len(channels):
            raise ValueError(
                f"{name} must be distinct indices of input channels (0 to {available - 1}), got "
                f"{channels!r}"
            )


def _integer(value: Any) -> Any:
    """Convert integer types (numpy's too) to int; return anything else unchanged."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


PRESETS: dict[str, dict[str, Any]] = {
    "nbody": dict(
        in_mv_channels=1, in_s_channels=1, out_mv_channels=1, out_s_channels=1,
        num_blocks=10, hidden_mv_channels=16, hidden_s_channels=128, num_heads=8,
        multi_query=False, attention_width=2,
    ),
    "arteries": dict(
        in_mv_channels=3, in_s_channels=1, out_mv_channels=1, out_s_channels=0,
        num_blocks=10, hidden_mv_channels=8, hidden_s_channels=32, num_heads=4,
        multi_query=True, attention_width=1, reinsert_mv_channels=(0,),
    ),
    "kuka": dict(
        in_mv_channels=5, in_s_channels=8, out_mv_channels=5, out_s_channels=4,
        num_blocks=20, hidden_mv_channels=16, hidden_s_channels=32, num_heads=8,
        multi_query=False, attention_width=1, distance_aware=False, rotary=(True, False),
    ),
    "scaling": dict(
        in_mv_channels=4, in_s_channels=1, out_mv_channels=1, out_s_channels=0,
        num_blocks=10, hidden_mv_channels=8, hidden_s_channels=16, num_heads=4,
        multi_query=True, attention_width=1,
    ),
}  # fmt: skip
"""The paper's configurations; `kuka` is axial (time, objects)."""


def preset(name: str, **changes: Any) -> GATrConfig:
    """One of the paper's configurations, with some fields changed."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; expected one of {', '.join(PRESETS)}")
    return GATrConfig.from_dict({**PRESETS[name], **changes})
