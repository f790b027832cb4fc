"""Tangent frames of a surface's nodes, and neighbours as seen in them.

A direction in the tangent plane of a node is a unit complex number: x along the frame's first axis,
y along the second. For nodes p and q:

    u  = (q - p in the frame of p) / its length        the direction in which q lies
    t  = the first axis of q, transported to p          a feature z of order m at q is tᵐ z at p

The transport is the rotation of least angle that takes the normal of q to that of p. A direction
that does not exist is 0: that of a neighbour above p, or the transport between opposite normals.
Turning the frame of p by an angle a multiplies u and t by exp(-ia), that of q multiplies t by
exp(ia).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_OPPOSITE = 1e-5
"""Normals whose cosine is below this minus 1 count as opposite."""
_ABOVE = 1e-4
"""A neighbour whose offset has a smaller tangential part than this, relative to its length, counts
as straight above: rounding would decide on its direction.
"""


def tangent_frames(position: Tensor, normal: Tensor, toward: Tensor) -> Tensor:
    """Frames (N, 3, 3) with the rows x, y and normal, x toward another node each, y = normal × x.

    toward: (N,) the number of that node. Where it is -1, or the node lies straight above, x is in
    the direction of a coordinate axis.
    """
    normal = F.normalize(normal, dim=-1)
    offset = position.index_select(0, toward.clamp(min=0)) - position
    smallest = normal.abs().argmin(-1, keepdim=True)
    axis = torch.zeros_like(normal).scatter(-1, smallest, 1.0)
    flat = _flat(offset, normal)
    known = (toward >= 0) & (flat.norm(dim=-1) > _ABOVE * offset.norm(dim=-1))
    x = F.normalize(torch.where(known[:, None], flat, _flat(axis, normal)), dim=-1)
    return torch.stack([x, torch.linalg.cross(normal, x), normal], dim=-2)


def turned(frames: Tensor, angle: Tensor) -> Tensor:
    """Frames (N, 3, 3) turned about their normals by angles (N,)."""
    x, y, normal = frames.unbind(-2)
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    return torch.stack([c * x + s * y, c * y - s * x, normal], dim=-2)


def directions(offset: Tensor, frame: Tensor) -> Tensor:
    """u (...), complex, for offsets (..., 3) in frames (..., 3, 3) that broadcast against them."""
    flat = _seen(offset, frame)
    exists = flat.abs() > _ABOVE * offset.norm(dim=-1)
    return torch.where(exists, flat / flat.abs().clamp(min=torch.finfo(offset.dtype).tiny), 0)


def transports(x: Tensor, normal: Tensor, frame: Tensor) -> Tensor:
    """t (...), complex, from nodes with these first axes and normals (..., 3) to nodes with these
    frames (..., 3, 3).
    """
    up = frame[..., 2, :]
    cosine = (normal * up).sum(-1)
    lean = (x * up).sum(-1) / (1 + cosine).clamp(min=_OPPOSITE)
    t = _seen(x - lean[..., None] * (normal + up), frame)
    return torch.where(1 + cosine > _OPPOSITE, t / t.abs().clamp(min=_OPPOSITE), 0)


def powers(u: Tensor, highest: int) -> list[Tensor]:
    """u⁰, u¹, ..., u^highest; u⁰ is 1, also for 0."""
    found = [torch.ones_like(u)]
    for _ in range(highest):
        found.append(found[-1] * u)
    return found


def _seen(vector: Tensor, frame: Tensor) -> Tensor:
    """The tangential part of a vector, as a complex number."""
    x, y = (frame[..., :2, :] * vector.unsqueeze(-2)).sum(-1).unbind(-1)
    return torch.complex(x, y)


def _flat(vector: Tensor, normal: Tensor) -> Tensor:
    """The part of a vector that is orthogonal to the normal."""
    return vector - (vector * normal).sum(-1, keepdim=True) * normal
