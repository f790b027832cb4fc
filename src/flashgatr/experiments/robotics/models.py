"""Denoisers: noisy trajectories, diffusion steps and clamped frames to the estimated noise.

    model(x (B, H, 49), t (B), clamp (B, H)) -> (B, H, 49)

GATr and the Transformer see one item per frame and object and attend over objects and frames in
turn. The U-Net sees 49 channels per frame and is not told which frames are clamped, as in Diffuser.

Noise is centred on the robot's base, the origin of normalised states, so noise of a position is a
vector from the base and no point: GATr gets the base as one more point and works around it. It is
then equivariant under rotations about the base, or with `gravity` about the vertical through it,
and under permutations of the blocks. Mirrors are a symmetry of `gatr_e3` only. An arm that is
mirrored in a plane through its axis is an arm again, with the frame M R diag(1, -1, 1) in place of
R: first directions are polar vectors, second ones axial.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import AxialGATr, embed_plane, embed_point, extract_direction, parity
from ...algebra import NORMAL
from ...config import preset
from ..baselines.checks import require_bool, require_count
from ..baselines.time_embedding import TimeEmbedding
from ..baselines.transformer import AxialTransformer
from ..baselines.unet import TemporalUNet
from .diffusion import target_tables
from .layouts import GEOMETRIC, OBJECTS, PER_OBJECT, from_objects, objects
from .offline_rl.learners import LEARNERS

_TIME_WIDTH = 128
"""Sines and cosines of the diffusion step, as in Diffuser."""
WIDE = 24
"""Multivector channels of `gatr_e3_wide`."""
_MARKS = 3
"""Scalars of an item beside the diffusion step: flag, kind of object, clamped or not."""


class GATrDenoiser(nn.Module):
    """AxialGATr over frames and objects.

    Multivectors of an item: its position as a point, and as a plane through the base with the
    position as normal; its two directions as planes through the position; the base as a point; with
    `gravity`, the table's plane. Noisy directions need not have unit length, and planes keep their
    length. The noise of a position is read from a trivector, that of a direction from a normal.

    mirrors: channels have types, which makes mirrors an exact symmetry.
    """

    def __init__(
        self,
        *,
        gravity: bool = False,
        time_channels: int = 32,
        mirrors: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        require_bool("gravity", gravity)
        require_count("time_channels", time_channels)
        self.gravity = gravity
        self.time = TimeEmbedding(_TIME_WIDTH, time_channels)
        own: dict[str, Any] = dict(
            in_mv_channels=5 + gravity,
            out_mv_channels=3,
            in_s_channels=_MARKS + time_channels,
            out_s_channels=1,
            recenter=False,
            in_mv_parity=None,
            out_mv_parity=None,
        )
        if mirrors:
            known = parity("point", "point", "plane", *["plane"] * gravity)
            directions = parity("plane", "axial_plane")
            own["in_mv_parity"] = known + directions
            own["out_mv_parity"] = parity("direction") + directions
        for name in own.keys() & options.keys():
            raise TypeError(f"the denoiser sets {name} itself; leave it out of model.options")
        self.net = AxialGATr(preset("kuka", **own, **options))

    def forward(self, x: Tensor, t: Tensor, clamp: Tensor) -> Tensor:
        position, directions, flags = objects(x)
        marks = _marks(flags, clamp)
        time = self.time(t)[:, None, None].expand(*marks.shape[:-1], -1)
        # Without mirrors, joins need no reference that changes sign; with types, none at all.
        how = {} if self.net.config.is_typed else dict(join_reference="canonical")
        mv, s = self.net(
            self.embed(position, directions), torch.cat([marks, time.to(marks.dtype)], -1), **how
        )
        vectors = extract_direction(mv[..., 0, :]), mv[..., 1:, NORMAL]
        found: Tensor = from_objects(*vectors, s[..., 1:, 0])
        return found

    def embed(self, position: Tensor, directions: Tensor) -> Tensor:
        """The multivectors (..., channels, 16) of objects."""
        base = torch.zeros_like(position)
        channels = [embed_point(position), embed_point(base), embed_plane(position, base)]
        if self.gravity:
            up = F.pad(base[..., :2], (0, 1), value=1.0)
            channels.append(embed_plane(up, base))
        planes = embed_plane(directions, position.unsqueeze(-2))
        return torch.cat([torch.stack(channels, dim=-2), planes], dim=-2)

    def frozen(self) -> AbstractContextManager[object]:
        """See `GATr.frozen`."""
        return self.net.frozen()


class TransformerDenoiser(nn.Module):
    """AxialTransformer over frames and objects, on the numbers of each object."""

    def __init__(
        self,
        *,
        hidden_channels: int = 144,
        num_blocks: int = 20,
        num_heads: int = 8,
        **options: Any,
    ) -> None:
        super().__init__()
        require_count("hidden_channels", hidden_channels)
        width = hidden_channels + hidden_channels % 2
        self.time = TimeEmbedding(width, hidden_channels)
        self.net = AxialTransformer(
            PER_OBJECT + _MARKS + hidden_channels,
            PER_OBJECT + 1,
            hidden_channels,
            num_blocks,
            num_heads,
            rotary=(True, False),
            **options,
        )

    def forward(self, x: Tensor, t: Tensor, clamp: Tensor) -> Tensor:
        position, directions, flags = objects(x)
        marks = _marks(flags, clamp)
        time = self.time(t)[:, None, None].expand(*marks.shape[:-1], -1)
        out = self.net(
            torch.cat([position, directions.flatten(-2), marks, time.to(x.dtype)], dim=-1)
        )
        vectors = out[..., :PER_OBJECT].unflatten(-1, (3, 3))
        flags = out[..., 1:, PER_OBJECT]
        found: Tensor = from_objects(vectors[..., 0, :], vectors[..., 1:, :], flags)
        return found


class UNetDenoiser(nn.Module):
    """Diffuser's U-Net on all numbers of a frame."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.net = TemporalUNet(GEOMETRIC, **options)

    def forward(self, x: Tensor, t: Tensor, clamp: Tensor) -> Tensor:
        return self.net(x, t)  # type: ignore[no-any-return]


