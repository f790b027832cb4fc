"""A vessel as a swept tube.

    position(s, x, y) = c(s) + (o(s) + r(s)·(x, y))·(N(s), B(s)),   (x, y) in the unit disc

s is the arc length, with s = 0 where the vessel begins after its extension. The centreline c is a
cubic spline through five points over x ∈ [0, 4.2] cm, between straight extensions of five
diameters. A stenosis reduces the radius R by a raised cosine, r = R(1 − d(s)) with
d = reduction·(1 + cos(π(s − s₀)/h))/2, and moves the centre by R·d to one side, so that the wall on
that side does not move.

Legend: P stations along the tube, n points of a cross-section.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from ..data.mesh import Array, ArteryError

MAX_BEND = 0.6  # radius × curvature; with more, neighbouring cross-sections nearly touch
STENOSES = (0.10, 0.35, 0.55)  # probabilities of 0, 1 and 2 stenoses
_TRIES = 10_000


@dataclass(frozen=True)
class Stenosis:
    """A narrowing from centre - half_length to centre + half_length, moved towards `angle` in
    (N, B).
    """

    centre: float
    half_length: float
    reduction: float
    angle: float

    def depth(self, s: Array) -> Array:
        """The share of the radius that is missing at s."""
        away = np.clip((s - self.centre) / self.half_length, -1, 1)
        return np.asarray(self.reduction * (1 + np.cos(np.pi * away)) / 2)


@dataclass(frozen=True)
class Tube:
    """The parameters of a vessel, cm. `bend` has (y, z) of the spline's points, evenly spaced in
    x.
    """

    radius: float
    bend: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * 5
    stenoses: tuple[Stenosis, ...] = ()
    length: float = 4.2  # along x
    extension: float = 5.0  # diameters

    @cached_property
    def _spline(self) -> Any:
        x = np.linspace(0, self.length, len(self.bend))
        return CubicSpline(x, np.asarray(self.bend), bc_type="natural")

    @cached_property
    def _arc(self) -> tuple[Array, Array]:
        """Samples of x, and the arc lengths at them."""
        x = np.linspace(0, self.length, 2001)
        speed = np.sqrt(1 + np.square(self._spline(x, 1)).sum(axis=1))
        steps = (speed[1:] + speed[:-1]) / 2 * np.diff(x)
        return x, np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def span(self) -> tuple[float, float]:
        """Arc lengths of the inlet and of the outlet."""
        extension = 2 * self.extension * self.radius
        return -extension, float(self._arc[1][-1]) + extension

    def arc_length(self, x: float) -> float:
        """The arc length of the centreline at x."""
        return float(np.interp(x, *self._arc))

    def max_bend(self) -> float:
        """The largest radius × curvature; at 1 the tube folds."""
        x = self._arc[0]
        first = np.insert(self._spline(x, 1), 0, 1, axis=1)
        second = np.insert(self._spline(x, 2), 0, 0, axis=1)
        curvature = (
            np.linalg.norm(np.cross(first, second), axis=1) / np.linalg.norm(first, axis=1) ** 3
        )
        return float(self.radius * curvature.max())

    def centreline(self, s: Array) -> tuple[Array, Array]:
        """Points (P, 3) and unit tangents (P, 3)."""
        inside = np.clip(s, 0, self._arc[1][-1])
        x = np.interp(inside, self._arc[1], self._arc[0])
        point = np.column_stack([x, self._spline(x)])
        tangent = np.column_stack([np.ones_like(x), self._spline(x, 1)])
        tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
        return point + (s - inside)[:, None] * tangent, tangent

    def depth(self, s: Array) -> Array:
        """The share of the radius that stenoses remove at s (P,)."""
        return np.asarray(sum((x.depth(s) for x in self.stenoses), np.zeros_like(s)))

    def position(self, s: Array, disc: Array, planes: slice = slice(None)) -> Array:
        """The positions (P, n, 3) of the points (n, 2) of the unit disc at stations s (P,).

        `planes` chooses some of the stations. The others still count: the cross-sections do not
        twist from one station to the next.
        """
        centre, tangent = self.centreline(s)
        normal, binormal = _frame(centre, tangent)
        offset = np.zeros((len(s), 2))
        for x in self.stenoses:
            offset += np.outer(self.radius * x.depth(s), [np.cos(x.angle), np.sin(x.angle)])
        r = self.radius * (1 - self.depth(s))
        centre, normal, binormal, offset, r = (
            x[planes] for x in (centre, normal, binormal, offset, r)
        )
        a = offset[:, None, :] + r[:, None, None] * disc
        return np.asarray(
            centre[:, None] + a[..., :1] * normal[:, None] + a[..., 1:] * binormal[:, None]
        )

    def stations(self, layers: int) -> Array:
        """Arc lengths (2·layers + 1,) of the planes of nodes, from inlet to outlet.

        They are denser in and behind stenoses, and sparser in the extensions.
        """
        s = np.linspace(*self.span, 4001)
        diameter = 2 * self.radius
        outside = np.maximum(-s, s - self._arc[1][-1]) / diameter
        density = 1 - 0.5 * _ramp(outside)
        for x in self.stenoses:
            up, down = x.centre - x.half_length, x.centre + x.half_length + 1.5 * diameter
            near = 1 - _ramp(np.maximum(up - s, s - down) / diameter)
            density += x.reduction / 0.49 * near
        steps = (density[1:] + density[:-1]) / 2 * np.diff(s)
        total = np.concatenate([[0.0], np.cumsum(steps)])
        return np.interp(np.linspace(0, total[-1], 2 * layers + 1), total, s)


def draw(rng: np.random.Generator, *, planar: bool = True, max_reduction: float = 0.49) -> Tube:
    """A random vessel, distributed like the published ones. Sharply bent vessels are drawn
    again.
    """
    if not 0.06 <= max_reduction < 1:
        raise ValueError(f"max_reduction must be at least 0.06 and below 1, got {max_reduction}")
    for _ in range(_TRIES):
        radius = float(rng.uniform(0.125, 0.2))
        aside = _walk(rng), [0.0] * 5 if planar else _walk(rng)
        tube = Tube(radius, tuple(zip(*aside, strict=True)))
        if tube.max_bend() <= MAX_BEND:
            return replace(tube, stenoses=_draw_stenoses(rng, tube, planar, max_reduction))
    raise ArteryError(f"no vessel could be drawn in {_TRIES} tries; allow sharper bends")


def _draw_stenoses(
    rng: np.random.Generator, tube: Tube, planar: bool, max_reduction: float
) -> tuple[Stenosis, ...]:
    """None, one or two stenoses that do not overlap."""
    places = ((), ((0.7, 2.7),), ((0.7, 1.7), (1.6, 2.7)))[rng.choice(3, p=STENOSES)]
    while True:
        found = tuple(
            Stenosis(
                centre=tube.arc_length(float(rng.uniform(*x))),
                half_length=float(rng.uniform(0.25, 0.40)),
                reduction=float(rng.uniform(0.06, max_reduction)),
                angle=float(np.pi * rng.integers(2) if planar else rng.uniform(0, 2 * np.pi)),
            )
            for x in places
        )
        ends = [(x.centre - x.half_length, x.centre + x.half_length) for x in found]
        if all(first[1] <= second[0] for first, second in pairwise(ends)):
            return found


def _walk(rng: np.random.Generator) -> list[float]:
    """One coordinate of the five points: a bounded random walk from 0."""
    y = [0.0]
    for _ in range(4):
        y.append(float(rng.uniform(max(y[-1] - 0.4, -0.7), min(y[-1] + 0.4, 0.7))))
    return y


def _ramp(x: Array) -> Array:
    """A smooth ramp from 0 at x ≤ 0 to 1 at x ≥ 1."""
    return np.asarray((1 - np.cos(np.pi * np.clip(x, 0, 1))) / 2)


def _frame(point: Array, tangent: Array) -> tuple[Array, Array]:
    """Normals and binormals (P, 3) that do not twist about the tangent (double reflection method).

    The first normal is the one closest to the y axis.
    """
    normal = np.empty_like(tangent)
    first = np.array([0.0, 1.0, 0.0]) - tangent[0, 1] * tangent[0]
    normal[0] = first / np.linalg.norm(first)
    for i in range(len(point) - 1):
        step = point[i + 1] - point[i]
        middle, turned = (
            x - 2 * (step @ x) / (step @ step) * step for x in (normal[i], tangent[i])
        )
        change = tangent[i + 1] - turned
        square = change @ change
        # Where the centreline is straight, the first reflection suffices, and the second is
        # undefined.
        normal[i + 1] = middle - 2 * (change @ middle) / square * change if square > 0 else middle
    return normal, np.cross(tangent, normal)
