"""Check the arguments of a network's call and expand them to one value per sample.

Invalid arguments raise an error that states what was given and what was expected. These checks do
not wait for the device, with two exceptions: `require_finite`, and the warnings
`warn_of_dead_join` and `warn_of_even_points`, one of which an eager network calls until it has
seen an input that is not zero.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

from .algebra import BLADES, E123
from .batch import Sets
from .constants import is_wrapped
from .precision import check_dtype, check_tensor, stream_dtype


def checked(
    mv: Tensor, s: Tensor | None, weight: Tensor, channels: tuple[int, int], item_axes: int
) -> tuple[Tensor, Tensor]:
    """mv and s in the residual stream's dtype, after checking shape, dtype and device.

    `weight` is a parameter of the network; it gives the dtype and device that are expected.
    """
    for name, x in (("mv", mv), ("s", mv if s is None else s)):
        check_tensor(name, x)
    mv_channels, s_channels = channels
    if mv.dim() < 2 + item_axes or mv.shape[-2:] != (mv_channels, BLADES):
        axes = "N" if item_axes == 1 else "N1, N2"
        raise ValueError(
            f"expected multivectors (..., {axes}, {mv_channels}, {BLADES}), got "
            f"{tuple(mv.shape)}{_hint(mv)}"
        )
    wanted = (*mv.shape[:-2], s_channels)
    if s is None and s_channels:
        raise ValueError(
            f"the network has in_s_channels={s_channels} but the call has no scalars; pass s of "
            f"shape {wanted}"
        )
    if s is None:
        s = mv.new_zeros(wanted)
    if s.shape != wanted:
        raise ValueError(
            f"expected scalars {wanted} (items as in mv, in_s_channels={s_channels}), got "
            f"{tuple(s.shape)}"
        )
    for name, x in (("mv", mv), ("s", s)):
        check_dtype(name, x, weight.dtype, "network")
        if x.device != weight.device:
            raise ValueError(
                f"{name} is on {x.device}, the network on {weight.device}; move one with .to()"
            )
    dtype = stream_dtype(weight.dtype)
    return mv.to(dtype), s.to(dtype)


def _hint(mv: Tensor) -> str:
    """What to do about multivectors of this shape, if it can be told."""
    if mv.shape[-1:] == (3,):
        return "; embed coordinates with the embed_ functions first"
    if mv.shape[-1:] == (BLADES,):
        return (
            "; channels are the axis before the last: mv.unsqueeze(-2) makes one, "
            "torch.stack([...], dim=-2) joins several"
        )
    return ""


def require_finite(mv: Tensor, s: Tensor) -> None:
    """Raise an error if there are NaN or infinite values; this waits for the device."""
    for name, x in (("mv", mv), ("s", s)):
        if not bool(x.isfinite().all()):
            raise ValueError(f"{name} has NaN or infinite values; check your data")


def per_sample(x: Tensor, size: int, samples: tuple[int, ...], name: str, what: str) -> Tensor:
    """x (..., size) expanded to (samples, size); the error message says that x must be `what`."""
    check_tensor(name, x)
    leading = x.shape[:-1]
    fits = x.shape[-1:] == (size,) and len(leading) <= len(samples)
    if not fits or any(n not in (1, samples[i - len(leading)]) for i, n in enumerate(leading)):
        raise ValueError(
            f"{name} must be {what} (..., {size}) per sample, broadcastable to "
            f"{(*samples, size)}, got {tuple(x.shape)}"
        )
    return x.expand(*samples, size)


def can_be_read(x: Tensor) -> bool:
    """Whether the values of x can be read now: not while tracing, capturing or transforming."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.is_meta or is_wrapped(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def warn_of_dead_join(mv: Tensor, reference: Tensor, sets: Sets) -> bool:
    """Warn if a sample's mean e123, which is the reference (samples, 1), is zero.

    Samples that have no items or are entirely zero are skipped; returns whether any was left.
    """
    mv, reference = mv.detach(), reference.detach()
    seen = sets.sum(mv.abs().sum((-2, -1))[..., None]) > 0
    dead = seen & (reference == 0)
    pointless = dead & (sets.sum(mv[..., E123].abs().sum(-1, keepdim=True)) == 0)
    any_seen, any_dead, all_dead, any_pointless = torch.stack(
        [seen.any(), dead.any(), (dead == seen).all(), pointless.any()]
    ).tolist()
    if any_dead:
        who = "the input has" if all_dead else "some samples have"
        why = "no e123 component (no points)" if any_pointless else "a mean e123 of zero"
        warnings.warn(
            f"{who} {why}, so the reference 'data' is zero there and every join vanishes; embed "
            "positions with embed_point, or pass join_reference='canonical' (equivariant under "
            "SE(3), not mirrors) or a multivector",
            stacklevel=_caller(),
        )
    return bool(any_seen)


def warn_of_even_points(mv: Tensor, parity: str) -> bool:
    """Warn if a channel that is declared even has an e123 component, as points have.

    Inputs that are entirely zero are skipped; returns whether there was another one.
    """
    mv = mv.detach()
    used = mv[..., E123].abs().flatten(0, -2).sum(0)
    *weights, everything = torch.cat([used, mv.abs().sum()[None]]).tolist()
    suspects = [
        c for c, (w, letter) in enumerate(zip(weights, parity, strict=True)) if w and letter == "e"
    ]
    if suspects:
        warnings.warn(
            f"in_mv_parity={parity!r} declares channels {suspects} even, but they have an e123 "
            'component, as points have; points are odd, "o": see flashgatr.parity',
            stacklevel=_caller(),
        )
    return bool(everything)


def _caller() -> int:
    """The `stacklevel` that makes a warning point at the code that called the network."""
    inside = tuple(str(Path(file).parent) for file in (__file__, torch.__file__) if file)
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    return level