def _marks(flags: Tensor, clamp: Tensor) -> Tensor:
    """The scalars (B, H, 5, 3) of every frame and object: flag, effector or block, clamped."""
    shape = (*flags.shape[:-1], OBJECTS)
    is_effector = F.pad(torch.zeros_like(flags), (1, 0), value=1.0)
    is_clamped = clamp.to(flags.dtype).unsqueeze(-1).expand(shape)
    return torch.stack([F.pad(flags, (1, 0)), is_effector, is_clamped], dim=-1)


class TargetDenoiser(nn.Module):
    """A network that predicts another quantity, from which the noise follows: see `TARGETS`."""

    def __init__(self, net: nn.Module, target: str) -> None:
        super().__init__()
        self.net = net
        for name, table in zip(("copied", "added"), target_tables(target), strict=True):
            self.register_buffer(name, table.float(), persistent=False)

    def forward(self, x: Tensor, t: Tensor, clamp: Tensor) -> Tensor:
        tables = self.get_buffer("copied"), self.get_buffer("added")
        copied, added = (table.index_select(0, t)[:, None, None] for table in tables)
        found: Tensor = self.net(x, t, clamp)
        return copied.to(x.dtype) * x + added.to(x.dtype) * found

    def frozen(self) -> AbstractContextManager[object]:
        frozen: Callable[[], AbstractContextManager[object]]
        frozen = getattr(self.net, "frozen", nullcontext)
        return frozen()


def _untyped(**options: Any) -> nn.Module:
    """A denoiser without types."""
    if "mirrors" in options:
        raise TypeError(
            "the model 'gatr' has no types, so mirrors are no symmetry of it; take 'gatr_e3' "
            "instead of the option 'mirrors'"
        )
    return GATrDenoiser(**options)


def _typed(**options: Any) -> nn.Module:
    """A denoiser with types; `mirrors` among the options is an error."""
    return GATrDenoiser(mirrors=True, **options)


def _wide(**options: Any) -> nn.Module:
    """A denoiser with types, of a width that gives about as many parameters as without them."""
    return _typed(**{"hidden_mv_channels": WIDE, **options})


def _builder(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """A function that builds a denoiser; predict: what its network predicts, see `TARGETS`."""

    def build(*, predict: str = "noise", **options: Any) -> nn.Module:
        target_tables(predict)  # an unknown one is an error before the network is made
        net = kind(**options)
        return net if predict == "noise" else TargetDenoiser(net, predict)

    return build


DENOISERS = {
    "gatr": _builder(_untyped),
    "gatr_e3": _builder(_typed),
    "gatr_e3_wide": _builder(_wide),
    "transformer": _builder(TransformerDenoiser),
    "unet": _builder(UNetDenoiser),
}
MODELS = {**DENOISERS, **LEARNERS}
"""Denoisers, which plan, and learners of `offline_rl`, which act."""
